"""The lookout: notices that a caller's transaction has committed, so that who waits for its jobs hears of them.

A commit on somebody else's connection tells us nothing. For a while after a step inside one, a thread looks at the
file's version, often at first and then at leisure: microseconds each time. It is a hint: when the transaction takes
longer than the lookout stays, or this process dies, the poll of the workers finds the jobs.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable

from millrace.store.sqlite.connection import open_reader
from millrace.store.sqlite.io import Io
from millrace.store.sqlite.sql import SQL

News = tuple[Counter[str], list[str], list[tuple[str, str]]]

FIRST_LOOK = 0.0005  # seconds
LAST_LOOK = 0.025
SLOWER = 1.25
STAY = 60.0  # so long after a step its commit is looked for
LINGER = 2.0  # so long the thread and its connection are kept for the next


class Awaited:
    """A step in a transaction that may still be open."""

    __slots__ = ("committed", "cursor", "news", "until")

    def __init__(self, cursor: int, news: News) -> None:
        self.cursor = cursor  # of its last event: whoever sees a newer one knows that its transaction is over
        self.news = news
        self.until = time.monotonic() + STAY
        self.committed = False

    @property
    def open(self) -> bool:
        """As far as can be known."""
        return not self.committed and time.monotonic() < self.until


class Lookout:
    def __init__(self, path: str, io: Io, announce: Callable[[News], None]) -> None:
        self._path = path
        self._io = io
        self._announce = announce
        self._change = threading.Condition()
        self._awaited: list[Awaited] = []
        self._fresh = False
        self._ending = False
        self._thread: threading.Thread | None = None

    def expect(self, step: Awaited) -> None:
        with self._change:
            self._awaited.append(step)
            self._fresh = True
            if self._thread is not None:
                self._change.notify()
            elif not self._ending:
                self._start()

    def rest(self) -> None:
        """End the thread and let go of its connection; what is awaited is kept for `resume`."""
        with self._change:
            self._ending = True
            thread = self._thread
            self._change.notify()
        if thread is not None:
            thread.join()

    def resume(self) -> None:
        with self._change:
            self._ending = False
            if self._awaited and self._thread is None:
                self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._main, name="millrace-sqlite-lookout", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            connection = open_reader(self._path, self._io)
            try:
                while self._pause():
                    self._look(connection)
            finally:
                self._io.close(connection)
        except sqlite3.Error:  # the poll behind it finds the jobs
            with self._change:
                self._awaited, self._thread = [], None

    def _pause(self) -> bool:
        """Until it is time to look; False when it is time to end."""
        with self._change:
            if not self._awaited and not self._ending:
                self._change.wait(LINGER)
            elif not self._fresh and not self._ending:
                self._change.wait(self._rest_for)
                self._rest_for = min(LAST_LOOK, self._rest_for * SLOWER)
            if self._fresh:
                self._fresh = False
                self._rest_for = FIRST_LOOK
                self._version = -1
            if self._ending or not self._awaited:
                self._thread = None
                return False
            return True

    def _look(self, connection: sqlite3.Connection) -> None:
        newest = -1
        with contextlib.suppress(sqlite3.OperationalError):  # busy: look again, but no longer than it stays
            version: int = self._io.execute(connection, "PRAGMA data_version")[0][0]
            if version != self._version:
                newest = self._io.execute(connection, SQL["newest_event"])[0][0]
                self._version = version
        now = time.monotonic()
        with self._change:
            over = [step for step in self._awaited if step.cursor <= newest]
            self._awaited = [step for step in self._awaited if step.cursor > newest and now < step.until]
        for step in over:
            step.committed = True
            self._announce(step.news)

    _rest_for = FIRST_LOOK
    _version = -1
