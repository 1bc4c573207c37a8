"""A transaction somewhere that never ends keeps vacuum from removing anything; the queue goes on at its pace."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.request import Receipt
from millrace.domain.rules.check import specs_like
from millrace.store.postgres import PostgresStore, fast_path
from millrace.testing.builders import a_claim
from tests.servers.postgres import url_for

BATCH = 50


@asynccontextmanager
async def with_an_old_snapshot(folder: Path) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url_for(folder) + "&notify=off")
    await store.connect()
    holder = await asyncpg.connect(store.address.dsn)
    try:
        await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await holder.fetchval("SELECT count(*) FROM pg_class")
        yield store
    finally:
        await holder.close()
        await store.close()


async def put(store: PostgresStore, first: int, count: int) -> None:
    for start in range(first, first + count, 1_000):
        ids = [f"{n:08d}" for n in range(start, min(start + 1_000, first + count))]
        await store.enqueue(specs_like(Spec(id="x", task="work"), ids, [b""] * len(ids)))


async def work(store: PostgresStore, count: int) -> list[str]:
    done: list[str] = []
    while len(done) < count:
        jobs = await store.claim(a_claim(BATCH))
        receipts = await store.settle([(job.lease, Change.completed()) for job in jobs])
        assert set(receipts) == {Receipt.OK}
        done += [job.id for job in jobs]
    return done


async def pages_of_a_claim(store: PostgresStore) -> int:
    """How many pages the store's next claim would touch; it is undone."""
    floor = store.floors.at(store.session().loop.time())
    arguments = fast_path.claim_arguments(a_claim(BATCH), "looked-at", floor)
    async with store.session().connections.one() as connection:
        attempt = connection.transaction()
        await attempt.start()
        try:
            sql = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + store.session().sql["claim_plain"]
            await connection.fetch(
                store.session().sql["claim_plain"], None, *arguments
            )  # what is read only once is read
            await attempt.rollback()
            attempt = connection.transaction()
            await attempt.start()
            found: Any = json.loads(await connection.fetchval(sql, None, *arguments))
        finally:
            await attempt.rollback()
    plan = found[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def test_claims_do_not_wade_through_what_vacuum_may_not_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_path, "_FLOOR_LASTS", 60.0)  # however slow this machine is
    async with with_an_old_snapshot(tmp_path) as store:
        await put(store, 0, 12_000)
        done = await work(store, BATCH)
        early = await pages_of_a_claim(store)
        done += await work(store, 8_000)
        late = await pages_of_a_claim(store)
        store.floors.forget()
        without_floor = await pages_of_a_claim(store)
        assert done == [f"{n:08d}" for n in range(len(done))]
        assert late <= 2 * early + 20
        assert without_floor > late  # there was something to wade through, so this test could fail


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_a_queue_keeps_its_pace_for_minutes_beside_an_old_snapshot(tmp_path: Path) -> None:
    async with with_an_old_snapshot(tmp_path) as store:
        rates = []
        began = time.monotonic()
        first = 0
        while time.monotonic() < began + 120:
            await put(store, first, 5_000)
            start = time.perf_counter()
            await work(store, 5_000)
            rates.append(5_000 / (time.perf_counter() - start))
            first += 5_000
            await store.maintain()
        third = len(rates) // 3
        print([round(rate) for rate in rates])
        assert sorted(rates[-third:])[third // 2] >= 0.5 * sorted(rates[:third])[third // 2]
