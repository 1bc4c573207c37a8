"""The writer, which runs all waiting calls in one transaction, and the file lock that it holds during a commit.

It is a thread. If no call waits, a caller's own thread may run the transaction instead (`CallThread.run_here`), as long
as it need not wait for a lock. A commit waits for the disk, so event loops do this only while commits are quick.

A refused call changes nothing and does not affect the other calls. Most calls are refused before they change anything.
If a call fails after a change, the whole transaction is rolled back. After the rollback, the calls of this transaction
run again one by one, so that only the failing call fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from millrace.domain.errors import QueueError, StoreError
from millrace.domain.ledger import Ledger
from millrace.domain.tables import Place
from millrace.store.clock import Clock
from millrace.store.sqlite.connection import Io, OpenedFile, retry_while_busy
from millrace.store.sqlite.errors import is_busy, store_error
from millrace.store.sqlite.file import CHECKPOINT_PAGES, check, create_tables, make_file, open_writer
from millrace.store.sqlite.self_deadlock import self_deadlocks
from millrace.store.sqlite.tables import SqliteTables
from millrace.store.sqlite.threads import Call, CallThread, answer_all, fail_all, log, set_error

DEADLINE = 30.0  # seconds; a call that could not begin by then fails
_LOOK = 0.5  # seconds between two checks of the watchdog
_QUIET = 60  # checks without a waiting call, after which the watchdog ends
SOON = 5_000  # ms; a sleeper checks again at least this often, so a job due later need not wake one now
IDLE = 0.5  # seconds without a call, after which the log is checkpointed
SMALL_LOG = 1 << 20
_PAGES = 8  # pages of the log that a small transaction writes, to estimate when a checkpoint is due
_ROWS = 8  # changed rows per further page

Announce = Callable[[Mapping[Place, int], Sequence[str], Sequence[tuple[str, str]]], None]


class _AllRefused(Exception):
    """Raised if all calls of a transaction were refused before the transaction began."""


class _FailedAfterChange(Exception):
    """Raised if a call failed after it had changed something, so that the transaction must be rolled back."""


class Writer(CallThread):
    """The thread that runs steps of the ledger in transactions.

    `enter` registers this process as a user of the file, and returns whether it is the only one. `leave` undoes this.
    `ready` is called once the tables exist. `announce` is called after every commit with its effects. `Effects` in
    store/sql/ports.py explains `watched` and `reply_to`.
    """

    def __init__(
        self,
        path: str,
        io: Io,
        clock: Clock,
        opened: OpenedFile,
        *,
        durability: str,
        shared: bool,
        watched: Mapping[str, int],
        reply_to: Callable[[], str | None],
        ready: Callable[[], None],
        announce: Announce,
        enter: Callable[[], bool],
        leave: Callable[[], None],
    ) -> None:
        super().__init__("millrace-sqlite-writer", IDLE)
        self._path = path
        self._io = io
        self._clock = clock
        self._opened = opened
        self._durability = durability
        self._shared = shared
        self._watched = watched
        self._reply_to = reply_to
        self._ready = ready
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
        self._opened.note_file()
        alone = self._enter()
        undo.callback(self._leave)
        crashed = alone and _log_size(self._path) > 0
        self._write_lock = WriteLock(self._path, self._io, self._stuck, waiting=self._refuse_in_hand)
        undo.callback(self._write_lock.close)
        self._connection = open_writer(self._path, self._io, self._durability)
        undo.callback(self._io.close, self._connection)
        retry_while_busy(
            lambda: create_tables(self._connection, self._io, self._path, shared=self._shared), self._refuse_waiting
        )
        if crashed and (wrong := check(self._connection, self._io, self._path, thorough=False)):
            raise StoreError(
                f"{self._path} is damaged: {wrong[0]}. Copy it, and recover it with: sqlite3 FILE .recover"
            )
        self._opened.note_log()
        self._synced: bool | None = self._durability == "full"
        self._pages = 0  # of the log, written by this process since the last checkpoint: an estimate
        self._changes = self._connection.total_changes
        self._tables = SqliteTables(self._connection, self._io, self._watched, self._reply_to)
        self._ready()
        self._ledger = Ledger(self._tables)

    def shut(self) -> None:
        if self._opened.file_error() is None:
            with contextlib.suppress(sqlite3.Error, OSError):
                self._write_log_back()
            with contextlib.suppress(sqlite3.Error):
                self._io.close(self._connection)
        else:  # closing the last connection deletes the log by name, and the name now belongs to another file
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        self._write_lock.close()

    def idle(self) -> None:
        if (file_error := self._opened.file_error()) is not None:
            log.error("%s", file_error)
            return
        with contextlib.suppress(sqlite3.Error, OSError):
            self._write_log_back()

    def _write_log_back(self) -> None:
        """Checkpoint and truncate the log, if it is large or the store is being closed.

        Do nothing while another process is writing. That process truncates the log later.
        """
        if not (_log_size(self._path) > SMALL_LOG or self._closing) or not self._write_lock.try_acquire():
            return
        try:
            self._io.execute(self._connection, "PRAGMA wal_checkpoint(TRUNCATE)")
            self._pages = 0
        finally:
            self._write_lock.release()

    def _checkpoint(self) -> None:
        """Copy the log into the database file, so that the log is reused from its start.

        SQLite itself would do this in a commit, which may run on the thread of an event loop. It still does if this
        comes too late, because the payloads of few jobs have filled the log.
        """
        self._pages = 0
        with contextlib.suppress(sqlite3.Error, OSError):  # the next checkpoint has more to copy
            if self._write_lock.try_acquire():
                try:
                    self._io.execute(self._connection, "PRAGMA wal_checkpoint(PASSIVE)")
                finally:
                    self._write_lock.release()

    def _stuck(self, reason: str) -> None:
        """Fail all waiting calls, because another process does not release the file lock."""
        fail_all(self._drop_in_hand(), StoreError(reason))
        self.give_up(StoreError(reason))

    def _drop_in_hand(self) -> list[Call[Any]]:
        with self._wakeup:
            calls, self._in_hand = self._in_hand, []
        return calls

    # ── calls that would deadlock with their callers ──────────────────────────────────────────

    def _refuse(self, calls: list[Call[Any]], waited: float) -> None:
        """Fail the calls that wait for a lock which their own callers hold, and remove them from `calls`.

        Raise `_AllRefused` if no call remains.
        """
        for call, reason in self_deadlocks(self._path, calls, waited):
            calls.remove(call)
            fail_all([call], StoreError(reason))
        if not calls:
            raise _AllRefused

    def _refuse_in_hand(self, waited: float) -> None:
        """Like `_refuse`, for calls that wait for the file lock.

        Such a call can deadlock too. The process that holds the file lock may wait for SQLite's lock, which a caller in
        this process holds.
        """
        with self._wakeup:
            calls = list(self._in_hand)
        for call, reason in self_deadlocks(self._path, calls, waited):
            with self._wakeup:
                if call not in self._in_hand:
                    return
                self._in_hand.remove(call)
            fail_all([call], StoreError(reason))

    def _refuse_waiting(self, waited: float) -> None:
        """Raise StoreError if a waiting call deadlocks with its caller while the tables are being created.

        The error ends the thread, and all waiting calls fail.
        """
        with self._wakeup:
            calls = list(self._waiting)
        for _, reason in self_deadlocks(self._path, calls, waited):
            raise StoreError(reason)

    # ── transactions ──────────────────────────────────────────────────────────────────────────

    def serve(self, calls: list[Call[Any]]) -> None:
        self._in_hand = calls
        try:
            self._write_lock.acquire()
        except OSError as error:  # the lock cannot be taken: none of these calls has begun
            fail_all(self._drop_in_hand(), StoreError(f"{self._path} cannot be locked: {error.strerror or error}"))
            return
        calls = self._drop_in_hand()
        self._write(calls, wait=True)
        if self._pages >= CHECKPOINT_PAGES:
            answer_all(calls)
            self._checkpoint()

    def serve_here(self, calls: list[Call[Any]]) -> bool:
        if self._pages >= CHECKPOINT_PAGES:
            return False
        try:
            if not self._write_lock.try_acquire():
                return False
        except OSError:  # the writer's thread tries again, and reports it
            return False
        return self._write(calls, wait=False)

    def _write(self, calls: list[Call[Any]], *, wait: bool) -> bool:
        """Run the calls in a transaction, release the file lock, and announce the effects.

        Without `wait`, return False if the transaction cannot begin at once.
        """
        try:
            if calls and not self._commit(calls, wait=wait):
                return False
        except _FailedAfterChange:
            for call in calls:
                self._commit_alone(call)
        finally:
            self._write_lock.release()
        if (file_error := self._opened.file_error()) is not None:
            set_error(calls, file_error)
        self._announce(*self._tables.effects.take())
        return True

    def _begin(self, calls: list[Call[Any]], wait: bool) -> bool:
        """Begin a transaction. Return False if another connection has one, unless `wait` is set."""
        try:
            if wait:
                retry_while_busy(lambda: self._io.begin(self._connection), partial(self._refuse, calls))
            else:
                self._io.begin(self._connection)
        except sqlite3.OperationalError as error:
            if wait or not is_busy(error):
                raise
            return False
        return True

    def _commit_alone(self, call: Call[Any]) -> None:
        try:
            self._commit([call], wait=True, alone=True)
        except _FailedAfterChange as spoiled:
            call.error = spoiled.__cause__

    def _commit(self, calls: list[Call[Any]], *, wait: bool, alone: bool = False) -> bool:
        """Run all calls in one transaction. Set the result of each call, or its error if it was refused.

        If a call fails after it has changed something, roll back and raise `_FailedAfterChange`. Without `wait`, return
        False if the transaction cannot begin at once.
        """
        tables = self._tables
        if self._connection.in_transaction:  # Ctrl-C interrupted the rollback of a call on its caller's thread
            self._roll_back()
        try:
            self._sync_if(any(call.durable for call in calls))
            if not self._begin(calls, wait):
                return False
            tables.refresh()
            for call in calls:
                self._run(call)
            tables.flush()
            begun = time.monotonic()
            self._io.commit(self._connection)
            self.note_time(begun)
            changes, self._changes = self._changes, self._connection.total_changes
            self._pages += _PAGES + (self._changes - changes) // _ROWS
            tables.trim_cache()
        except _FailedAfterChange:
            self._roll_back()
            raise
        except _AllRefused:
            self._roll_back()
        except sqlite3.Error as error:
            self._roll_back()
            set_error(calls, store_error(error, self._path))
        except BaseException as error:  # a defect in this store during the flush: the call that caused it is unknown
            self._roll_back()
            if alone or len(calls) == 1:
                set_error(calls, error)
            else:
                raise _FailedAfterChange from error
        return True

    def _sync_if(self, durable: bool) -> None:
        """Make the next commit sync to disk if it contains a durable call and the store's durability is "full".

        Claims are not durable: if a crash of the machine undoes a claim, the job is waiting again.
        """
        wanted = durable and self._durability == "full"
        if wanted != self._synced:
            self._synced = None  # unknown, should Ctrl-C interrupt this
            self._io.execute(self._connection, f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")
            self._synced = wanted

    def _run(self, call: Call[Any]) -> None:
        if call.future.cancelled():  # meanwhile: its caller no longer waits for the result
            return
        now = self._clock()
        self._tables.begin_call(now + SOON)
        try:
            self._ledger.closed = self._tables.registry.settings().closed
            call.result = call.run(self._ledger, now)
        except sqlite3.Error:
            raise
        except QueueError as error:
            if self._tables.effects.touched:
                raise _FailedAfterChange from error
            call.error = error
        except Exception as error:
            raise _FailedAfterChange from error

    def _roll_back(self) -> None:
        self._tables.forget()
        self._tables.effects.take()
        with contextlib.suppress(sqlite3.Error):
            self._io.rollback(self._connection)


def _log_size(path: str) -> int:
    try:
        return os.path.getsize(path + "-wal")
    except OSError:
        return 0


class WriteLock:
    """A file lock that a process holds during a commit. It decides which process writes next.

    A writer that waits for SQLite's own lock has to poll, whereas the kernel wakes a process that waits for a file
    lock. SQLite's lock is taken after this one, and protects the file.

    While this process waits for the file lock, a watchdog thread calls `waiting` with the number of seconds waited.
    After `deadline` seconds, it calls `stuck` with a message that names the holder.
    """

    def __init__(
        self,
        path: str,
        io: Io,
        stuck: Callable[[str], None],
        deadline: float = DEADLINE,
        *,
        waiting: Callable[[float], None] = lambda _waited: None,
    ) -> None:
        self._waiting = waiting
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

    def acquire(self) -> None:
        if not self.try_acquire():
            self._since = time.monotonic()
            self._have_watched()
            try:
                self._io.lock(self._file)
            finally:
                self._since = None
            self._note_holder()

    def try_acquire(self) -> bool:
        if not self._io.try_lock(self._file):
            return False
        if not self._holder_known:
            self._note_holder()
        return True

    def _note_holder(self) -> None:
        """Write the id of this process. Only waiting processes read it, so it is written once after a wait."""
        os.pwrite(self._file, b"%-10d" % os.getpid(), 0)
        self._holder_known = True

    def release(self) -> None:
        """Release the lock. If this fails, it is still held, and the next commit acquires it again."""
        try:
            self._io.unlock(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.close(self._file)  # closing releases the lock in any case
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
                self._watchdog = threading.Thread(target=self._watch, name="millrace-sqlite-lock-watch", daemon=True)
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
            if since is None:
                continue
            waited = time.monotonic() - since
            self._waiting(waited)
            if waited > self._deadline:
                self._stuck(
                    f"{self._path}: process {self._holder()} has kept the database locked for over "
                    f"{self._deadline:.0f} s. Nothing of this call was written; see whether that process is stopped."
                )

    def _holder(self) -> str:
        return os.pread(self._file, 10, 0).decode("ascii", "replace").strip() or "unknown"
