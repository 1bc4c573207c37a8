"""Transactions on the memory store, for tests of code that enqueues within its own transaction.

The memory store has no connections, so a transaction is an object of its own. Each step first runs on a copy of the
store, which gives its result or error. At commit, all steps run on the store itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput, LeaseLost
from millrace.domain.job import Lease, Spec
from millrace.domain.ledger import Ledger
from millrace.domain.request import Enqueued, Receipt
from millrace.domain.rules.check import check_specs
from millrace.store.clock import Clock

if TYPE_CHECKING:
    from millrace.store.memory.store import MemoryStore

Step = Callable[[Ledger, int], Any]


class MemoryTransaction:
    """A transaction, created by `MemoryStore.transaction()`. A `with` block commits it, or rolls it back on an
    exception.

    If it is created with a connection of sqlite3 or a compatible library, it can be used in place of that connection.
    It passes all other attributes through to the connection, and both commit and roll back together.
    """

    def __init__(self, store: MemoryStore, clock: Clock, connection: Any = None) -> None:
        self._store = store
        self._clock = clock
        self._connection = connection
        self._steps: list[Step] = []
        self._trial: Ledger | None = None

    @property
    def in_transaction(self) -> bool:
        return bool(self._steps) or bool(getattr(self._connection, "in_transaction", False))

    def belongs_to(self, store: MemoryStore) -> bool:
        return self._store is store

    def commit(self) -> None:
        """Apply all steps to the store. If one of them is no longer possible, raise its error and apply nothing."""
        steps = self._steps
        self._store.carry_out(steps, None if self._connection is None else self._connection.commit)
        self._forget()

    def rollback(self) -> None:
        self._forget()
        if self._connection is not None:
            self._connection.rollback()

    def close(self) -> None:
        self._forget()
        if self._connection is not None:
            self._connection.close()

    def execute(self, sql: str, *parameters: Any) -> Any:
        """Run a statement on the connection and return its result. COMMIT and ROLLBACK also end this transaction."""
        words = sql.replace(";", " ").upper().split()
        if words[:1] in (["COMMIT"], ["END"]):
            return self.commit()
        if words[:1] == ["ROLLBACK"]:
            if "TO" in words and self._steps:
                raise InvalidInput("a transaction of the memory store has no savepoints; use SQLite to test with them")
            if "TO" not in words:
                return self.rollback()
        if self._connection is None:
            if words[:1] == ["BEGIN"]:
                return None
            raise InvalidInput(
                "this transaction has no connection to run statements on: app.store.transaction(connection)"
            )
        return self._connection.execute(sql, *parameters)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.rollback()
            return
        try:
            self.commit()
        except BaseException:
            self.rollback()
            raise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__dict__.get("_connection") is None:
            raise AttributeError(f"a transaction of the memory store has no {name!r}")
        return getattr(self._connection, name)

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    def try_out(self, step: Step) -> Any:
        """Run a step on the copy of the store, and return its result. The step is repeated on the store at commit."""
        if self._trial is None:
            self._trial = self._store.copied()
        answer = step(self._trial, self._clock())
        self._steps.append(step)
        return answer

    def _forget(self) -> None:
        self._steps, self._trial = [], None


class MemoryWithin:
    """Enqueues and settles in one transaction of the memory store.

    No method blocks, so the async methods call the methods with the suffix `_now`.
    """

    def __init__(self, transaction: MemoryTransaction) -> None:
        self._transaction = transaction

    def enqueue_now(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        answers: list[Enqueued] = self._transaction.try_out(lambda ledger, now: ledger.enqueue(specs, now))
        return answers

    def settle_now(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        for _, change in items:
            check_specs(change.jobs)
        promised: list[Receipt] = []

        def step(ledger: Ledger, now: int) -> list[Receipt]:
            receipts = ledger.settle(items, now)
            if not promised:
                promised.extend(receipts)
            elif receipts != promised:
                lost = next(at for at, receipt in enumerate(receipts) if receipt is not promised[at])
                raise LeaseLost(items[lost][0].job)
            return receipts

        receipts: list[Receipt] = self._transaction.try_out(step)
        return receipts

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        return self.enqueue_now(specs)

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        return self.settle_now(items)


def within(store: MemoryStore, connection: object) -> MemoryWithin:
    if isinstance(connection, MemoryTransaction) and connection.belongs_to(store):
        return MemoryWithin(connection)
    kind = type(connection)
    raise InvalidInput(
        f"a memory store cannot join the transaction of a {kind.__module__}.{kind.__qualname__}: they share no "
        "database. In a test, wrap your connection in a transaction of the store, "
        "conn = app.store.transaction(conn), or use a file: App('sqlite:///test.db')."
    )


def copied(tables: Any) -> Ledger:
    return Ledger(copy.deepcopy(tables))
