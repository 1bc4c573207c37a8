"""Steps inside a transaction of the caller: the ledger runs on the caller's own connection.

A step takes effect when the caller commits, and has no effect if the caller rolls back. The locks of the step (on a
job, a line, a key) are held until the caller's transaction ends. Fast-path calls on the same queue do not wait for
them. A refused step leaves the transaction unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput, QueueError, StoreError
from millrace.domain.job import Lease, Spec
from millrace.domain.ledger import Ledger
from millrace.domain.request import Enqueued, Receipt
from millrace.domain.rules.check import check_specs
from millrace.store.postgres.borrow import Blocking, OnLoop, reach, reach_now
from millrace.store.postgres.errors import passes, store_error
from millrace.store.postgres.fast_path import SOON
from millrace.store.postgres.locks import Plan, RetryStep
from millrace.store.postgres.session import Question
from millrace.store.postgres.sql import Held
from millrace.store.postgres.tables import PostgresTables

if TYPE_CHECKING:
    from millrace.store.postgres.store import PostgresStore

T = TypeVar("T")
_ATTEMPTS = 20
LOCK_TIMEOUT = 10.0  # seconds for which a step waits for a lock; less if the caller has set less
_LOOK = """SELECT current_setting('transaction_isolation'), to_regclass($1::text)::text,
    (SELECT setting FROM pg_settings WHERE name = 'lock_timeout')"""
_LIMIT = "SELECT set_config('lock_timeout', $1::text, true)"


class PostgresWithin:
    """Enqueues and settles inside one transaction of the caller; returned by `PostgresStore.within`.

    Methods with the suffix `_now` block the calling thread.
    """

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
        task = asyncio.ensure_future(loop.run_in_executor(self._store.session().callers, self._run, wire, question))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():  # the caller may use the connection only between two statements
                await asyncio.wait([task])
            raise

    def _run(self, wire: Blocking | OnLoop, question: Question[T]) -> T:
        if not wire.begun():
            raise InvalidInput(
                "this connection is in no transaction. Begin one (`async with connection.transaction():`), so that the "
                "job and your own writes are committed together"
            )
        try:
            limit = self._refuse_others(wire)
            return self._with_limit(wire, question, limit)
        except (QueueError, TypeError):
            raise
        except Exception as error:
            if getattr(error, "sqlstate", None) is None:
                raise
            raise store_error(error, self._store.url) from error

    def _refuse_others(self, wire: Blocking | OnLoop) -> int:
        """Raise InvalidInput if the connection is to another database or its transaction is not READ COMMITTED.

        Returns the caller's own `lock_timeout`, in milliseconds.
        """
        session = self._store.session()
        level, table, limit = wire.rows(_LOOK, (f'"{self._store.address.schema}".store',))[0]
        if table is None or wire.rows(session.sql["identity"], ())[0][0] != session.identity:
            raise InvalidInput(f"this is no connection to the database of {self._store.url}")
        if level not in ("read committed", "read uncommitted"):  # the same in PostgreSQL
            raise InvalidInput(
                f"the transaction is {level.upper()}, in which this step cannot see what others commit while it waits "
                "for a lock: a child could miss the end of its parent. Begin it as READ COMMITTED: `BEGIN ISOLATION "
                "LEVEL READ COMMITTED`, asyncpg's `connection.transaction(isolation='read_committed')`, psycopg's "
                "`connection.isolation_level`, or SQLAlchemy's `isolation_level` of the engine"
            )

        return int(limit)

    def _with_limit(self, wire: Blocking | OnLoop, question: Question[T], limit: int) -> T:
        """Run a step with a `lock_timeout` of at most `LOCK_TIMEOUT`, and return its result.

        `limit` is the caller's own `lock_timeout`, which is restored afterwards.
        """
        ours = int(LOCK_TIMEOUT * 1000)
        most = min(limit or ours, ours)
        if most == limit:
            return self._try_all(wire, question, most)
        wire.rows(_LIMIT, (f"{most}ms",))
        try:
            return self._try_all(wire, question, most)
        finally:
            with suppress(Exception):  # a failed transaction must be rolled back, which restores it as well
                wire.rows(_LIMIT, (f"{limit}ms",))

    def _try_all(self, wire: Blocking | OnLoop, question: Question[T], limit: int) -> T:
        plan, deadline = Plan(), monotonic() + limit / 1000
        for attempt in range(_ATTEMPTS):
            wire.rows("SAVEPOINT millrace_step", ())
            try:
                answer = self._once(wire, question, plan)
            except Exception as error:
                wire.rows("ROLLBACK TO SAVEPOINT millrace_step", ())
                wire.rows("RELEASE SAVEPOINT millrace_step", ())
                if not isinstance(error, RetryStep | Held) and not passes(error):
                    raise
                if attempt > 0 and monotonic() > deadline:  # the first attempt does not wait
                    break
            else:
                wire.rows("RELEASE SAVEPOINT millrace_step", ())
                return answer
        raise StoreError(
            f"{self._store.url}: another transaction holds a lock that this step needs, for longer than "
            f"{limit / 1000:g} s (lock_timeout). Nothing of it was written, and your own transaction stands; roll it "
            "back and try again, or find the transaction that stays open."
        )

    def _once(self, wire: Blocking | OnLoop, question: Question[T], plan: Plan) -> T:
        session = self._store.session()
        tables = PostgresTables(wire, session.sql, plan, self._store.new_effects())
        now = tables.begin(session.given(), SOON)
        answer = question(Ledger(tables), now)
        tables.flush()
        for channel, notification in self._store.listener().notifications(*tables.effects.take()):
            tables.statements.rows("notify", channel, notification)  # delivered when the caller commits
        return answer
