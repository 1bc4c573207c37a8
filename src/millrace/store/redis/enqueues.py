"""Sends enqueues that are on the fast path. Callers that enqueue at the same time share a call.

While the enqueue of one caller is on its way, those of other callers of the same event loop are collected. They are
sent together as soon as it has a reply. An enqueue on the fast path cannot be refused, so the callers do not affect
each other. If the fast path does not apply to all of them, each caller enqueues its own specs by the general script.
Nobody waits long for the reply to another caller, which may take as long as a failover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from millrace.domain.job import Spec
from millrace.store.redis.fast_enqueue import packed_groups, packed_one
from millrace.store.redis.waiting import WATCHED, RedisListener
from millrace.store.redis.wire import RedisWire

NOT_APPLICABLE = -1
_MOST_SHARED = 1_000  # specs in a shared call
_MOST_BYTES = 4 << 20  # payload bytes in a shared call
_LONGEST_WAIT = 0.05  # seconds for which a caller waits for the reply to another one


class _Waiting(NamedTuple):
    specs: Sequence[Spec]
    first: asyncio.Future[int]


class FastEnqueues:
    """The enqueues of one event loop."""

    def __init__(self, wire: RedisWire, listener: RedisListener) -> None:
        self._wire = wire
        self._listener = listener
        self._sending = 0  # calls that have no reply yet
        self._waiting: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None  # runs while callers wait
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, specs: Sequence[Spec]) -> int:
        """Enqueue the specs and return the seq of the first; the others follow.

        Return NOT_APPLICABLE if the fast path does not apply. Nothing has changed then.
        """
        if len(specs) > 1 or not specs[0].token:
            return await self._send(specs)
        if self._sending:
            loop = asyncio.get_running_loop()
            waiting = _Waiting(specs, loop.create_future())
            self._waiting.append(waiting)
            if self._timer is None:
                self._timer = loop.call_later(_LONGEST_WAIT, self._send_waiting)
            return await waiting.first
        self._sending += 1
        try:
            return await self._send(specs)
        finally:
            self._replied()

    def _replied(self) -> None:
        self._sending -= 1
        if self._waiting:
            self._send_waiting()

    def _send_waiting(self) -> None:
        """Send what callers have added meanwhile, in tasks of their own: no caller may end them for the others."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while calls := self._next_calls():
            self._sending += 1
            task = asyncio.create_task(self._send_together(calls), name="millrace-redis-enqueue")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_calls(self) -> list[_Waiting]:
        """Return the next calls to send together, without those whose callers have stopped waiting."""
        waiting = [call for call in self._waiting if not call.first.done()]
        size = count = 0
        for call in waiting:
            size += len(call.specs[0].payload)
            if count and (count == _MOST_SHARED or size > _MOST_BYTES):
                break
            count += 1
        self._waiting = waiting[count:]
        return waiting[:count]

    async def _send_together(self, calls: Sequence[_Waiting]) -> None:
        try:
            first = await self._send([call.specs[0] for call in calls])
        except asyncio.CancelledError:  # the event loop is ending
            for call in calls:
                call.first.cancel()
            raise
        except Exception as error:
            for call in calls:
                if not call.first.done():
                    call.first.set_exception(error)
        else:
            for number, call in enumerate(calls):
                if not call.first.done():
                    call.first.set_result(first if first < 0 else first + number)
        finally:
            self._replied()

    async def _send(self, specs: Sequence[Spec]) -> int:
        bodies: list[bytes] = []
        watched = self._listener.unregistered([spec.id for spec in specs])
        if len(specs) == 1 and (one := packed_one(specs[0], bodies)) is not None:
            if watched:
                one += [self._listener.name, WATCHED]
            first = await self._wire.ask("fast_path/enqueue_one", one, bodies, durable=True)
        else:
            groups = packed_groups(specs, bodies)
            if groups is None:
                return NOT_APPLICABLE
            arguments = [groups, [watched, self._listener.name, WATCHED] if watched else None]
            if all(spec.token for spec in specs):  # then a repeated call is recognized by its tokens
                first = await self._wire.ask("fast_path/enqueue", arguments, bodies, durable=True)
            else:
                first = await self._wire.change("fast_path/enqueue", arguments, bodies)
        if first >= 0:
            self._listener.registered.update(watched)
        return int(first)
