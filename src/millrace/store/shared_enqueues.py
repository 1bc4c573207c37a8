"""Enqueues of one event loop that share calls to the server.

While the enqueue of one caller is on its way, those of other callers are collected and sent together: one round trip
and one commit for all of them. Callers do not affect each other: a shared call is given up if it would have to wait for
a lock, or if one spec needs more than the fast path. Each spec is sent alone then. A caller waits only for a short time
for the reply to others, which may take as long as a failover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from millrace.domain.errors import StoreError
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued

_MOST_CALLS = 2  # on their way: the server works on one while this process prepares the other
_MOST_SPECS = 1_000  # in one call
_MOST_BYTES = 4 << 20  # of payloads in one call
_LONGEST_WAIT = 0.05  # seconds


class _Waiting(NamedTuple):
    spec: Spec
    enqueued: asyncio.Future[Enqueued]


class SharedEnqueues:
    """Collects the enqueues of concurrent callers.

    `alone` enqueues one spec. `together` enqueues several, or returns None if they must be enqueued alone.
    """

    def __init__(
        self,
        alone: Callable[[Spec], Awaitable[Enqueued]],
        together: Callable[[Sequence[Spec]], Awaitable[list[Enqueued] | None]],
    ) -> None:
        self._alone = alone
        self._together = together
        self._calls = 0  # that have no reply yet
        self._waiting: list[_Waiting] = []
        self._soon: asyncio.Handle | None = None  # sends what waits, after the callers that are about to run
        self._late: asyncio.TimerHandle | None = None  # runs while callers wait
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, spec: Spec) -> Enqueued:
        if self._calls or self._waiting:
            return await self._join(spec)
        self._calls += 1
        try:
            return await self._alone(spec)
        finally:
            self._replied()

    def _join(self, spec: Spec) -> asyncio.Future[Enqueued]:
        loop = asyncio.get_running_loop()
        enqueued: asyncio.Future[Enqueued] = loop.create_future()
        self._waiting.append(_Waiting(spec, enqueued))
        if self._calls < _MOST_CALLS:
            self._send_soon()
        if self._late is None:
            self._late = loop.call_later(_LONGEST_WAIT, self._send_late)
        return enqueued

    def _replied(self) -> None:
        self._calls -= 1
        if self._waiting:
            self._send_soon()

    def _send_soon(self) -> None:
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._send_waiting)

    def _send_waiting(self) -> None:
        self._soon = None
        while self._waiting and self._calls < _MOST_CALLS:
            self._send_next()
        if not self._waiting and self._late is not None:
            self._late.cancel()
            self._late = None

    def _send_late(self) -> None:
        """Send everything that waits, although earlier calls have no reply yet."""
        self._late = None
        while self._waiting:
            self._send_next()

    def _send_next(self) -> None:
        """Send one call in a task of its own: a caller that is cancelled must not end it for the others."""
        size, waiting = 0, [one for one in self._waiting if not one.enqueued.done()]
        count = 0
        for count, one in enumerate(waiting, 1):
            size += len(one.spec.payload)
            if count == _MOST_SPECS or size >= _MOST_BYTES:
                break
        self._waiting = waiting[count:]
        if count:
            self._calls += 1
            task = asyncio.create_task(self._send_together(waiting[:count]), name="millrace-shared-enqueue")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_together(self, shared: Sequence[_Waiting]) -> None:
        try:
            answers = await self._together([one.spec for one in shared]) if len(shared) > 1 else None
            if answers is None:
                await asyncio.gather(*map(self._send_alone, shared))
            else:
                for one, enqueued in zip(shared, answers, strict=True):
                    _answer(one, enqueued)
        except asyncio.CancelledError:  # the event loop is ending
            for one in shared:
                one.enqueued.cancel()
            raise
        except Exception as error:
            for one in shared:
                _fail(one, StoreError(*error.args) if isinstance(error, StoreError) else error)
        finally:
            self._replied()

    async def _send_alone(self, one: _Waiting) -> None:
        try:
            _answer(one, await self._alone(one.spec))
        except Exception as error:
            _fail(one, error)


def _answer(one: _Waiting, enqueued: Enqueued) -> None:
    if not one.enqueued.done():
        one.enqueued.set_result(enqueued)


def _fail(one: _Waiting, error: Exception) -> None:
    if not one.enqueued.done():
        one.enqueued.set_exception(error)
