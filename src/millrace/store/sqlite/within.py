"""Steps inside a transaction of the caller: the ledger runs on the caller's own connection.

A step takes effect when the caller commits, and has no effect if the caller rolls back. The step takes SQLite's write
lock, which is held until the caller's transaction ends. All other writes wait until then. A refused step leaves the
transaction unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput, StoreError
from millrace.domain.job import Lease, Spec
from millrace.domain.ledger import Ledger
from millrace.domain.request import Enqueued, Receipt
from millrace.domain.rules.check import check_specs
from millrace.store.sqlite.borrow import (
    Borrowed,
    commits_by_itself,
    on_its_thread,
    reach,
    refuse_converted,
    refuse_other_file,
    text_as_str,
)
from millrace.store.sqlite.commit_watch import JoinedStep
from millrace.store.sqlite.connection import SQL
from millrace.store.sqlite.errors import is_busy, store_error
from millrace.store.sqlite.file import VERSION, schema_version
from millrace.store.sqlite.self_deadlock import remember_joined
from millrace.store.sqlite.tables import SqliteTables
from millrace.store.sqlite.writer import SOON

if TYPE_CHECKING:
    from millrace.store.sqlite.process import ProcessState

T = TypeVar("T")
Step = Callable[[Ledger, int], T]

_TRY_AGAIN = (0.0005, 0.02)  # seconds between two attempts to take the lock: at first, and at most


class _NoTables(Exception):
    """Raised if the file has no tables yet, but they can be created first because the caller's transaction has not
    begun.
    """


class _Busy(Exception):
    """Raised if another connection is writing. `patience` is the busy timeout of the caller's connection in seconds."""

    def __init__(self, patience: float) -> None:
        self.patience = patience


