"""One enqueue wakes a few of many idle workers, not all of them, whichever server is behind it (BE-14)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.store.connect import connect
from millrace.testing.builders import a_spec, a_worker, seconds
from tests.servers import postgres, redis_server

WORKERS = 24
LONG = 60.0
PLACES: dict[str, Callable[[Path], str]] = {"redis": redis_server.url_for, "postgres": postgres.url_for}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PLACES)
async def test_one_enqueue_wakes_a_few_of_many(tmp_path: Path, name: str):
    """Each waits as in a process of its own. Nothing is there for those who are woken for nothing."""
    url = PLACES[name](tmp_path)
    producer, *stores = [connect(url) for _ in range(1 + WORKERS)]
    for store in (producer, *stores):
        await store.connect()
    for number, store in enumerate(stores):
        await store.beat(a_worker(f"w{number}"), seconds(LONG))
    sleepers = [asyncio.create_task(store.wait(["default"], None, LONG)) for store in stores]
    await asyncio.sleep(2.0)  # until all have looked, and are told
    try:
        assert not any(task.done() for task in sleepers), "woken by nothing"
        await producer.enqueue([a_spec()])
        async with asyncio.timeout(LONG / 2):
            while not any(task.done() for task in sleepers):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        woken = sum(task.done() for task in sleepers)
    finally:
        for task in sleepers:
            task.cancel()
        await asyncio.gather(*sleepers, return_exceptions=True)
        for store in (producer, *stores):
            await store.close()

    assert 1 <= woken <= WORKERS * 2 // 3
