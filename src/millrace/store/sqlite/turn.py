"""Whose turn it is to write: a file lock taken before SQLite's own, so that processes hand over promptly.

SQLite itself makes a writer poll for its lock; the kernel wakes who waits for a file lock. SQLite's lock is still what
keeps the file sound: this one only decides who asks for it next.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from millrace.store.sqlite.io import Io

DEADLINE = 30.0  # seconds; a call that could not begin by then is given up
_LOOK = 0.5
_QUIET = 60  # looks without anybody waiting, after which nobody looks any more


class Turn:
    """`stuck` is called from another thread, with a sentence that says who holds the lock, after the deadline."""

    def __init__(self, path: str, io: Io, stuck: Callable[[str], None], deadline: float = DEADLINE) -> None:
        self._path = path
        self._io = io
        self._stuck = stuck
        self._deadline = deadline
        self._file = self._open()
        self._holder_known = False
        self._since: float | None = None
        self._closed = threading.Event()
        self._guard = threading.Lock()
        self._watchdog: threading.Thread | None = None

    def take(self) -> None:
        if not self._io.try_lock(self._file):
            self._since = time.monotonic()
            self._have_watched()
            try:
                self._io.lock(self._file)
            finally:
                self._since = None
            self._holder_known = False
        if not self._holder_known:  # of use only to others who wait, so once is enough until somebody else had it
            os.pwrite(self._file, b"%-10d" % os.getpid(), 0)
            self._holder_known = True

    def take_if_free(self) -> bool:
        return self._io.try_lock(self._file)

    def give(self) -> None:
        try:
            self._io.unlock(self._file)
        except OSError:
            os.close(self._file)  # closing lets go of the lock, whatever the system thinks of it
            self._file = self._open()
            self._holder_known = False

    def _open(self) -> int:
        return os.open(self._path + "-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        self._closed.set()
        if self._watchdog is not None:
            self._watchdog.join()
        os.close(self._file)

    def _have_watched(self) -> None:
        with self._guard:
            if self._watchdog is None:
                self._watchdog = threading.Thread(target=self._watch, name="millrace-sqlite-turn", daemon=True)
                self._watchdog.start()

    def _watch(self) -> None:
        quiet = 0
        while not self._closed.wait(_LOOK):
            since = self._since
            quiet = quiet + 1 if since is None else 0
            with self._guard:
                if quiet > _QUIET and self._since is None:
                    self._watchdog = None
                    return
            if since is not None and time.monotonic() - since > self._deadline:
                self._stuck(
                    f"{self._path}: process {self._holder()} has kept the database locked for over "
                    f"{self._deadline:.0f} s. Nothing of this call was written; see whether that process is stopped."
                )

    def _holder(self) -> str:
        return os.pread(self._file, 10, 0).decode("ascii", "replace").strip() or "unknown"
