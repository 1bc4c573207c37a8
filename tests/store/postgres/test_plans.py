"""How much an operation reads does not depend on how many jobs there are, nor on what the server believes.

Tables were never analyzed, or while they were empty, or vacuumed as well when their first jobs were done, or are
believed to be empty whatever they hold.

A server keeps a plan that it has made for a session. So each operation is first done again and again while there is
next to nothing, until its plans are there to stay, and then measured with many jobs by the same session, as soon as the
store has had its time to notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Extension, Query
from millrace.domain.rules.check import specs_like
from millrace.store.postgres import PostgresStore, connections
from millrace.testing.builders import a_claim, a_reclaim, a_spec
from tests.servers.postgres import url_for

TABLES = (
    "job",
    "ready",
    "lease",
    "event",
    "feed",
    "outbox",
    "past",
    "dependency",
    "dependent",
    "agenda",
    "line",
    "member",
    "hold",
)
SIZES = [0, 20_000, pytest.param(1_000_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
TENDED = ["never analyzed", "analyzed empty", "vacuumed and analyzed empty", "believed empty"]
WARM = 7  # rounds; from the sixth on a server may have one plan for all arguments
READ = """
SELECT coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)::bigint FROM pg_stat_user_tables
WHERE schemaname = $1 AND relname = ANY ($2)
"""

# As a vacuum leaves it that comes between two bursts: pages that are there to be used again, and not one row in them.
# However the table grows then, one row is what the server expects, until the next vacuum.
BELIEVED_EMPTY = """
UPDATE pg_class SET relpages = 1, reltuples = 0 WHERE relnamespace = $1::regnamespace AND relname = ANY ($2)
"""


def no_room() -> None:
    """There is a connection already; none is given up for another."""


class Measured:
    """A store on one connection, and how many rows its scans and index look-ups have touched."""

    def __init__(self, store: PostgresStore, witness: Any) -> None:
        self.store = store
        self._witness = witness

    async def _touched(self) -> int:
        flush = "SELECT pg_stat_force_next_flush()"
        async with self.store.session().connections.one() as connection:
            await connection.fetch(flush)
        async with self.store.session().connections.room:
            run = self.store.session().connections.step_connections.run
            await asyncio.to_thread(run, "BEGIN", lambda connection: connection.execute(flush), no_room)
        count: int = await self._witness.fetchval(READ, self.store.address.schema, list(TABLES))
        return count

    async def rows(self, act: Callable[[], Awaitable[Any]]) -> int:
        before = await self._touched()
        await act()
        return await self._touched() - before


class Acts:
    """One of each operation. They go in this order, and each round of them leaves behind what it found."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._round = 0
        self.held: list[Any] = []

    def all(self) -> dict[str, tuple[int, Callable[[], Awaitable[Any]]]]:
        """With the rows that each may read."""
        store, n = self._store, self._round
        self._round += 1
        return {
            "claim ten": (60, self._claim),
            "extend ten": (60, lambda: store.extend([Extension(job.lease) for job in self.held])),
            "end ten": (80, lambda: store.settle([(job.lease, Change.completed(b"1")) for job in self.held])),
            "enqueue one": (20, lambda: store.enqueue([a_spec(id=f"new-{n}", queue="other")])),
            "enqueue with a key and a parent": (
                80,
                lambda: store.enqueue([a_spec(id=f"child-{n}", queue="side", key="k", group="g", after=(f"new-{n}",))]),
            ),
            "get": (20, lambda: store.get([f"new-{n}"])),
            "history": (20, lambda: store.history(f"new-{n}")),
            "position": (60, lambda: store.position(f"new-{n}")),
            "a page of ten": (400, lambda: store.find(Query(limit=10))),
            "a page of what is dead": (400, lambda: store.find(Query(limit=10, state="dead"))),
            "ten of the feed": (100, lambda: store.events("end", 10)),
            "reclaim": (60, lambda: store.reclaim(a_reclaim(10))),
            "sleep": (40, lambda: store.wait(["default"], None, 0.0)),
            "claim what has children": (80, lambda: self._end(Change.retry(Failure("E", "no"), delay=0))),
            "end what has children": (120, lambda: self._end(Change.completed())),
            "end in a group": (120, lambda: self._end(Change.completed(), "side")),
            "cancel one": (80, lambda: store.cancel([f"new-{n}"])),
            "replay one": (80, lambda: store.replay([f"new-{n}"])),
            "cancel it again": (80, lambda: store.cancel([f"new-{n}"])),
            "upkeep": (1_500, lambda: store.maintain(100)),  # it looks at a thousand rows of the feed at most
        }

    async def _claim(self) -> None:
        self.held = await self._store.claim(a_claim(10))

    async def _end(self, change: Change, queue: str = "other") -> None:
        [job] = await self._store.claim(a_claim(1, queues=(queue,)))
        await self._store.settle([(job.lease, change)])


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[PostgresStore, Any]]:
    store = PostgresStore(url_for(folder) + "&notify=off&connections=1")
    await store.connect()
    witness = await asyncpg.connect(store.address.dsn)
    try:
        yield store, witness
    finally:
        await witness.close()
        await store.close()


async def fill(store: PostgresStore, waiting: int) -> None:
    for start in range(0, waiting, 1_000):
        ids = [f"{start + n:07d}" for n in range(min(1_000, waiting))]
        await store.enqueue(specs_like(Spec(id="x", task="work"), ids, [b""] * len(ids)))


async def tend(store: PostgresStore, witness: Any, how: str) -> None:
    for table in TABLES:
        await witness.execute(f'{how} "{store.address.schema}"."{table}"')


@pytest.mark.timeout(120)
@pytest.mark.parametrize("tended", TENDED)
@pytest.mark.parametrize("waiting", SIZES)
async def test_no_operation_reads_more_because_more_jobs_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: int, tended: str
) -> None:
    monkeypatch.setattr(connections, "PLAN_AGAIN", 0.2)
    async with opened(tmp_path) as (store, witness):
        await store.enqueue([Spec(id="first", task="work", delay=60_000)])
        if tended == "analyzed empty":
            await tend(store, witness, "ANALYZE")
        acts = Acts(store)
        for _ in range(WARM):
            for _, act in acts.all().values():
                await act()
        if tended == "vacuumed and analyzed empty":
            await tend(store, witness, "VACUUM ANALYZE")
        if tended == "believed empty":
            await witness.execute(BELIEVED_EMPTY, store.address.schema, list(TABLES))
        await fill(store, waiting)
        await store.maintain()  # what the filling left to it
        await store.events("end", 1)
        await asyncio.sleep(2 * connections.PLAN_AGAIN)
        measured = Measured(store, witness)
        read = {name: (await measured.rows(act), most) for name, (most, act) in acts.all().items()}

    print({name: count for name, (count, _) in read.items()})
    spare = 0 if waiting else 300  # of next to nothing, a server may as well read all
    assert {name: count for name, (count, most) in read.items() if count > most + spare} == {}
    assert len(acts.held) == min(10, waiting)
    assert waiting == 0 or read["claim ten"][0] >= 10  # it is counted at all
