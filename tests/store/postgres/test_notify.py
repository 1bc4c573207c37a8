"""LISTEN/NOTIFY on against off: it makes waiting shorter, and nothing else depends on it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import asyncpg
import pytest

from millrace import App
from millrace.store.postgres import PostgresStore
from millrace.store.postgres import store as stores
from millrace.testing.builders import a_spec
from tests.servers.postgres import url_for


async def listeners(url: str) -> int:
    """Sessions that listen on a channel of this store."""
    address = PostgresStore(url).address
    connection = await asyncpg.connect(address.dsn)
    try:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'millrace' AND query ILIKE 'LISTEN%'"
        asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'millrace' AND query LIKE '%pg_notify%'"
        return int(await connection.fetchval(sql)) + int(await connection.fetchval(asked))
    finally:
        await connection.close()


async def waited(url: str) -> float:
    """Seconds that a store slept over an enqueue of another one."""
    sleeper, producer = PostgresStore(url), PostgresStore(url)
    await sleeper.connect()
    await producer.connect()
    try:
        await producer.enqueue([a_spec(id="later", delay=3600)])
        asleep = asyncio.ensure_future(sleeper.wait(["default"], None, 600.0))
        await asyncio.sleep(0.5)
        assert not asleep.done()
        began = time.monotonic()
        await producer.enqueue([a_spec(id="now")])
        await asyncio.wait_for(asleep, 120)
        return time.monotonic() - began
    finally:
        await sleeper.close()
        await producer.close()


async def test_with_notify_a_sleeper_wakes_long_before_it_would_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_SLICE", 100.0)

    assert await waited(url_for(tmp_path)) < 80.0


async def test_without_notify_a_sleeper_looks_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_SLICE", 1.0)

    assert await waited(url_for(tmp_path) + "&notify=off") < 100.0


@pytest.mark.parametrize("notify", ["on", "off"])
async def test_an_app_answers_the_same_with_notify_on_and_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notify: str
) -> None:
    monkeypatch.setattr(stores, "_SLICE", 0.3)
    url = f"{url_for(tmp_path)}&notify={notify}"
    here, there = App(url), App(url)

    @there.task(name="double")
    async def work(n: int) -> int:
        return 2 * n

    @here.task(name="double")
    async def double(n: int) -> int:
        raise AssertionError("it runs in the other one")

    async with here, there, there.worker(slots=4):
        answers = await asyncio.gather(*(double.options(wait=30).call(n) for n in range(12)))
        heard = await listeners(url)
        counts = [(row.completed, row.waiting, row.running) for row in await (await here.connected()).count()]

    assert answers == [2 * n for n in range(12)]
    assert counts == [(12, 0, 0)]
    assert (heard > 0) == (notify == "on")
