"""The heartbeat: keeps a worker's leases and its record alive, whatever user code does.

A handler may block the event loop for as long as its timeout allows, so in production the heartbeat is a thread
with its own event loop and its own way to the store. It lets go of a lease once the attempt's timeout and grace
are over: a handler that blocks the loop past its timeout loses its job. And when the store does not answer, it
aborts the handlers before the store may give their jobs to somebody else (BL-03, BL-10).

The heartbeat is a port: a simulation hands in `InlineHeartbeat`, a task on the worker's own (virtual) loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from millrace.domain.request import Extension, Receipt, WorkerInfo
from millrace.runtime.hold import Abort, Hold, Holds
from millrace.runtime.polling import Backoff, Chance
from millrace.store.protocol import Store

BEATS_PER_LEASE = 3
TTL_BEATS = 2.4  # a dead worker's record is over before its leases are: the reaper can tell it from a stalled one
STOP_WAIT = 2.0


class Pulse:
    """What a heartbeat does, on whichever loop. `abort`, `info` and `failed` may be called from its thread."""

    def __init__(
        self,
        holds: Holds,
        info: Callable[[], WorkerInfo],
        abort: Callable[[Hold, Abort], None],
        failed: Callable[[Exception], None],
        *,
        lease: float,
        interval: float | None,
        chance: Chance,
    ) -> None:
        self._holds = holds
        self._info = info
        self._abort = abort
        self._failed = failed
        self._lease = lease  # seconds; what a job has that does not say otherwise
        self._fixed = math.inf if interval is None else interval
        self._chance = chance
        self._pace = 0.0
        self.beats = 0

    def too_slow_for(self, length: float) -> bool:
        """Would a lease of this length, taken just now, run out before a third beat?"""
        return length < self._pace

    def _interval(self) -> float:
        """Seconds between beats: a third of the shortest lease there is. Whoever adds a shorter one while this
        looks at them is told to hurry, since the pace is infinite until it is known."""
        self._pace = math.inf
        self._pace = min([self._lease, *(hold.length for hold in list(self._holds.values()))])
        return min(self._fixed, self._pace / BEATS_PER_LEASE)

    async def go_on(self, store: Callable[[], Awaitable[Store]], hurry: asyncio.Event) -> None:
        """Beat until cancelled. `hurry` is set when a lease has come that needs an earlier beat."""
        backoff = Backoff(0.05, 1.0, self._chance)
        while True:
            try:
                async with asyncio.timeout(self._patience()):
                    await self.beat(await store())
                backoff.reset()
                wait = self._interval() * (0.9 + 0.1 * self._chance())
            except Exception as error:
                self._failed(error)
                wait = backoff.next()
            self.watch()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait, self._until_watch())):
                    await hurry.wait()
            hurry.clear()

    async def beat(self, store: Store) -> None:
        """Extend every lease in one call, then tell the store that this worker lives."""
        now = asyncio.get_running_loop().time()
        holds = [hold for hold in list(self._holds.values()) if now < hold.extend_until]  # list(): one step, no lock
        if holds:
            asked = [Extension(hold.lease, round(hold.length * 1000), hold.progress) for hold in holds]
            receipts = await store.extend(asked)
            for hold, extension, receipt in zip(holds, asked, receipts, strict=True):
                self._apply(hold, extension, receipt, now)
        await store.beat(self._info(), max(1, round(self._interval() * TTL_BEATS * 1000)))
        self.beats += 1

    def _apply(self, hold: Hold, extension: Extension, receipt: Receipt, sent: float) -> None:
        if receipt is Receipt.LOST:
            self._end(hold, Abort.LOST)
            return
        hold.until = sent + hold.length
        if hold.progress is extension.progress:
            hold.progress = None
        if receipt is Receipt.CANCELLING:
            self._end(hold, Abort.CANCEL)

    def watch(self) -> None:
        """Abort what could not be extended for almost a whole lease."""
        now = asyncio.get_running_loop().time()
        for hold in self._watched():
            if hold.abort_at <= now:
                self._end(hold, Abort.SILENT)

    def _end(self, hold: Hold, why: Abort) -> None:
        if not hold.ended and not hold.completing:  # else its settle is on the way, and its receipt will tell
            hold.signal(why)  # at once, for a thread: the worker's own loop may be blocked
            hold.given_up = hold.given_up or why is not Abort.CANCEL
            self._abort(hold, why)

    def _watched(self) -> list[Hold]:
        held = list(self._holds.values())
        return [hold for hold in held if not (hold.ended or hold.given_up or hold.completing)]

    def _until_watch(self) -> float:
        """Seconds until a lease that nobody extends has to be given up."""
        now = asyncio.get_running_loop().time()
        return max(0.005, min((hold.abort_at - now for hold in self._watched()), default=60.0))

    def _patience(self) -> float:
        return max(0.05, min(self._until_watch(), self._lease))


class Heartbeat(Protocol):
    async def start(self) -> None: ...
    def hurry(self) -> None: ...
    async def stop(self) -> None: ...


class HeartbeatPort(Protocol):
    """How a worker makes its heartbeat."""

    def __call__(self, pulse: Pulse, store: Store) -> Heartbeat: ...


class InlineHeartbeat:
    """A task on the worker's own loop: deterministic under a virtual clock, but user code can block it."""

    def __init__(self, pulse: Pulse, store: Store) -> None:
        self._pulse = pulse
        self._store = store
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._pulse.go_on(self._opened, self._hurry))

    async def _opened(self) -> Store:
        return self._store

    def hurry(self) -> None:
        self._hurry.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


class ThreadHeartbeat:
    """A daemon thread with its own event loop, so that nothing a handler does to the worker's loop can stop it."""

    def __init__(self, pulse: Pulse, store: Store) -> None:
        self._pulse = pulse
        self._home = store
        self._store: Store | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="millrace-heartbeat", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hurry: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] | None = None
        self._caller: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self._caller = asyncio.get_running_loop()
        self._over = self._caller.create_future()
        self._thread.start()
        self._ready.wait()  # microseconds: until its loop exists

    def hurry(self) -> None:
        if self._loop is not None and self._hurry is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._hurry.set)

    async def stop(self) -> None:
        """Bounded: a store that hangs must not keep a worker from stopping."""
        if self._loop is None or self._task is None or self._over is None:
            return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._task.cancel)
        await asyncio.wait([self._over], timeout=STOP_WAIT)

    def _main(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                asyncio.run(self._beat())
        finally:
            with suppress(RuntimeError):  # the worker's loop may be closed by now
                assert self._caller is not None
                self._caller.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def _beat(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._hurry = asyncio.Event()
        self._task = asyncio.current_task()
        self._ready.set()
        try:
            await self._pulse.go_on(self._opened, self._hurry)
        finally:
            if self._store is not None and self._store is not self._home:
                await self._store.close()

    async def _opened(self) -> Store:
        if self._store is None:
            store = self._home.beside()
            if store is not self._home:
                await store.connect()
            self._store = store
        return self._store
