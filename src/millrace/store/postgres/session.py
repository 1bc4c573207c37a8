"""The state of a store on one event loop: its connections, and the steps of the ledger that run on them.

A fast-path statement runs on the event loop, a step of the ledger in a thread. A transaction that fails because of a
lock, a deadlock or a concurrent change is rolled back and retried. After a lost connection, it is unknown whether the
call was committed. The session looks this up first (`LostReply`), and repeats the call only if it was not. A
combination is a (queue, task, priority), which has an id.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import asyncpg

from millrace.domain.change import Change
from millrace.domain.errors import QueueError, StoreError
from millrace.domain.event import Kind
from millrace.domain.job import Job, Lease
from millrace.domain.ledger import Ledger
from millrace.domain.request import Receipt
from millrace.store.clock import Clock
from millrace.store.postgres.address import BEGIN, Address, transaction
from millrace.store.postgres.connections import Connections
from millrace.store.postgres.errors import NOT_ON_FAST_PATH, TAKEN, code_of, is_cut, may_have_moved, passes, store_error
from millrace.store.postgres.fast_path import SOON
from millrace.store.postgres.locks import Plan, RetryStep
from millrace.store.postgres.sql import Held, statements
from millrace.store.postgres.step_connection import StepConnection, StepConnections
from millrace.store.postgres.tables import PostgresTables
from millrace.store.shared_enqueues import SharedEnqueues
from millrace.store.sql.ports import Effects, News
from millrace.store.sql.record import KIND_NUMBER, job_from_row

T = TypeVar("T")
Question = Callable[[Ledger, int], T]

PATIENCE = 30.0  # seconds for which a step is retried
_ENDS = [KIND_NUMBER[kind] for kind in Kind if kind not in (Kind.CLAIMED, Kind.RECLAIMED)]
_CALLERS = 1_000  # threads, created on demand; a caller that waits for a thread may hold locks that the others wait for
# A step reads rows in the order of an index. In a table that was never analyzed, the planner expects few rows in any
# range and would collect and sort them, which may turn out to be the whole table.
_BY_INDEX = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off"
_BEGIN = f"{BEGIN}; {_BY_INDEX}"
_LOOK = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_BY_INDEX}"


@dataclass(frozen=True)
class Before(Generic[T]):
    """The result (`answer`) of a call that was already committed when its reply was lost.

    `ended` and `replies` are what to announce, because the first attempt may not have announced it.
    """

    answer: T
    ended: Sequence[str] = ()
    replies: Sequence[tuple[str, str]] = ()


LostReply = Callable[[], Awaitable[Before[T] | None]]


def call_lock(name: str) -> str:
    return f"call {name}"


class NotOnFastPath(Exception):
    """Raised if a fast-path statement cannot run the call. Such a call must run as a step of the ledger.

    `may_have_committed` is True if an earlier attempt may have been committed. The notification of that attempt may be
    missing.
    """

    def __init__(self, may_have_committed: bool = False) -> None:
        super().__init__()
        self.may_have_committed = may_have_committed


class Session:
    """The connections, threads and caches of a store on one event loop.

    `new_effects` returns the `Effects` for one step. `shared_enqueues` collects the single enqueues of this loop.
    """

    def __init__(
        self,
        address: Address,
        clock: Clock | None,
        new_effects: Callable[[], Effects],
        shared_enqueues: SharedEnqueues,
    ) -> None:
        self.address = address
        self.shared_enqueues = shared_enqueues
        self.sql = statements(address.schema)
        self.clock = clock
        self._new_effects = new_effects
        self.connections = Connections(address, StepConnections(address))
        self.loop = asyncio.get_running_loop()
        self.threads = ThreadPoolExecutor(address.connections, thread_name_prefix="millrace-postgres")
        # Steps in transactions of callers wait for each other's locks, and must not take the threads of other calls.
        self.callers = ThreadPoolExecutor(_CALLERS, thread_name_prefix="millrace-postgres-caller")
        self.combo_ids: dict[tuple[str, str, int], tuple[int, int]] = {}  # committed ones: their ids never change
        self.combo_names: dict[int, tuple[str, str, int]] = {}
        self.exact_locks: dict[str, str] = {}  # by queue, for queues that are known to be exact
        # A procedure that commits and continues cannot run inside a transaction, which a transaction pooler requires.
        self.may_notify = address.pooler == "none"
        self.identity = ""  # of the schema in this database; a caller's connection must have the same

    def given(self) -> int | None:
        """Return the time of the test clock; None if the store uses the server's clock."""
        return None if self.clock is None else self.clock()

    async def close(self) -> None:
        await self.connections.close()
        await self.loop.run_in_executor(self.threads, self.connections.step_connections.close)
        self.threads.shutdown(wait=False)
        self.callers.shutdown(wait=False)

    def leave(self) -> None:
        """Release threads and step connections after the event loop was closed.

        The step connections can still be closed, because they have event loops of their own.
        """
        self.threads.submit(self.connections.step_connections.close)
        self.threads.shutdown(wait=False)
        self.callers.shutdown(wait=False)

    # ── one statement ─────────────────────────────────────────────────────────────────────────

    async def call(
        self,
        name: str,
        *args: Any,
        again: LostReply[Any] | None = None,
        numbered: bool = False,
        brief: bool = False,
    ) -> Any:
        """Run a statement in its own transaction and return its rows.

        `again` looks up the result after a lost reply. Set `numbered` if the arguments contain ids of combinations:
        another server may have other ids, so the statement is not repeated after a lost connection. Set `brief` if it
        is not to be repeated after a conflict either. Raise NotOnFastPath if the call must run as a step of the ledger.
        """
        sql = self.sql[name]

        async def ask() -> Any:
            async with self.connections.one() as connection:
                if not self.may_notify:
                    async with transaction(connection):
                        return await connection.fetch(sql, *args)
                return await connection.fetch(sql, *args)

        return await _uninterrupted(self._with_retries(ask, again, fast_path=True, numbered=numbered, brief=brief))

    async def call_and_notify(
        self,
        name: str,
        quiet: str,
        args: Sequence[Any],
        notification: Sequence[str],
        again: LostReply[Any] | None = None,
        numbered: bool = False,
        brief: bool = False,
    ) -> Any:
        """Like `call`, for a statement that also sends a notification after its commit.

        If the server has no room for notifications, the statement `quiet` is used, which sends none.
        """
        notifies = True

        async def ask() -> Any:
            nonlocal notifies
            async with self.connections.one() as connection:
                if not notifies:
                    return await connection.fetch(self.sql[quiet], *args)
                try:
                    return await connection.fetch(self.sql[name], *args, *notification)
                except asyncpg.ProgramLimitExceededError as error:  # the NOTIFY queue is full; it may have committed
                    notifies = False
                    raise ConnectionError("the server has no room for notifications") from error

        return await _uninterrupted(
            self._with_retries(ask, again, fast_path=True, numbered=numbered, brief=brief, commits_early=True)
        )

    # ── steps of the ledger ───────────────────────────────────────────────────────────────────

    async def write(
        self,
        question: Question[T],
        *,
        queues: Iterable[str] = (),
        call: str | None = None,
        again: LostReply[T] | None = None,
    ) -> tuple[T, News]:
        """Run a step. Return its result, and what to announce (see `Effects.take`).

        `queues` are the queues that the step reads. The locks of those that need exact counts are taken at the start.
        `call` is a unique name for this call. When the call is repeated after a lost reply, it first waits until the
        transaction of the earlier attempt has ended.
        """
        plan = Plan()
        if call is not None:
            plan.add_lock(call_lock(call), shared=False)
        for queue in queues:
            if queue in self.exact_locks:
                plan.add_lock(self.exact_locks[queue], shared=False)

        async def step() -> tuple[T, PostgresTables]:
            answer, tables = await self._on_step_connection(_BEGIN, lambda wire: self._run(wire, question, plan))
            self.combo_ids.update(tables.registry.combo_ids)
            self.exact_locks = {
                queue: lock for queue, lock in self.exact_locks.items() if queue not in tables.registry.seen_queues()
            } | tables.registry.exact_locks
            return answer, tables

        done: tuple[T, PostgresTables] | Before[T] = await _uninterrupted(self._with_retries(step, again))
        if isinstance(done, Before):
            return done.answer, ({}, done.ended, done.replies)
        answer, tables = done
        return answer, tables.effects.take()

    def _run(self, connection: StepConnection, question: Question[T], plan: Plan) -> tuple[T, PostgresTables]:
        tables = PostgresTables(connection, self.sql, plan, self._new_effects(), combo_ids=self.combo_ids)
        now = tables.begin(self.given(), SOON)
        answer = question(Ledger(tables), now)
        tables.flush()
        return answer, tables

    async def read(self, question: Question[T]) -> T:
        def look(connection: StepConnection) -> T:
            tables = PostgresTables(connection, self.sql, writes=False, combo_names=self.combo_names)
            now = tables.begin_reading(self.given())
            return question(Ledger(tables), now)

        return await _uninterrupted(self._with_retries(lambda: self._on_step_connection(_LOOK, look), None))

    async def _on_step_connection(self, begin: str, work: Callable[[StepConnection], T]) -> T:
        connections = self.connections

        def make_room() -> None:
            self.loop.call_soon_threadsafe(connections.make_room)

        begin += self.address.begins_with()
        async with connections.room:
            run = connections.step_connections.run
            return await self.loop.run_in_executor(self.threads, run, begin, work, make_room)

    async def learn_combos(self, wanted: Iterable[tuple[str, str, int]]) -> bool:
        """Read the ids of the combinations that this process does not know yet. Return whether any was found."""
        unknown = {combo for combo in wanted if combo not in self.combo_ids}
        if not unknown:
            return False
        for combo, queue, name, task, priority in await self.call(
            "combos_of_queues", [queue for queue, _, _ in unknown]
        ):
            self.combo_ids[name, task, priority] = combo, queue
        return not unknown.isdisjoint(self.combo_ids)

    async def know_combos(self, numbers: Iterable[int]) -> None:
        if not self.combo_names.keys() >= set(numbers):
            for combo, queue, task, priority in await self.call("combo_names"):
                self.combo_names[combo] = queue, task, priority

    async def after_call(self, call: str, name: str, *args: Any) -> Any:
        """Wait until the call whose reply was lost has ended on the server, then run a query and return its rows."""
        async with self.connections.one() as connection, transaction(connection):
            await connection.execute("SET LOCAL lock_timeout = '10s'")
            await connection.fetch(self.sql["take_locks"], [call_lock(call)], [False], True)
            return await connection.fetch(self.sql[name], *args)

    # ── retries ───────────────────────────────────────────────────────────────────────────────

    async def _with_retries(
        self,
        step: Callable[[], Coroutine[Any, Any, Any]],
        again: Callable[[], Awaitable[Any]] | None,
        fast_path: bool = False,
        numbered: bool = False,
        brief: bool = False,
        commits_early: bool = False,
    ) -> Any:
        """Run `step` until it succeeds, and return its result. After a lost reply, return the result that `again`
        finds, if any.

        Set `commits_early` if the step continues after its commit: an error of such a step may be one of the
        continuation. Raise NotOnFastPath if a fast-path statement meets an id that exists, if `brief` is set and
        the statement has any conflict, or if the connection is lost and `numbered` is set. Raise StoreError after
        `PATIENCE` seconds.
        """
        deadline = self.loop.time() + PATIENCE
        attempt, cut, may_have_committed = 0, False, False
        while True:
            generation = self.connections.generation
            try:
                if may_have_committed and again is not None:
                    known = await again()
                    if known is not None:
                        return known
                return await step()
            except RetryStep:
                pass
            except QueueError:
                raise
            except Exception as error:
                if code_of(error) == NOT_ON_FAST_PATH or (code_of(error) == TAKEN and fast_path):
                    raise NotOnFastPath(may_have_committed) from None
                if isinstance(error, Held) or passes(error):
                    may_have_committed |= commits_early
                    if brief:
                        raise NotOnFastPath(may_have_committed) from None
                elif is_cut(error):
                    cut = may_have_committed = True
                    if may_have_moved(error):
                        await self._renew(generation)
                    if numbered:
                        raise NotOnFastPath(may_have_committed) from None
                else:
                    if not code_of(error):
                        raise
                    raise store_error(error, self.address.url) from error
                if self.loop.time() > deadline:
                    cause = error.__cause__ if isinstance(error, Held) and error.__cause__ else error
                    raise store_error(cause, self.address.url) from error
            attempt += 1
            if self.loop.time() > deadline:
                raise StoreError(
                    f"{self.address.url}: other transactions held the locks that this call needs for {PATIENCE:.0f} s. "
                    "Nothing of it was written; look for transactions that stay open, and call again."
                )
            if attempt > 1 or cut:
                await asyncio.sleep(min(1.0, 0.002 * 2 ** min(attempt, 9)) * (0.5 + random.random()))

    async def _renew(self, seen: int) -> None:
        """Discard connections and caches. After a failover, the new server may not have the last commits of the old
        server.
        """
        if seen == self.connections.generation:
            self.combo_ids, self.combo_names, self.exact_locks = {}, {}, {}
        await self.connections.renew(seen)


