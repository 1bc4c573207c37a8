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


async def test_a_reader_beside_sixteen_writers_misses_nothing(tmp_path: Path) -> None:
    store = PostgresStore(url_for(tmp_path))
    await store.connect()
    try:
        for queue in ("q0", "q1", "q2"):
            await store.enqueue([a_spec(id=queue, queue=queue)])
        done = asyncio.Event()
        readers = [asyncio.ensure_future(follow(store, done)) for _ in range(2)]
        await asyncio.gather(*(write(store, n, random.Random(n)) for n in range(WRITERS)))
        done.set()
        first, second = await asyncio.gather(*readers)
    finally:
        await store.close()

    assert first == second
    assert len(first) == WRITERS * EACH + 3
    assert len({event.job for event in first}) == len(first)


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
