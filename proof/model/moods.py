"""Moves and moods: what the model may do, and how often. An example about groups should not spend its steps reading.

A move is not a rule of Hypothesis: rules are chosen evenly, and half of them are left out of each example, but an
example without an enqueue shows nothing. The machine's single rule chooses a move by the weights of a mood.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st

F = TypeVar("F", bound=Callable[..., None])


class Move(NamedTuple):
    """One move. `needs` names what must not be empty for it."""

    needs: str | None
    arguments: dict[str, st.SearchStrategy[Any]]


MOVES: dict[str, Move] = {}


def move(*, needs: str | None = None, **arguments: st.SearchStrategy[Any]) -> Callable[[F], F]:
    """Mark a method as a move, with the strategies of its arguments."""

    def mark(method: F) -> F:
        MOVES[method.__name__] = Move(needs, arguments)
        return method

    return mark


_ALWAYS = {
    "work": 6,
    "claim_anything": 3,
    "claim": 2,
    "enqueue": 2,
    "enqueue_many": 3,
    "complete": 2,
    "fail": 2,
    "settle": 2,
    "move_the_clock": 4,
    "maintain": 2,
    "reclaim": 2,
    "operate": 2,
    "operate_on_finished": 1,
    "configure": 2,
    "now_and_then": 1,
    "settle_stale": 1,
    "settle_batch": 1,
    "extend_batch": 1,
    "change_lanes": 1,
    "extend": 1,
    "find": 1,
    "restart": 1,
}
_MORE: dict[str, dict[str, int]] = {
    "everything": {"enqueue_in_line": 2, "enqueue_with_key": 2, "enqueue_after": 2, "enqueue_again": 2},
    "lines": {"enqueue_in_line": 10, "claim_anything": 4, "settle": 4, "fail": 3},
    "keys": {"enqueue_with_key": 10, "enqueue_again": 4, "operate_on_finished": 4},
    "dependencies": {"enqueue_after": 12, "complete": 4, "fail": 4, "operate": 4, "replay_parent": 3},
    "leases": {"claim": 6, "reclaim": 8, "extend": 6, "settle_stale": 4, "operate": 3, "now_and_then": 3},
    "order": {"enqueue_ranked": 10, "claim": 3, "claim_anything": 4},
    "dead letters": {
        "enqueue_doomed": 8,
        "fail": 10,
        "configure": 4,
        "maintain": 6,
        "move_the_clock": 4,
        "operate_on_finished": 4,
    },
    "batches": {
        "enqueue_many": 8,
        "settle_batch": 10,
        "extend_batch": 8,
        "operate": 6,
        "change_lanes": 4,
        "reclaim": 2,
    },
    "schedules": {"put_schedules": 6, "tick": 12, "change_schedule": 6, "move_the_clock": 8},
    "operators": {"operate": 8, "operate_on_finished": 6, "configure": 6, "now_and_then": 8, "find": 3},
}


# Only these moves: a single group, limit or dependency takes a store off its fast paths.
_FAST = {
    "enqueue_bare": 6,
    "settle_batch": 10,
    "extend_batch": 2,
    "reclaim": 2,
    "claim_anything": 1,
    "complete": 1,
    "move_the_clock": 1,
}


def _weighted(more: dict[str, int]) -> st.SearchStrategy[str]:
    weights = {name: _ALWAYS.get(name, 0) + more.get(name, 0) for name in {**_ALWAYS, **more}}
    return _chosen(weights)


def _chosen(weights: dict[str, int]) -> st.SearchStrategy[str]:
    return st.sampled_from([name for name, weight in weights.items() for _ in range(weight)])


MOODS: dict[str, st.SearchStrategy[str]] = {
    **{mood: _weighted(more) for mood, more in _MORE.items()},
    "fast paths": _chosen(_FAST),
}
