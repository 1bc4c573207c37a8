"""Sends enqueues that are on the fast path. Callers that enqueue at the same time share calls.

While the enqueue of one caller is on its way, those of other callers of the same event loop are collected, and sent
together. Two calls may be on their way: the server runs one of them while this process serves the callers of the other.
An enqueue on the fast path cannot be refused, so the callers do not affect each other. If the fast path does not apply
to some of them, these callers enqueue their own specs by the general script, and the others share a call again. Nobody
waits long for the reply to another caller, which may take as long as a failover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from millrace.domain.job import Spec
from millrace.domain.rules.fast_path import is_simple
from millrace.store.redis.fast_enqueue import packed_call
from millrace.store.redis.waiting import WATCHED, RedisListener
from millrace.store.redis.wire import RedisWire

NOT_APPLICABLE = -1
_MOST_CALLS = 2  # calls on their way, unless their replies take long
_SMALL = 16  # so many callers are not divided between two calls
_MOST_SHARED = 1_000  # specs in a shared call
_MOST_BYTES = 4 << 20  # payload bytes in a shared call
_MOST_ATTEMPTS = 3  # to send a shared call, without the specs to which the fast path did not apply
_LONGEST_WAIT = 0.05  # seconds for which a caller waits for the reply to another one


class _Waiting(NamedTuple):
    spec: Spec
    seq: asyncio.Future[int]  # or NOT_APPLICABLE


class FastEnqueues:
    """The enqueues of one event loop."""

    def __init__(self, wire: RedisWire, listener: RedisListener) -> None:
        self._wire = wire
        self._listener = listener
        self._calls = 0  # calls that have no reply yet
        self._specs = 0  # the specs in these calls
        self._waiting: list[_Waiting] = []
        self._soon: asyncio.Handle | None = None  # sends what waits, after the callers that are about to run
        self._timer: asyncio.TimerHandle | None = None  # runs while callers wait
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, specs: Sequence[Spec]) -> int:
        """Enqueue the specs and return the seq of the first; the others follow.

        Return NOT_APPLICABLE if the fast path does not apply. Nothing has changed then.
        """
        if len(specs) > 1 or not specs[0].token:
            first = await self._send(specs)
            return first if isinstance(first, int) else NOT_APPLICABLE
        if self._calls or self._waiting:
            return await self._join(specs[0])
        self._calls += 1
        self._specs += 1
        try:
            first = await self._send(specs, in_order=True)
        finally:
            self._replied(1)
        return first if isinstance(first, int) else NOT_APPLICABLE

    def _join(self, spec: Spec) -> asyncio.Future[int]:
        loop = asyncio.get_running_loop()
        seq: asyncio.Future[int] = loop.create_future()
        self._waiting.append(_Waiting(spec, seq))
        if self._soon is None and self._calls < _MOST_CALLS:
            self._soon = loop.call_soon(self._send_waiting)
        if self._timer is None:
            self._timer = loop.call_later(_LONGEST_WAIT, self._send_late)
        return seq

    def _replied(self, specs: int) -> None:
        self._calls -= 1
        self._specs -= specs
        if self._waiting and self._soon is None:  # after the callers that this reply wakes: they may enqueue more
            self._soon = asyncio.get_running_loop().call_soon(self._send_waiting)

    def _send_waiting(self) -> None:
        self._soon = None
        while self._calls < _MOST_CALLS and self._waiting:
            self._send_next(max(_SMALL, (len(self._waiting) + self._specs + 1) // 2))
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_late(self) -> None:
        """Send everything that waits, although earlier calls have no reply yet."""
        self._timer = None
        while self._waiting:
            self._send_next(_MOST_SHARED)

    def _send_next(self, most: int) -> None:
        """Send the next call in a task of its own: no caller may end it for the others."""
        calls = self._next_calls(most)
        if calls:
            self._calls += 1
            self._specs += len(calls)
            task = asyncio.create_task(self._send_together(calls), name="millrace-redis-enqueue")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_calls(self, most: int) -> list[_Waiting]:
        """Return the next specs to send together, without those whose callers have stopped waiting.

        Specs with the same id or key are sent one after the other.
        """
        taken: list[_Waiting] = []
        left: list[_Waiting] = []
        names: set[str | tuple[str, str]] = set()
        most, size = min(most, _MOST_SHARED), 0
        for number, one in enumerate(self._waiting):
            spec = one.spec
            if len(taken) == most or (taken and size + len(spec.payload) > _MOST_BYTES):
                left += self._waiting[number:]
                break
            if one.seq.done():
                continue
            key = spec.id if spec.key is None else (spec.queue, spec.key)
            if spec.id in names or key in names:
                left.append(one)
                continue
            names.update((spec.id, key))
            size += len(spec.payload)
            taken.append(one)
        self._waiting = left
        return taken

    async def _send_together(self, calls: Sequence[_Waiting]) -> None:
        left = calls
        try:
            for _ in range(_MOST_ATTEMPTS):
                first = await self._send([call.spec for call in left], in_order=True)
                if isinstance(first, int):
                    _answer(left, first)
                    left = []
                    break
                refused = set(first)
                _answer([left[number] for number in refused], None)
                left = [call for number, call in enumerate(left) if number not in refused]
                if not left:
                    break
            _answer(left, None)
        except asyncio.CancelledError:  # the event loop is ending
            for call in left:
                call.seq.cancel()
            raise
        except Exception as error:
            for call in left:
                if not call.seq.done():
                    call.seq.set_exception(error)
        finally:
            self._replied(len(calls))

    async def _send(self, specs: Sequence[Spec], *, in_order: bool = False) -> int | list[int]:
        """Enqueue the specs and return the seq of the first.

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
        first: int | list[int]
        if all(spec.token for spec in specs):  # then a repeated call is recognized by its tokens
            first = await self._wire.ask(name, arguments, bodies, durable=True, in_order=in_order)
        else:
            first = await self._wire.change(name, arguments, bodies)
        if first == NOT_APPLICABLE:
            return [0]
        if not isinstance(first, int):
            return [position - 1 for position in first]
        self._listener.registered.update(watched)
        return first


def _watch(name: str, arguments: list[Any], watch: list[Any]) -> None:
    """Add a watch to the arguments of a script: the ids to watch, for whom, and how long."""
    if name == "fast_path/enqueue_one":
        arguments += watch[1:]
    else:
        arguments[1] = watch


def _not_simple(specs: Sequence[Spec]) -> list[int]:
    """Return the indexes of the specs with links, for which the fast path does not apply; all if none has links."""
    return [number for number, spec in enumerate(specs) if not is_simple(spec)] or list(range(len(specs)))


def _answer(calls: Sequence[_Waiting], first: int | None) -> None:
    """Give each caller its seq, or NOT_APPLICABLE if `first` is None."""
    for number, call in enumerate(calls):
        if not call.seq.done():
            call.seq.set_result(NOT_APPLICABLE if first is None else first + number)