async def _uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run a step to its end, even if the caller is cancelled meanwhile, and return its result.

    Otherwise a connection would be left inside a transaction.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise


# ── what was committed when a reply was lost: a claim is found by its id, a settle by its leases ──


def claimed_before(session: Session, claim_id: str) -> LostReply[list[Job]]:
    async def look() -> Before[list[Job]] | None:
        rows = await session.after_call(claim_id, "held_by_claim", f"{claim_id}.")
        return Before([job_from_row(row) for row in rows]) if rows else None

    return look


def settle_name(items: Sequence[tuple[Lease, Change]]) -> str:
    """Return a name for a settle call: among its leases, the id of the one with the lowest seq."""
    return min(items, key=lambda item: item[0].seq)[0].id


def settled_before(session: Session, items: Sequence[tuple[Lease, Change]]) -> LostReply[list[Receipt]]:
    """Return a function that looks up the receipts of a settle whose reply was lost.

    The function returns None if nothing was written. A settle is atomic, so one event under one of its leases shows
    that the whole call was committed.
    """

    async def look() -> Before[list[Receipt]] | None:
        seqs, ids = [lease.seq for lease, _ in items], [lease.id for lease, _ in items]
        rows = await session.after_call(
            settle_name(items), "ended_under", seqs, ids, _ENDS, KIND_NUMBER[Kind.CANCELLED]
        )
        ended = {lease: cancelled for lease, cancelled, _, _ in rows}
        if not ended:
            return None
        cancelling = [change.verb.value in ("retry", "snooze", "release") for _, change in items]
        return Before(
            [
                Receipt.LOST
                if lease.id not in ended
                else Receipt.CANCELLING
                if ended[lease.id] and back
                else Receipt.OK
                for (lease, _), back in zip(items, cancelling, strict=True)
            ],
            ended=[job_id for _, _, job_id, _ in rows if job_id is not None],
            replies=[(channel, job_id) for _, _, job_id, channel in rows if channel is not None],
        )

    return look
