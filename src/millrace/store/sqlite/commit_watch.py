"""Detects the commit of a caller's transaction, so that workers are woken for the jobs in it.

SQLite does not report a commit on the caller's connection. So after a step in such a transaction, a thread polls the
data version of the file, frequently at first and then less often; each poll takes microseconds. The wake-up is only a
hint: if the transaction takes longer than `STAY` seconds, or this process dies, the workers find the jobs when they
poll.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable

from millrace.store.sql.ports import News
from millrace.store.sqlite.connection import SQL, Io
from millrace.store.sqlite.file import open_reader

FIRST_LOOK = 0.0005  # seconds
LAST_LOOK = 0.025
SLOWER = 1.25
STAY = 60.0  # seconds after a step during which its commit is watched for
LINGER = 2.0  # seconds that the idle thread and its connection are kept


class JoinedStep:
    """A step that ran in a caller's transaction. The transaction may still be open."""

    __slots__ = ("committed", "cursor", "news", "until")

    def __init__(self, cursor: int, news: News) -> None:
        self.cursor = cursor  # of its last event; once it is visible, the transaction has committed
        self.news = news
        self.until = time.monotonic() + STAY
        self.committed = False

    @property
    def open(self) -> bool:
        """Whether the transaction may still be open: no commit was seen, and `STAY` seconds have not passed yet."""
        return not self.committed and time.monotonic() < self.until


class CommitWatch:
    def __init__(self, path: str, io: Io, announce: Callable[..., None]) -> None:
        self._path = path
        self._io = io
        self._announce = announce
        self._change = threading.Condition()
        self._awaited: list[JoinedStep] = []
        self._fresh = False
        self._ending = False
        self._thread: threading.Thread | None = None

    def expect(self, step: JoinedStep) -> None:
        with self._change:
            self._awaited.append(step)
            self._fresh = True
            if self._thread is not None:
                self._change.notify()
            elif not self._ending:
                self._start()

    def suspend(self) -> None:
        """End the thread and close its connection. Steps whose commit is still awaited are kept for `resume`."""
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
        self._thread = threading.Thread(target=self._main, name="millrace-sqlite-commit-watch", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            connection = open_reader(self._path, self._io)
            try:
                while self._pause():
                    self._look(connection)
            finally:
                self._io.close(connection)
        except sqlite3.Error:  # the poll of the workers finds the jobs
            with self._change:
                self._awaited, self._thread = [], None

    def _pause(self) -> bool:
        """Wait until the next poll is due and return True; return False if the thread should end."""
        with self._change:
            if not self._awaited and not self._ending:
                self._change.wait(LINGER)
            elif not self._fresh and not self._ending:
                self._change.wait(self._interval)
                self._interval = min(LAST_LOOK, self._interval * SLOWER)
            if self._fresh:
                self._fresh = False
                self._interval = FIRST_LOOK
                self._version = -1
            if self._ending or not self._awaited:
                self._thread = None
                return False
            return True

    def _look(self, connection: sqlite3.Connection) -> None:
        newest = -1
        with contextlib.suppress(sqlite3.OperationalError):  # busy: poll again, until `STAY` is over
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
            self._announce(*step.news)

    _interval = FIRST_LOOK
    _version = -1
