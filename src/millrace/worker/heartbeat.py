"""The heartbeat: runs the `LeaseKeeper`, which extends leases, in a thread or on the worker's loop.

A handler may block the event loop for as long as its timeout allows. In production the heartbeat is therefore a thread
with its own event loop and its own connection to the store. It stops extending a lease when the timeout and the grace
period of the run are over, so a handler that blocks the loop for longer loses its lease. If the store does not answer,
the heartbeat aborts each run before its lease expires.

The heartbeat is a parameter of the worker: simulations pass `InlineHeartbeat`, a task on the worker's own loop.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Protocol

from millrace.store.protocol import Store
from millrace.worker.leases import LeaseKeeper

STOP_TIMEOUT = 2.0


class Heartbeat(Protocol):
    async def start(self) -> None: ...
    def hurry(self) -> None:
        """Extend the leases and write the worker's record now, without waiting for the interval."""
        ...

    def write_progress(self) -> None:
        """Request that new progress is written soon. Can be called from any thread."""
        ...

    async def stop(self) -> None: ...


class HeartbeatPort(Protocol):
    """A function, or class, that creates the heartbeat of a worker."""

    def __call__(self, leases: LeaseKeeper, store: Store) -> Heartbeat: ...


class InlineHeartbeat:
    """A heartbeat on the worker's own loop: deterministic under a virtual clock, but a handler can block it."""

    def __init__(self, leases: LeaseKeeper, store: Store) -> None:
        self._leases = leases
        self._store = store
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        self._task = asyncio.create_task(self._leases.run(self._connected, self._wake))

    async def _connected(self) -> Store:
        return self._store

    def hurry(self) -> None:
        self._leases.request_beat()
        self._wake.set()

    def write_progress(self) -> None:
        if self._leases.request_write():
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake.set)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


class ThreadHeartbeat:
    """A heartbeat in a daemon thread with its own loop: a handler that blocks the worker's loop cannot stop it."""

    def __init__(self, leases: LeaseKeeper, store: Store) -> None:
        self._leases = leases
        self._worker_store = store
        self._store: Store | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="millrace-heartbeat", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._worker_loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._worker_loop.create_future()

    async def start(self) -> None:
        self._thread.start()
        self._ready.wait()  # microseconds: until its loop exists

    def hurry(self) -> None:
        self._leases.request_beat()
        self._wake_up()

    def write_progress(self) -> None:
        if self._leases.request_write():
            self._wake_up()

    def _wake_up(self) -> None:
        if self._loop is not None and self._wake is not None:
            with suppress(RuntimeError):  # its loop is closed
                self._loop.call_soon_threadsafe(self._wake.set)

    async def stop(self) -> None:
        """Stop the thread. Waits for at most STOP_TIMEOUT, so that a store that hangs does not delay the shutdown."""
        if self._loop is None or self._task is None:
            return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._task.cancel)
        await asyncio.wait([self._ended], timeout=STOP_TIMEOUT)

    # ── in its thread ─────────────────────────────────────────────────────────────────────────

    def _main(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                asyncio.run(self._run())
        finally:
            with suppress(RuntimeError):  # the worker's loop may be closed
                self._worker_loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._task = asyncio.current_task()
        self._ready.set()
        try:
            await self._leases.run(self._connected, self._wake)
        finally:
            if self._store is not None and self._store is not self._worker_store:
                await self._store.close()

    async def _connected(self) -> Store:
        """Return the store with connections for this thread's loop. Connects at the first call."""
        if self._store is None:
            store = self._worker_store.for_loop()
            if store is not self._worker_store:
                await store.connect()
            self._store = store
        return self._store
