"""The background event loop of the blocking API: one daemon thread per process.

The first call that needs the loop starts it; it stops at exit. A forked child starts its own loop.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from millrace.domain.errors import InvalidInput
from millrace.store.caller import acting_for
from millrace.store.forks import register_for_forks

T = TypeVar("T")

EXIT_WAIT = 5.0  # seconds; a call that hangs must not keep the interpreter from exiting


class Background:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._abandoned: list[asyncio.AbstractEventLoop] = []
        self._at_exit: dict[int, Callable[[], None]] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._over: asyncio.Event | None = None
        register_for_forks(self)
        atexit.register(self.stop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the background loop and return its result. An interrupt (Ctrl-C) cancels the coroutine.

        Raises InvalidInput if the calling thread runs an event loop.
        """
        try:
            refuse_running_loop()
        except InvalidInput:
            coroutine.close()
            raise
        token = acting_for.set(threading.get_ident())
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop or self._start())
        finally:
            acting_for.reset(token)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def before_exit(self, key: int, close: Callable[[], None] | None) -> None:
        """Register a function to call at exit, before the loop stops. None removes the function of this key."""
        if close is None:
            self._at_exit.pop(key, None)
        else:
            self._at_exit[key] = close

    def stop(self) -> None:
        for close in list(self._at_exit.values()):
            with suppress(Exception):  # at exit there is no caller to raise to
                close()
        self._at_exit.clear()
        with self._lock:
            loop, self.loop = self.loop, None
            over, thread = self._over, self._thread
        if loop is not None and over is not None and thread is not None:
            loop.call_soon_threadsafe(over.set)
            thread.join(EXIT_WAIT)

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self.loop is None:
                ready = threading.Event()
                self._thread = threading.Thread(target=self._main, args=(ready,), name="millrace-sync", daemon=True)
                self._thread.start()
                ready.wait()
            assert self.loop is not None
            return self.loop

    def _main(self, ready: threading.Event) -> None:
        async def until_over() -> None:
            self.loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            over = self._over
            ready.set()
            await over.wait()

        asyncio.run(until_over())

    # ── forks ─────────────────────────────────────────────────────────────────────────────────

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child and self.loop is not None:
            # Never closed: closing it would remove its wake-up from a selector that the parent shares.
            self._abandoned.append(self.loop)
            self.loop = self._thread = self._over = None
            self._at_exit.clear()
        self._lock.release()


def refuse_running_loop() -> None:
    """Raise InvalidInput if this thread runs an event loop: a blocking call would block that loop."""
    if asyncio._get_running_loop() is not None:
        raise InvalidInput(
            "app.sync and task.sync block, and this thread runs an event loop: use await instead, "
            "for example `await task.enqueue(…)`"
        )


background = Background()
