"""A hint across processes: whoever changes objects touches one small file, and whoever waits looks at its time.

Watching the objects themselves would need a watch on every folder. The bell is one folder with a file per first part of
the keys (`ready`, `tasks`, …). It is looked at often, which is one system call, and with `watchfiles` installed the
operating system is asked to tell. Deletions do not ring: nobody waits for less. A missed ring costs the caller its
timeout, nothing more (BR-04).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec

from millrace.store.object.names import folder_name

QUICKEST, SLOWEST = 0.005, 0.1  # seconds between two looks


class Bell:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._stop = threading.Event()

    def ring(self, keys: Iterable[str]) -> None:
        """Called in the committer's thread after each batch."""
        now = time.time_ns()  # given, because the file system's own clock may stand still between two batches
        for first in {key.partition("/")[0] for key in keys}:
            path = f"{self._folder}/{folder_name(first)}"
            try:
                os.utime(path, ns=(now, now))
            except FileNotFoundError:
                with suppress(OSError):
                    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
                    os.utime(path, ns=(now, now))
            except OSError:
                continue  # a hint: the poll behind it serves
        self._wake()

    def mark(self, prefix: str) -> int:
        """The time of the last change under the first part of `prefix`, or under any when it is empty."""
        first = prefix.partition("/")[0]
        try:
            if not first:
                return max((entry.stat().st_mtime_ns for entry in os.scandir(self._folder)), default=0)
            return os.stat(f"{self._folder}/{folder_name(first)}").st_mtime_ns
        except FileNotFoundError:
            return 0

    async def wait(self, prefix: str, timeout: float, since: int | None) -> bool:
        start = self.mark(prefix) if since is None else since
        event = asyncio.Event()
        with self._lock:
            self._waiting[event] = asyncio.get_running_loop()
        self._watch()
        pause, deadline = QUICKEST, time.monotonic() + timeout
        try:
            while self.mark(prefix) == start:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(pause, left)):
                        await event.wait()
                event.clear()
                pause = min(SLOWEST, pause * 1.5)
            return True
        finally:
            with self._lock:
                self._waiting.pop(event, None)

    def _wake(self) -> None:
        with self._lock:
            for event, loop in self._waiting.items():
                with suppress(RuntimeError):  # a loop that was closed
                    loop.call_soon_threadsafe(event.set)

    def _watch(self) -> None:
        if self._watcher is None and find_spec("watchfiles") is not None:
            self._watcher = threading.Thread(target=self._listen, name="millrace-bell", daemon=True)
            self._watcher.start()

    def _listen(self) -> None:
        from watchfiles import watch

        # It looks every `step` ms itself: 10 cost 0.3 % of a core and told after 15 ms, 2 cost 0.9 % and told after 4.
        watching = watch(self._folder, watch_filter=None, debounce=20, step=10, stop_event=self._stop, recursive=False)
        with suppress(OSError, RuntimeError):  # no watches left on this system: looking often has to do
            for _ in watching:
                self._wake()

    def close(self) -> None:
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()
