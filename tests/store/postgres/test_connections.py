"""How many connections a process has, whatever it does at once: as many as its URL allows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from millrace.domain.change import Change
from millrace.store.postgres import PostgresStore
from millrace.testing.builders import a_claim, a_spec
from tests.servers.postgres import url_for


async def sessions(store: PostgresStore) -> int:
    connection = await asyncpg.connect(store.address.dsn)
    try:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'millrace'"
        return int(await connection.fetchval(sql))
    finally:
        await connection.close()


async def settled(store: PostgresStore, at_most: int) -> int:
    """A session takes a moment to go."""
    for _ in range(100):
        if (count := await sessions(store)) <= at_most:
            return count
        await asyncio.sleep(0.05)
    return count


@pytest.mark.parametrize(("allowed", "most"), [(1, 2), (3, 3)])
async def test_plain_work_and_steps_together_keep_within_what_is_allowed(
    tmp_path: Path, allowed: int, most: int
) -> None:
    store = PostgresStore(f"{url_for(tmp_path)}&notify=off&connections={allowed}")
    others = await sessions(store)

    async def plain(n: int) -> None:
        await store.enqueue([a_spec(id=f"plain-{n}")])
        await store.get([f"plain-{n}"])

    async def step(n: int) -> None:
        await store.enqueue([a_spec(id=f"step-{n}", group=f"g{n}", key=f"k{n}")])

    await store.connect()
    try:
        await store.enqueue([a_spec(id="first")])
        for _ in range(2):
            await asyncio.gather(*(plain(n) for n in range(12)))
            assert await settled(store, others + most) <= others + most
            await asyncio.gather(*(step(n) for n in range(12)))
            assert await settled(store, others + most) <= others + most
        await asyncio.gather(*(work(n + 100) for n in range(12) for work in (plain, step)))
        assert await settled(store, others + most) <= others + most
        jobs = await store.claim(a_claim(100))
        assert len(jobs) == 1 + 12 + 12 + 12 + 12
        await store.settle([(job.lease, Change.completed()) for job in jobs])
    finally:
        await store.close()

    assert await settled(store, others) <= others
