"""A claim that begins where the last one ended: nothing is passed over for longer than a moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from millrace.domain.change import Change
from millrace.store.postgres import PostgresStore, fast_path
from millrace.testing.builders import a_claim, a_spec
from tests.servers.postgres import url_for

LASTS = fast_path._FLOOR_LASTS


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    """With a job that was put in before ten others, in a transaction that commits after five of them are claimed."""
    monkeypatch.setattr(fast_path, "_FLOOR_LASTS", 600.0)  # until a test ends it, however busy this machine is
    made = PostgresStore(url_for(tmp_path))
    await made.connect()
    await made.enqueue([a_spec(id="known", delay=3600)])
    connection = await asyncpg.connect(made.address.dsn)
    try:
        slow = connection.transaction()
        await slow.start()
        await made.within(connection).enqueue([a_spec(id="late")])
        await asyncio.sleep(0.005)
        await made.enqueue([a_spec(id=f"{n}") for n in range(10)])
        assert [job.id for job in await made.claim(a_claim(5))] == ["0", "1", "2", "3", "4"]
        assert made.floors.at(made.session().loop.time()) is not None
        await slow.commit()
        yield made
    finally:
        await connection.close()
        await made.close()


async def test_what_came_in_below_is_claimed_when_there_is_too_little_above(store: PostgresStore) -> None:
    assert [job.id for job in await store.claim(a_claim(10))] == ["late", "5", "6", "7", "8", "9"]


async def test_what_came_in_below_is_claimed_after_a_moment(store: PostgresStore) -> None:
    first = [job.id for job in await store.claim(a_claim(2))]
    assert LASTS < 0.3
    store.floors._until -= 600  # the moment has passed

    assert first == ["5", "6"]
    assert [job.id for job in await store.claim(a_claim(2))] == ["late", "7"]


async def test_what_this_process_gives_back_is_claimed_in_order(store: PostgresStore) -> None:
    [five] = await store.claim(a_claim(1))
    await store.settle([(five.lease, Change.release())])

    assert [job.id for job in await store.claim(a_claim(3))] == ["late", "5", "6"]
