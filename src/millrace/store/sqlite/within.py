"""Steps inside a transaction of the caller's: the ledger runs on the caller's own connection.

Committed, the step has happened; rolled back, it never was. It takes SQLite's write lock, which the caller keeps until
the end of the transaction, and everybody else's writes wait for that. A step that is refused leaves the transaction as
it was before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from millrace.domain.change import Change
from millrace.domain.check import check_specs
from millrace.domain.errors import InvalidInput, StoreError
from millrace.domain.job import Lease, Spec
from millrace.domain.ledger import Ledger
from millrace.domain.request import Enqueued, Receipt
from millrace.store.sqlite.borrow import (
    Borrowed,
    commits_by_itself,
    on_its_thread,
    plain_text,
    reach,
    refuse_converted,
    refuse_other_file,
)
from millrace.store.sqlite.file import schema_version
from millrace.store.sqlite.lookout import Awaited
from millrace.store.sqlite.sql import SQL, migrations
from millrace.store.sqlite.standoff import standing_in
from millrace.store.sqlite.tables import SqliteTables
from millrace.store.sqlite.trouble import is_busy, store_error
from millrace.store.sqlite.writer import SOON

if TYPE_CHECKING:
    from millrace.store.sqlite.home import Home

T = TypeVar("T")
Step = Callable[[Ledger, int], T]

_TRY_AGAIN = (0.0005, 0.02)  # seconds between two tries for the lock: at first, and at most


class _NoTables(Exception):
    """The file is new, and the caller's transaction has not begun: the tables can still be made."""


class _Busy(Exception):
    """Another connection writes; `patience` is how long, in seconds, the caller's connection is set to wait."""

    def __init__(self, patience: float) -> None:
        self.patience = patience


class SqliteWithin:
    """Made for each use by `SqliteStore.within`. The methods that end in `_now` block the calling thread."""

    def __init__(self, home: Home, connection: object) -> None:
        self._home = home
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
        """Waits without blocking the event loop: who holds the lock may need it to go on."""
        attempt = _Attempt(self._home, step)
        tries = _Tries(self._home.path)
        while True:
            try:
                result, awaited = await on_its_thread(self._connection, attempt)
            except _NoTables:
                await self._home.open()
            except _Busy as busy:
                await asyncio.sleep(tries.pause_after(busy))
            else:
                self._joined(awaited)
                return result

    def _join_now(self, step: Step[T]) -> T:
        attempt = _Attempt(self._home, step)
        tries = _Tries(self._home.path)
        raw = reach(self._connection)
        while True:
            try:
                result, awaited = attempt(raw)
            except _NoTables:
                self._home.open_now()
            except _Busy as busy:
                time.sleep(tries.pause_after(busy))
            else:
                self._joined(awaited)
                return result

    def _joined(self, awaited: Awaited) -> None:
        standing_in(self._home, awaited)
        self._home.joined(awaited)


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
    """One try, on the thread of the connection."""

    def __init__(self, home: Home, step: Step[T]) -> None:
        self._home = home
        self._step = step

    def __call__(self, raw: sqlite3.Connection) -> tuple[T, Awaited]:
        path = self._home.path
        try:
            with plain_text(raw):
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
        refuse_other_file(borrowed.execute("PRAGMA database_list").fetchall(), self._home.path)
        if not raw.in_transaction and commits_by_itself(raw):
            raise InvalidInput(
                "this connection is in autocommit mode and has no transaction open, so there is nothing that the job "
                "could be a part of. Begin one first, for example with conn.execute('BEGIN IMMEDIATE'); or leave "
                "`within` out."
            )
        if not self._home.ready:
            self._check_tables(raw, borrowed)
        refuse_converted(lambda sql: cast("tuple[object, ...]", borrowed.execute(sql).fetchone()))

    def _check_tables(self, raw: sqlite3.Connection, borrowed: Borrowed) -> None:
        if schema_version(lambda sql: borrowed.execute(sql).fetchall()) != len(migrations()):
            if not raw.in_transaction:
                raise _NoTables
            raise InvalidInput(
                f"{self._home.path} has no tables of this version of Millrace yet, and they cannot be made inside a "
                "transaction of yours. Open the app before the transaction begins: `async with app:`, or "
                "`with app.sync:`."
            )

    def _lock(self, raw: sqlite3.Connection, borrowed: Borrowed) -> bool:
        """Hold the write lock; True when that has begun the transaction, as Python's sqlite3 does before an INSERT."""
        begun = not raw.in_transaction
        [(patience,)] = borrowed.execute("PRAGMA busy_timeout").fetchall()
        borrowed.execute("PRAGMA busy_timeout = 0")
        try:
            borrowed.execute("BEGIN IMMEDIATE" if begun else SQL["lock_store"])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname == "SQLITE_BUSY_SNAPSHOT":
                raise StoreError(
                    f"{self._home.path}: your transaction has read, and another one has written since, so yours can no "
                    "longer write. Roll back and start again, with BEGIN IMMEDIATE so that it cannot happen."
                ) from error
            if is_busy(error):
                raise _Busy(patience / 1000) from None
            raise
        finally:
            borrowed.execute(f"PRAGMA busy_timeout = {patience:d}")
        return begun

    def _run(self, borrowed: Borrowed) -> tuple[T, Awaited]:
        now = self._home.clock()
        tables = SqliteTables(cast("sqlite3.Connection", borrowed), self._home.io)
        tables.soon = now + SOON
        self._home.fit_out(tables)
        borrowed.execute("SAVEPOINT millrace")
        try:
            result = self._step(Ledger(tables), now)
            tables.flush()
        except BaseException:
            _undo(borrowed, "ROLLBACK TO millrace", "RELEASE millrace")
            raise
        borrowed.execute("RELEASE millrace")
        return result, Awaited(tables.counters()[1], tables.take_news())


def _undo(borrowed: Borrowed, *statements: str) -> None:
    with contextlib.suppress(sqlite3.Error):  # on a full or broken disk SQLite has rolled everything back by itself
        for statement in statements:
            borrowed.execute(statement)


def _enqueue(specs: Sequence[Spec]) -> Step[list[Enqueued]]:
    check_specs(specs)
    return lambda ledger, now: ledger.enqueue(specs, now)


def _settle(items: Sequence[tuple[Lease, Change]]) -> Step[list[Receipt]]:
    for _, change in items:
        check_specs(change.jobs)
    return lambda ledger, now: ledger.settle(items, now)
