"""The feed loses nothing and repeats nothing, however long transactions take and in whatever order they commit."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import asyncpg

from millrace.domain.event import Event
from millrace.store.postgres import PostgresStore
from millrace.testing.builders import a_spec
from tests.servers.postgres import url_for

WRITERS = 16
EACH = 12


async def write(store: PostgresStore, number: int, chance: random.Random) -> None:
    """Jobs in transactions of random length: numbers are drawn in one order and committed in another."""
    connection = await asyncpg.connect(store.address.dsn)
    for n in range(EACH):
        async with connection.transaction():
            await store.within(connection).enqueue([a_spec(id=f"{number}-{n}", queue=f"q{number % 3}")])
            await asyncio.sleep(chance.choice([0, 0, 0.01, 0.05]))
    await connection.close()


async def follow(store: PostgresStore, done: asyncio.Event) -> list[Event]:
    events: list[Event] = []
    cursor: str | None = None
    while True:
        last = done.is_set()
        page = await store.events(cursor, 7)
        events += page.events
        cursor = page.cursor
        if last and not page.events:
            return events
        await asyncio.sleep(0.002)


async def follow_ids(store: PostgresStore, done: asyncio.Event) -> list[str]:
    """What many do: read whatever has a higher id than what was seen. But ids are not seen in the order of drawing."""
    connection = await asyncpg.connect(store.address.dsn)
    sql = f'SELECT id, ids FROM "{store.address.schema}".event WHERE id > $1 ORDER BY id'
    jobs: list[str] = []
    cursor = 0
    while True:
        last = done.is_set()
        rows = await connection.fetch(sql, cursor)
        jobs += [job for row in rows for job in row["ids"]]
        cursor = max([cursor, *(row["id"] for row in rows)])
        if last and not rows:
            await connection.close()
            return jobs
        await asyncio.sleep(0.002)


async def test_a_reader_beside_sixteen_writers_misses_nothing_where_ids_would(tmp_path: Path) -> None:
    store = PostgresStore(url_for(tmp_path))
    await store.connect()
    try:
        for queue in ("q0", "q1", "q2"):
            await store.enqueue([a_spec(id=queue, queue=queue)])
        done = asyncio.Event()
        readers = [asyncio.ensure_future(follow(store, done)) for _ in range(2)]
        by_id = asyncio.ensure_future(follow_ids(store, done))
        await asyncio.gather(*(write(store, n, random.Random(n)) for n in range(WRITERS)))
        done.set()
        first, second = await asyncio.gather(*readers)
        seen_by_id = await by_id
    finally:
        await store.close()

    assert first == second
    assert len(first) == WRITERS * EACH + 3
    assert len({event.job for event in first}) == len(first)
    assert set(seen_by_id) < {event.job for event in first}, "transactions were too short to put this to the test"


async def test_a_transaction_that_stays_open_holds_nobody_else_back(tmp_path: Path) -> None:
    store = PostgresStore(url_for(tmp_path))
    await store.connect()
    try:
        await store.enqueue([a_spec(id="first")])
        connection = await asyncpg.connect(store.address.dsn)
        slow = connection.transaction()
        await slow.start()
        await store.within(connection).enqueue([a_spec(id="slow")])
        await store.enqueue([a_spec(id="quick")])
        before = await store.events(None, 100)
        await slow.commit()
        after = await store.events(before.cursor, 100)
        await connection.close()
    finally:
        await store.close()

    assert [event.job for event in before.events] == ["first", "quick"]
    assert [event.job for event in after.events] == ["slow"]
