"""Enqueues: by a script of the fast path if it applies, otherwise by the general script.

An enqueue on the fast path cannot be refused, so concurrent callers can share a call (`../shared_enqueues.py`). If the
fast path does not apply to some specs of a shared call, the others are sent again without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.domain.job import Spec, State
from millrace.domain.request import Enqueued
from millrace.domain.rules.fast_path import is_simple
from millrace.store.redis.decode import accepted, enqueued_from
from millrace.store.redis.encode import packed_specs
from millrace.store.redis.fast_enqueue import packed_call
from millrace.store.redis.waiting import WATCHED, RedisListener
from millrace.store.redis.wire import RedisWire
from millrace.store.shared_enqueues import SharedEnqueues

_MOST_ATTEMPTS = 3  # to send a shared call, without the specs to which the fast path did not apply


class RedisEnqueues:
    """The enqueues of one event loop."""

    def __init__(self, wire: RedisWire, listener: RedisListener) -> None:
        self._wire = wire
        self._listener = listener
        self._shared = SharedEnqueues(self._alone, self._together)

    async def put(self, specs: Sequence[Spec]) -> list[Enqueued]:
        if len(specs) == 1 and specs[0].token:
            return [await self._shared.put(specs[0])]
        return await self._enqueue(specs)

    async def _alone(self, spec: Spec) -> Enqueued:
        [enqueued] = await self._enqueue([spec], in_order=True)
        return enqueued

    async def _enqueue(self, specs: Sequence[Spec], *, in_order: bool = False) -> list[Enqueued]:
        first = await self.on_fast_path(specs, in_order=in_order)
        if isinstance(first, int):
            return enqueued_on_fast_path(specs, first)
        bodies: list[bytes] = []
        items = packed_specs(specs, bodies)
        answers = accepted(await self._wire.change("enqueue", [items], bodies))
        return [enqueued_from(answer, spec) for answer, spec in zip(answers, specs, strict=True)]

    async def _together(self, specs: Sequence[Spec]) -> list[Enqueued | None]:
        answers: dict[str, Enqueued] = {}
        left = list(specs)
        for _ in range(_MOST_ATTEMPTS):
            if not left:
                break
            first = await self.on_fast_path(left, in_order=True)
            if isinstance(first, int):
                answers = {enqueued.id: enqueued for enqueued in enqueued_on_fast_path(left, first)}
                break
            refused = set(first)
            left = [spec for number, spec in enumerate(left) if number not in refused]
        return [answers.get(spec.id) for spec in specs]

    async def on_fast_path(self, specs: Sequence[Spec], *, in_order: bool = False) -> int | list[int]:
        """Enqueue the specs on the fast path and return the seq of the first; the others follow.

        Return the indexes of specs to which the fast path does not apply, if there are any. Nothing has changed then.
        """
        bodies: list[bytes] = []
        call = packed_call(specs, bodies)
        if call is None:
            return _not_simple(specs)
        name, arguments = call
        watched = self._listener.unregistered([spec.id for spec in specs])
        if watched:
            _watch(name, arguments, [watched, self._listener.name, WATCHED])
        if all(spec.token for spec in specs):  # then a repeated call is recognized by its tokens
            first = await self._wire.ask(name, arguments, bodies, durable=True, in_order=in_order)
        else:
            first = await self._wire.change(name, arguments, bodies)
        if not isinstance(first, int):
            return [position - 1 for position in first]
        if first < 0:  # the only spec is not on the fast path
            return [0]
        self._listener.registered.update(watched)
        return first


def enqueued_on_fast_path(specs: Sequence[Spec], first: int) -> list[Enqueued]:
    """Return the answers to an enqueue on the fast path. `first` is the seq of the first job; the others follow."""
    return [Enqueued("queued", spec.id, seq, 1, State.WAITING) for seq, spec in enumerate(specs, first)]


def _watch(name: str, arguments: list[Any], watch: list[Any]) -> None:
    """Add a watch to the arguments of a script: the ids to watch, for whom, and how long."""
    if name == "fast_path/enqueue_one":
        arguments += watch[1:]
    else:
        arguments[1] = watch


def _not_simple(specs: Sequence[Spec]) -> list[int]:
    """Return the indexes of the specs with links, for which the fast path does not apply; all if none has links."""
    return [number for number, spec in enumerate(specs) if not is_simple(spec)] or list(range(len(specs)))
