"""Steps inside a transaction of the caller's: the ledger runs on the caller's own connection.

Committed, the step has happened; rolled back, it never was. What it locked (a job, a line, a key) stays locked until
then; plain work of the queue goes on. A step that is refused leaves the transaction as it was before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from millrace.domain.change import Change
from millrace.domain.check import check_specs
from millrace.domain.errors import InvalidInput, QueueError, StoreError
from millrace.domain.job import Lease, Spec
from millrace.domain.ledger import Ledger
from millrace.domain.request import Enqueued, Receipt
from millrace.store.postgres.borrow import Blocking, OnLoop, reach, reach_now
from millrace.store.postgres.plain import SOON
from millrace.store.postgres.session import Question
from millrace.store.postgres.tables import PostgresTables
from millrace.store.postgres.trouble import passes, store_error
from millrace.store.postgres.unit import Again, Held, Plan

if TYPE_CHECKING:
    from millrace.store.postgres.store import PostgresStore

T = TypeVar("T")
_ATTEMPTS = 20


class PostgresWithin:
    """Made for each use by `PostgresStore.within`. The methods that end in `_now` block the calling thread."""

    def __init__(self, store: PostgresStore, connection: object) -> None:
        self._store = store
        self._connection = connection

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        return await self._step(lambda ledger, now: ledger.enqueue(specs, now))

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        for _, change in items:
            check_specs(change.jobs)
        return await self._step(lambda ledger, now: ledger.settle(items, now))

    def enqueue_now(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        return self._run(reach_now(self._connection), lambda ledger, now: ledger.enqueue(specs, now))

    def settle_now(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        for _, change in items:
            check_specs(change.jobs)
        return self._run(reach_now(self._connection), lambda ledger, now: ledger.settle(items, now))

    async def _step(self, question: Question[T]) -> T:
        wire = await reach(self._connection)
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(loop.run_in_executor(self._store.session().threads, self._run, wire, question))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():  # the caller gets the connection back only between two statements
                await asyncio.wait([task])
            raise

    def _run(self, wire: Blocking | OnLoop, question: Question[T]) -> T:
        if not wire.begun():
            raise InvalidInput(
                "this connection is in no transaction. Begin one (`async with connection.transaction():`), so that the "
                "job and your own writes are committed together"
            )
        try:
            self._refuse_others(wire)
            return self._try_all(wire, question)
        except (QueueError, TypeError):
            raise
        except Exception as error:
            if getattr(error, "sqlstate", None) is None:
                raise
            raise store_error(error, self._store.url) from error

    def _refuse_others(self, wire: Blocking | OnLoop) -> None:
        session = self._store.session()
        level, table = wire.rows(
            "SELECT current_setting('transaction_isolation'), to_regclass($1::text)::text",
            (f'"{self._store.address.schema}".store',),
        )[0]
        if table is None or wire.rows(session.sql["identity"], ())[0][0] != session.identity:
            raise InvalidInput(f"this is no connection to the database of {self._store.url}")
        if level != "read committed":
            raise InvalidInput(
                f"the transaction is {level}, where a step could not see what others have done meanwhile; use READ "
                "COMMITTED, the default"
            )

    def _try_all(self, wire: Blocking | OnLoop, question: Question[T]) -> T:
        plan = Plan()
        for _ in range(_ATTEMPTS):
            wire.rows("SAVEPOINT millrace_step", ())
            try:
                answer = self._once(wire, question, plan)
            except (Again, Held):
                wire.rows("ROLLBACK TO SAVEPOINT millrace_step", ())
            except Exception as error:
                wire.rows("ROLLBACK TO SAVEPOINT millrace_step", ())
                wire.rows("RELEASE SAVEPOINT millrace_step", ())
                if not passes(error):
                    raise
            else:
                wire.rows("RELEASE SAVEPOINT millrace_step", ())
                return answer
        raise StoreError(
            f"{self._store.url}: what this step needs is locked by another transaction. Nothing of it was written; "
            "roll back and try again."
        )

    def _once(self, wire: Blocking | OnLoop, question: Question[T], plan: Plan) -> T:
        session = self._store.session()
        tables = PostgresTables(wire, session.sql, plan)
        self._store.fit_out(tables)
        now = tables.begin(session.given())
        tables.soon = now + SOON
        answer = question(Ledger(tables), now)
        tables.flush()
        for channel, word in self._store.listener().words(tables.opened, tables.ended, tables.replies):
            tables.rows("notify", channel, word)  # heard when the caller commits, and only then
        return answer
