"""Which events may follow which: the state machine as a table, used to audit histories.

`transition` implements it and docs/states.md draws it; tests compare the three.
"""

from __future__ import annotations

from millrace.domain.event import Kind
from millrace.domain.job import FINISHED, State

_WAITING, _RUNNING = frozenset({State.WAITING}), frozenset({State.RUNNING})

# kind → (states before the event, state after it; None: unchanged)
LEGAL: dict[Kind, tuple[frozenset[State], State | None]] = {
    Kind.UNBLOCKED: (_WAITING, State.WAITING),
    Kind.CLAIMED: (_WAITING, State.RUNNING),
    Kind.COMPLETED: (_RUNNING, State.COMPLETED),
    Kind.RETRIED: (_RUNNING, State.WAITING),
    Kind.SNOOZED: (_RUNNING, State.WAITING),
    Kind.RELEASED: (_RUNNING, State.WAITING),
    Kind.BURIED: (_RUNNING | _WAITING, State.DEAD),
    Kind.CANCELLED: (_RUNNING | _WAITING, State.CANCELLED),
    Kind.RECLAIMED: (_RUNNING, State.RUNNING),
    Kind.REPLAYED: (FINISHED, State.WAITING),
    Kind.ARCHIVED: (FINISHED, None),
    Kind.UNARCHIVED: (FINISHED, None),
    Kind.EVICTED: (frozenset({State.DEAD}), None),
    Kind.PRUNED: (FINISHED, None),
}
MAY_FAIL: dict[Kind, tuple[int, ...]] = {Kind.RETRIED: (1,), Kind.BURIED: (0, 1), Kind.CANCELLED: (0, 1)}
LAST = (Kind.PRUNED, Kind.EVICTED)
GRANTS = (Kind.CLAIMED, Kind.RECLAIMED)
UNDER_A_LEASE = (Kind.COMPLETED, Kind.RETRIED, Kind.SNOOZED, Kind.RELEASED, Kind.BURIED)