class SqliteWithin:
    """Enqueues and settles inside one transaction of the caller; returned by `SqliteStore.within`.

    Methods with the suffix `_now` block the calling thread.
    """

    def __init__(self, process: ProcessState, connection: object) -> None:
        self._process = process
        self._connection = connection

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        return await self._join(_enqueue(specs))

    def enqueue_now(self, specs: Sequence[Spec]) -> list[Enqueued]:
        return self._join_now(_enqueue(specs))

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        return await self._join(_settle(items))

    def settle_now(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        return self._join_now(_settle(items))

    # ── waiting for the lock ──────────────────────────────────────────────────────────────────

    async def _join(self, step: Step[T]) -> T:
        """Run the step and return its result.

        While this waits for the write lock, the event loop keeps running, because the holder of the lock may need it.
        """
        attempt = _Attempt(self._process, step)
        tries = _Tries(self._process.path)
        while True:
            try:
                result, awaited = await on_its_thread(self._connection, attempt)
            except _NoTables:
                await self._process.open()
            except _Busy as busy:
                await asyncio.sleep(tries.pause_after(busy))
            else:
                self._joined(awaited)
                return result

    def _join_now(self, step: Step[T]) -> T:
        attempt = _Attempt(self._process, step)
        tries = _Tries(self._process.path)
        raw = reach(self._connection)
        while True:
            try:
                result, awaited = attempt(raw)
            except _NoTables:
                self._process.open_now()
            except _Busy as busy:
                time.sleep(tries.pause_after(busy))
            else:
                self._joined(awaited)
                return result

    def _joined(self, awaited: JoinedStep) -> None:
        remember_joined(self._process, awaited)
        self._process.joined(awaited)


class _Tries:
    def __init__(self, path: str) -> None:
        self._path = path
        self._begun = time.monotonic()
        self._pause, self._most = _TRY_AGAIN

    def pause_after(self, busy: _Busy) -> float:
        if time.monotonic() - self._begun >= busy.patience:
            raise StoreError(
                f"{self._path}: another connection has kept the database locked for {busy.patience:g} s, which is how "
                "long yours waits. Nothing was changed and your transaction stands; try again, or connect with a "
                "longer timeout: sqlite3.connect(path, timeout=30)."
            ) from None
        self._pause = min(self._most, self._pause * 1.5)
        return self._pause


class _Attempt(Generic[T]):
    """One attempt to run a step in the caller's transaction. Call it with the sqlite3 connection, on the connection's
    thread.

    Raise `_NoTables` or `_Busy` if the step should be tried again later.
    """

    def __init__(self, process: ProcessState, step: Step[T]) -> None:
        self._process = process
        self._step = step

    def __call__(self, raw: sqlite3.Connection) -> tuple[T, JoinedStep]:
        path = self._process.path
        try:
            with text_as_str(raw):
                borrowed = Borrowed(raw)
                self._check(raw, borrowed)
                begun = self._lock(raw, borrowed)
                try:
                    return self._run(borrowed)
                except BaseException:
                    if begun:
                        _undo(borrowed, "ROLLBACK")
                    raise
        except sqlite3.ProgrammingError as error:
            raise InvalidInput(f"the connection given as within cannot be used here: {error}") from error
        except sqlite3.Error as error:
            raise store_error(error, path) from error

    def _check(self, raw: sqlite3.Connection, borrowed: Borrowed) -> None:
        refuse_other_file(borrowed.execute("PRAGMA database_list").fetchall(), self._process.path)
        if not raw.in_transaction and commits_by_itself(raw):
            raise InvalidInput(
                "this connection is in autocommit mode and has no transaction open, so there is nothing that the job "
                "could be a part of. Begin one first, for example with conn.execute('BEGIN IMMEDIATE'); or leave "
                "`within` out."
            )
        if not self._process.ready:
            self._check_tables(raw, borrowed)
        refuse_converted(lambda sql: cast("tuple[object, ...]", borrowed.execute(sql).fetchone()))

    def _check_tables(self, raw: sqlite3.Connection, borrowed: Borrowed) -> None:
        if schema_version(lambda sql: borrowed.execute(sql).fetchall()) != VERSION:
            if not raw.in_transaction:
                raise _NoTables
            raise InvalidInput(
                f"{self._process.path} has no tables of this version of Millrace yet, and they cannot be made inside a "
                "transaction of yours. Open the app before the transaction begins: `async with app:`, or "
                "`with app.sync:`."
            )

    def _lock(self, raw: sqlite3.Connection, borrowed: Borrowed) -> bool:
        """Take SQLite's write lock. Return True if this has begun a transaction, because none was open."""
        begun = not raw.in_transaction
        [(patience,)] = borrowed.execute("PRAGMA busy_timeout").fetchall()
        borrowed.execute("PRAGMA busy_timeout = 0")
        try:
            borrowed.execute("BEGIN IMMEDIATE" if begun else SQL["lock_store"])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname == "SQLITE_BUSY_SNAPSHOT":
                raise StoreError(
                    f"{self._process.path}: your transaction has read, and another one has written since, so yours can "
                    "no longer write. Roll back and start again, with BEGIN IMMEDIATE so that it cannot happen."
                ) from error
            if is_busy(error):
                raise _Busy(patience / 1000) from None
            raise
        finally:
            borrowed.execute(f"PRAGMA busy_timeout = {patience:d}")
        return begun

    def _run(self, borrowed: Borrowed) -> tuple[T, JoinedStep]:
        now = self._process.clock()
        process = self._process
        tables = SqliteTables(cast("sqlite3.Connection", borrowed), process.io, process.watching, process.reply_to)
        tables.begin_call(now + SOON)
        borrowed.execute("SAVEPOINT millrace")
        try:
            ledger = Ledger(tables)
            ledger.closed = tables.registry.settings().closed
            result = self._step(ledger, now)
            tables.flush()
        except BaseException:
            _undo(borrowed, "ROLLBACK TO millrace", "RELEASE millrace")
            raise
        borrowed.execute("RELEASE millrace")
        return result, JoinedStep(tables.registry.last_event(), tables.effects.take())


def _undo(borrowed: Borrowed, *statements: str) -> None:
    with contextlib.suppress(sqlite3.Error):  # on a full or broken disk, SQLite has already rolled back
        for statement in statements:
            borrowed.execute(statement)


def _enqueue(specs: Sequence[Spec]) -> Step[list[Enqueued]]:
    check_specs(specs)
    return lambda ledger, now: ledger.enqueue(specs, now)


def _settle(items: Sequence[tuple[Lease, Change]]) -> Step[list[Receipt]]:
    for _, change in items:
        check_specs(change.jobs)
    return lambda ledger, now: ledger.settle(items, now)
