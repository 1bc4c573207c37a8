"""How much an operation reads does not depend on how many jobs there are: on tables never analyzed, or analyzed empty."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from millrace.domain.change import Change
from millrace.domain.check import specs_like
from millrace.domain.job import Spec
from millrace.domain.request import Extension, Query
from millrace.store.postgres import PostgresStore
from millrace.testing.builders import a_claim, a_reclaim, a_spec
from tests.servers.postgres import url_for

TABLES = ("job", "ready", "lease", "event", "feed", "outbox", "past", "dependency", "agenda", "line", "hold")
SIZES = [0, 200, 20_000, pytest.param(1_000_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
READ = """
SELECT coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)::bigint FROM pg_stat_user_tables
WHERE schemaname = $1 AND relname = ANY ($2)
"""


class Measured:
    """A store on one connection, and how many rows its scans and index look-ups have touched."""

    def __init__(self, store: PostgresStore, witness: Any) -> None:
        self.store = store
        self._witness = witness

    async def _touched(self) -> int:
        async with self.store.session().connections.one() as connection:
            await connection.fetch("SELECT pg_stat_force_next_flush()")
        count: int = await self._witness.fetchval(READ, self.store.address.schema, list(TABLES))
        return count

    async def rows(self, act: Callable[[], Awaitable[Any]]) -> int:
        before = await self._touched()
        await act()
        return await self._touched() - before


@asynccontextmanager
async def filled(folder: Path, waiting: int, analyzed: bool) -> AsyncIterator[Measured]:
    store = PostgresStore(url_for(folder) + "&notify=off&connections=1")
    await store.connect()
    witness = await asyncpg.connect(store.address.dsn)
    try:
        await store.enqueue([Spec(id="first", task="work", delay=60_000)])
        if analyzed:  # while there was nothing: every plan is one for empty tables
            await witness.execute("; ".join(f'ANALYZE "{store.address.schema}"."{table}"' for table in TABLES))
        for start in range(0, waiting, 1_000):
            ids = [f"{start + n:07d}" for n in range(min(1_000, waiting))]
            await store.enqueue(specs_like(Spec(id="x", task="work"), ids, [b""] * len(ids)))
        yield Measured(store, witness)
    finally:
        await witness.close()
        await store.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("analyzed", [False, True], ids=["never analyzed", "analyzed empty"])
@pytest.mark.parametrize("waiting", SIZES)
async def test_no_operation_reads_more_because_more_jobs_wait(tmp_path: Path, waiting: int, analyzed: bool) -> None:
    async with filled(tmp_path, waiting, analyzed) as measured:
        store = measured.store
        held: list[Any] = []

        async def claim() -> None:
            held[:] = await store.claim(a_claim(10))

        async def settle() -> None:
            await store.settle([(job.lease, Change.completed(b"1")) for job in held])

        async def extend() -> None:
            await store.extend([Extension(job.lease) for job in held])

        async def settle_in_a_group() -> None:
            [job] = await store.claim(a_claim(1, queues=("side",)))
            await store.settle([(job.lease, Change.completed())])

        await store.enqueue([a_spec(id="side", queue="side", group="g", key="k")])
        acts: dict[str, tuple[int, Callable[[], Awaitable[Any]]]] = {
            "claim ten": (60, claim),
            "extend ten": (60, extend),
            "end ten": (80, settle),
            "enqueue one": (20, lambda: store.enqueue([a_spec(id="new")])),
            "enqueue with a key and a parent": (
                80,
                lambda: store.enqueue([a_spec(id="child", key="k2", group="g", after=("new",))]),
            ),
            "claim and end in a group": (80, settle_in_a_group),
            "get": (20, lambda: store.get(["0000001"])),
            "history": (20, lambda: store.history("0000001")),
            "position of the next": (60, lambda: store.position("new" if waiting == 0 else "0000011")),
            "a page of ten": (60, lambda: store.find(Query(limit=10))),
            "reclaim": (60, lambda: store.reclaim(a_reclaim(10))),
            "sleep": (40, lambda: store.wait(["default"], None, 0.0)),
            "cancel one": (60, lambda: store.cancel(["new"])),
        }
        await store.maintain()  # what the filling left to it
        await store.events("end", 1)
        read = {name: (await measured.rows(act), most) for name, (most, act) in acts.items()}

    assert {name: count for name, (count, most) in read.items() if count > most} == {}
    assert len(held) == min(10, waiting)
    assert waiting == 0 or read["claim ten"][0] >= 10  # it is counted at all
