"""The writer: one thread and one connection per process, and one commit for all calls that wait.

A call that is refused leaves no trace and does not disturb the others. Nearly always it was refused before it changed
anything; else the whole transaction is rolled back and its calls run again one by one, so that only the culprit fails.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Any

from millrace.domain.errors import QueueError, StoreError
from millrace.domain.ledger import Ledger
from millrace.store.clock import Clock
from millrace.store.sqlite.connection import BUSY_MS, check, open_writer, patiently
from millrace.store.sqlite.file import make_file, migrate
from millrace.store.sqlite.io import Io
from millrace.store.sqlite.tables import SqliteTables
from millrace.store.sqlite.thread import Call, CallThread, answer_all, fail_all
from millrace.store.sqlite.trouble import store_error
from millrace.store.sqlite.turn import Turn

SOON = 5_000  # ms; who waits looks again at least this often, so a job due later need not wake anybody now
IDLE = 0.5  # seconds without a call until the log is written back
SMALL_LOG = 1 << 20

News = Callable[[Counter[str], list[str], list[tuple[str, str]]], None]


class _Spoiled(Exception):
    """A call failed after it had changed something."""


class Writer(CallThread):
    """`enter` says that this process has the file open now, and answers whether it is the only one; `prepare` fits
    the tables out before the first call; `announce` is told what every commit made possible."""

    def __init__(
        self,
        path: str,
        io: Io,
        clock: Clock,
        *,
        durability: str,
        shared: bool,
        prepare: Callable[[SqliteTables], None],
        announce: News,
        enter: Callable[[], bool],
        leave: Callable[[], None],
    ) -> None:
        super().__init__("millrace-sqlite-writer", IDLE)
        self._path = path
        self._io = io
        self._clock = clock
        self._durability = durability
        self._shared = shared
        self._prepare = prepare
        self._announce = announce
        self._enter = enter
        self._leave = leave
        self._in_hand: list[Call[Any]] = []

    def open(self) -> None:
        with contextlib.ExitStack() as undo:
            try:
                self._open(undo)
            except sqlite3.Error as error:
                raise store_error(error, self._path) from error
            except OSError as error:
                raise StoreError(f"{self._path}: {error.strerror or error}") from error
            undo.pop_all()

    def _open(self, undo: contextlib.ExitStack) -> None:
        make_file(self._path, self._io)
        alone = self._enter()
        undo.callback(self._leave)
        crashed = alone and _log_size(self._path) > 0
        self._turn = Turn(self._path, self._io, self._stuck)
        undo.callback(self._turn.close)
        self._connection = open_writer(self._path, self._io, self._durability)
        undo.callback(self._io.close, self._connection)
        patiently(lambda: migrate(self._connection, self._io, self._path, shared=self._shared))
        if crashed and (wrong := check(self._connection, self._io, self._path, thorough=False)):
            raise StoreError(
                f"{self._path} is damaged: {wrong[0]}. Copy it, and recover it with: sqlite3 FILE .recover"
            )
        self._synced = self._durability == "full"
        self._tables = SqliteTables(self._connection, self._io)
        self._prepare(self._tables)
        self._ledger = Ledger(self._tables)

    def shut(self) -> None:
        with contextlib.suppress(sqlite3.Error, OSError):
            self._write_log_back()
        with contextlib.suppress(sqlite3.Error):
            self._io.close(self._connection)
        self._turn.close()

    def idle(self) -> None:
        with contextlib.suppress(sqlite3.Error, OSError):
            self._write_log_back()

    def _write_log_back(self) -> None:
        """Empty the log, unless somebody else is at work: then they will."""
        if not (_log_size(self._path) > SMALL_LOG or self._closing) or not self._turn.take_if_free():
            return
        try:
            self._io.execute(self._connection, "PRAGMA busy_timeout = 0")
            self._io.execute(self._connection, "PRAGMA wal_checkpoint(TRUNCATE)")
            self._io.execute(self._connection, f"PRAGMA busy_timeout = {BUSY_MS}")
        finally:
            self._turn.give()

    def _stuck(self, reason: str) -> None:
        """Another process does not give the lock back: nobody is kept waiting for ever."""
        fail_all(self._drop_in_hand(), StoreError(reason))
        self.give_up(reason)

    def _drop_in_hand(self) -> list[Call[Any]]:
        with self._wakeup:
            calls, self._in_hand = self._in_hand, []
        return calls

    # ── transactions ──────────────────────────────────────────────────────────────────────────

    def serve(self) -> None:
        self._in_hand = self.take()
        if not self._in_hand:
            return
        try:
            self._turn.take()
        except OSError as error:  # no lock is to be had: nothing of these calls was begun
            fail_all(self._drop_in_hand(), StoreError(f"{self._path} cannot be locked: {error.strerror or error}"))
            return
        try:
            calls = self._drop_in_hand()
            try:
                self._commit(calls)
            except _Spoiled:
                for call in calls:
                    self._commit_alone(call)
        finally:
            with contextlib.suppress(OSError):  # still ours then, and taken again by the next commit
                self._turn.give()
        self._announce(*self._tables.take_news())
        answer_all(calls)

    def _commit_alone(self, call: Call[Any]) -> None:
        try:
            self._commit([call], alone=True)
        except _Spoiled as spoiled:
            call.error = spoiled.__cause__

    def _commit(self, calls: list[Call[Any]], *, alone: bool = False) -> None:
        """All calls in one transaction. Whoever is refused without having changed anything has its error."""
        tables = self._tables
        try:
            self._sync_if(any(call.durable for call in calls))
            patiently(lambda: self._io.begin(self._connection))
            tables.refresh()
            for call in calls:
                self._run(call)
            tables.flush()
            self._io.commit(self._connection)
            tables.ease()
        except _Spoiled:
            self._roll_back()
            raise
        except sqlite3.Error as error:
            self._roll_back()
            fail_all_here(calls, store_error(error, self._path))
        except BaseException as error:  # a defect of ours, while writing back: whose call it was cannot be told
            self._roll_back()
            if alone or len(calls) == 1:
                fail_all_here(calls, error)
            else:
                raise _Spoiled from error

    def _sync_if(self, durable: bool) -> None:
        """A claim that a crash of the machine undoes leaves a job that waits; nobody need wait for the disk for it."""
        wanted = durable and self._durability == "full"
        if wanted != self._synced:
            self._io.execute(self._connection, f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")
            self._synced = wanted

    def _run(self, call: Call[Any]) -> None:
        if call.future.cancelled():  # meanwhile: nobody would hear the answer
            return
        now = self._clock()
        self._tables.touched = False
        self._tables.soon = now + SOON
        try:
            call.result = call.run(self._ledger, now)
        except sqlite3.Error:
            raise
        except QueueError as error:
            if self._tables.touched:
                raise _Spoiled from error
            call.error = error
        except Exception as error:
            raise _Spoiled from error

    def _roll_back(self) -> None:
        self._tables.forget()
        self._tables.take_news()
        with contextlib.suppress(sqlite3.Error):
            self._io.rollback(self._connection)


def fail_all_here(calls: list[Call[Any]], error: BaseException) -> None:
    """Note the error; the answers go out with those of the whole batch."""
    for call in calls:
        call.result, call.error = None, error


def _log_size(path: str) -> int:
    try:
        return os.path.getsize(path + "-wal")
    except OSError:
        return 0
