"""Enqueues of one event loop that share calls to the server.

While the enqueue of one caller is on its way, those of other callers are collected and sent together: one round trip
and one commit for all of them. Two calls may be on their way: the server works on one while this process prepares the
other. Callers do not affect each other: a spec that needs more than the fast path is sent alone, and so are all specs
of a call that would have to wait for a lock. A caller waits only for a short time for the reply to others, which may
take as long as a failover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from millrace.domain.errors import StoreError
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued

_MOST_CALLS = 2  # on their way, unless their replies take long
_MOST_SPECS = 1_000  # in one call
_MOST_BYTES = 4 << 20  # of payloads in one call
_LONGEST_WAIT = 0.05  # seconds


class _Waiting(NamedTuple):
    spec: Spec
    enqueued: asyncio.Future[Enqueued]


class SharedEnqueues:
    """Collects the enqueues of concurrent callers.

    `alone` enqueues one spec. `together` enqueues several, which differ in their ids and keys. It returns an answer for
    each of them, or None for a spec that must be enqueued alone.
    """

    def __init__(
        self,
        alone: Callable[[Spec], Awaitable[Enqueued]],
        together: Callable[[Sequence[Spec]], Awaitable[Sequence[Enqueued | None]]],
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
        shared = self._next_call()
        if shared:
            self._calls += 1
            task = asyncio.create_task(self._send_together(shared), name="millrace-shared-enqueue")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_call(self) -> list[_Waiting]:
        """Return the next specs to send together, without those whose callers have stopped waiting.

        Of several specs with the same id or key, the first is sent. The others have to wait for the next call.
        """
        taken: list[_Waiting] = []
        left: list[_Waiting] = []
        names: set[str | tuple[str, str]] = set()
        size = 0
        for number, one in enumerate(self._waiting):
            spec = one.spec
            if len(taken) == _MOST_SPECS or (taken and size + len(spec.payload) > _MOST_BYTES):
                left += self._waiting[number:]
                break
            if one.enqueued.done():
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

    async def _send_together(self, shared: Sequence[_Waiting]) -> None:
        try:
            if len(shared) == 1:
                await self._send_alone(shared[0])
                return
            answers = await self._together([one.spec for one in shared])
            refused: list[_Waiting] = []
            for one, enqueued in zip(shared, answers, strict=True):
                if enqueued is None:
                    refused.append(one)
                else:
                    _answer(one, enqueued)
            await asyncio.gather(*map(self._send_alone, refused))
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
