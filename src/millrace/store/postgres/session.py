"""A store's life on one event loop: its connections, and steps of the ledger run over them.

A plain statement is asked on the loop, a step of the ledger runs in a thread. What met a lock, a deadlock or somebody
who was faster was undone, and is done again. After a lost connection nobody knows whether it happened: it is asked for
again, and told so.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import asyncpg

from millrace.domain.errors import QueueError, StoreError
from millrace.domain.ledger import Ledger
from millrace.store.clock import Clock
from millrace.store.postgres.address import Address
from millrace.store.postgres.connections import Connections
from millrace.store.postgres.desk import Desk
from millrace.store.postgres.plain import SOON
from millrace.store.postgres.sql import statements
from millrace.store.postgres.tables import PostgresTables
from millrace.store.postgres.trouble import LONG_WAY, TAKEN, code_of, is_cut, passes, store_error
from millrace.store.postgres.unit import Again, Held, Plan

T = TypeVar("T")
Question = Callable[[Ledger, int], T]

PATIENCE = 30.0  # seconds for which a step is tried again
# What a step reads it finds by an index, in its order. In a table that was never analyzed a server expects few rows in
# any range, and would rather collect and sort them: all of the table, as it may turn out.
_BY_INDEX = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off"
_BEGIN = f"BEGIN; {_BY_INDEX}"
_LOOK = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_BY_INDEX}"


@dataclass(frozen=True)
class Before(Generic[T]):
    """It had already happened when a reply was lost; this was the answer."""

    answer: T


LostReply = Callable[[], Awaitable[Before[T] | None]]


def call_lock(name: str) -> str:
    return f"call {name}"


class LongWay(Exception):
    """A plain statement turned out not to be enough."""


class Session:
    def __init__(self, address: Address, clock: Clock | None) -> None:
        self.address = address
        self.sql = statements(address.schema)
        self.clock = clock
        self.connections = Connections(address)
        self.loop = asyncio.get_running_loop()
        self.threads = ThreadPoolExecutor(address.connections, thread_name_prefix="millrace-postgres")
        self.combo_ids: dict[tuple[str, str, int], tuple[int, int]] = {}  # committed ones keep their numbers for good
        self.combo_names: dict[int, tuple[str, str, int]] = {}
        self.exact_locks: dict[str, str] = {}  # of queues whose steps take turns, as far as was seen
        # A statement that commits by itself, and goes on, cannot be in a transaction, which such a pooler needs.
        self.may_tell = address.pooler == "none"
        self.identity = ""  # of the database's own schema: a caller's connection must show the same
        self.fit_out: Callable[[PostgresTables], None] = lambda tables: None

    def given(self) -> int | None:
        """The instant that stands for the server's clock, in tests."""
        return None if self.clock is None else self.clock()

    async def close(self) -> None:
        await self.connections.close()
        await self.loop.run_in_executor(self.threads, self.connections.desks.close)
        self.threads.shutdown(wait=False)

    def leave(self) -> None:
        """The event loop is over, and nothing can be done on it; desks have loops of their own, and can be closed."""
        self.threads.submit(self.connections.desks.close)
        self.threads.shutdown(wait=False)

    # ── one statement ─────────────────────────────────────────────────────────────────────────

    async def call(self, name: str, *args: Any, again: LostReply[Any] | None = None) -> Any:
        """A statement that is a transaction by itself. `again` answers instead of it, after a lost reply, if it can."""
        sql = self.sql[name]

        async def ask() -> Any:
            async with self.connections.one() as connection:
                if not self.may_tell:
                    async with connection.transaction():
                        return await connection.fetch(sql, *args)
                return await connection.fetch(sql, *args)

        return await _unbroken(self._tries(ask, again, plain=True))

    async def call_and_tell(
        self, name: str, untold: str, args: Sequence[Any], word: Sequence[str], again: LostReply[Any] | None = None
    ) -> Any:
        """A statement that tells others after its commit; `untold` is the one that does not."""
        told = True

        async def ask() -> Any:
            nonlocal told
            async with self.connections.one() as connection:
                if not told:
                    return await connection.fetch(self.sql[untold], *args)
                try:
                    return await connection.fetch(self.sql[name], *args, *word)
                except asyncpg.ProgramLimitExceededError as error:  # no room for words, and the commit may have been
                    told = False
                    raise ConnectionError("the server has no room for notifications") from error

        return await _unbroken(self._tries(ask, again, plain=True))

    # ── steps of the ledger ───────────────────────────────────────────────────────────────────

    async def write(
        self,
        question: Question[T],
        *,
        queues: Iterable[str] = (),
        call: str | None = None,
        again: LostReply[T] | None = None,
    ) -> tuple[T, PostgresTables | None]:
        """`queues` are those that the step will look at: where steps take turns, it waits for its own at once.

        `call` names this very call: who asks again after a lost reply waits until the first one is over.
        """
        plan = Plan()
        if call is not None:
            plan.add_lock(call_lock(call), shared=False)
        for queue in queues:
            if queue in self.exact_locks:
                plan.add_lock(self.exact_locks[queue], shared=False)

        async def step() -> tuple[T, PostgresTables]:
            answer, tables = await self._at_a_desk(_BEGIN, lambda desk: self._run(desk, question, plan))
            self.combo_ids.update(tables.combo_ids)
            self.exact_locks = {
                queue: lock for queue, lock in self.exact_locks.items() if queue not in tables.seen_queues()
            } | tables.exact_locks
            return answer, tables

        done: tuple[T, PostgresTables] | Before[T] = await _unbroken(self._tries(step, again))
        return (done.answer, None) if isinstance(done, Before) else done

    def _run(self, desk: Desk, question: Question[T], plan: Plan) -> tuple[T, PostgresTables]:
        tables = PostgresTables(desk, self.sql, plan)
        self.fit_out(tables)
        tables.combo_ids.update(self.combo_ids)
        now = int(tables.begin(self.given()))
        tables.soon = now + SOON
        answer = question(Ledger(tables), now)
        tables.flush()
        return answer, tables

    async def read(self, question: Question[T]) -> T:
        def look(desk: Desk) -> T:
            tables = PostgresTables(desk, self.sql, writes=False)
            tables.combo_names = self.combo_names  # what was seen here was committed
            given = self.given()
            tables.now = int(tables.value("clock", None)) if given is None else given
            return question(Ledger(tables), tables.now)

        return await _unbroken(self._tries(lambda: self._at_a_desk(_LOOK, look), None))

    async def _at_a_desk(self, begin: str, work: Callable[[Desk], T]) -> T:
        connections = self.connections

        def make_room() -> None:
            self.loop.call_soon_threadsafe(connections.make_room)

        begin += self.address.begins_with()
        async with connections.room:
            return await self.loop.run_in_executor(self.threads, connections.desks.run, begin, work, make_room)

    async def learn_combos(self, wanted: Iterable[tuple[str, str, int]]) -> bool:
        """Look up the combinations that this process has not seen yet; False when that brought nothing."""
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
        """Rows of a statement, once a call whose reply was lost is over: the server may still be at it."""
        async with self.connections.one() as connection, connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '10s'")
            await connection.fetch(self.sql["take_locks"], [call_lock(call)], [False], True)
            return await connection.fetch(self.sql[name], *args)

    # ── trying again ──────────────────────────────────────────────────────────────────────────

    async def _tries(
        self,
        step: Callable[[], Coroutine[Any, Any, Any]],
        again: Callable[[], Awaitable[Any]] | None,
        plain: bool = False,
    ) -> Any:
        """`plain`: what meets somebody else's row is not tried again, but goes the long way."""
        deadline = self.loop.time() + PATIENCE
        attempt, cut = 0, False
        while True:
            try:
                if cut and again is not None:
                    known = await again()
                    if known is not None:
                        return known
                return await step()
            except Again:
                pass
            except QueueError:
                raise
            except Exception as error:
                if code_of(error) == LONG_WAY or (code_of(error) == TAKEN and plain):
                    raise LongWay from None
                if isinstance(error, Held) or passes(error):
                    pass
                elif is_cut(error):
                    cut = True
                else:
                    if not code_of(error):
                        raise
                    raise store_error(error, self.address.url) from error
                if self.loop.time() > deadline:
                    told = error.__cause__ if isinstance(error, Held) and error.__cause__ else error
                    raise store_error(told, self.address.url) from error
            attempt += 1
            if self.loop.time() > deadline:
                raise StoreError(
                    f"{self.address.url}: what this call needs was locked by others for {PATIENCE:.0f} s. Nothing of "
                    "it was written; look for transactions that stay open, and call again."
                )
            if attempt > 1 or cut:
                await asyncio.sleep(min(1.0, 0.002 * 2 ** min(attempt, 9)) * (0.5 + random.random()))


async def _unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Carry a step through also when whoever asked is cancelled: a connection cannot be left in the middle."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise
