"""Waiting for an end takes as few trips as can be: asked for with the enqueue, and answered with the result (BR-16)."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator

import pytest

from millrace import App
from millrace.domain.change import Change
from millrace.domain.job import Job, State
from millrace.domain.request import Claim
from millrace.store.protocol import Ending
from millrace.store.redis import RedisStore
from millrace.testing.builders import a_spec
from tests.servers.redis_server import url_for

PATIENCE = 60.0


@pytest.fixture
async def store(tmp_path) -> AsyncIterator[RedisStore]:
    made = RedisStore(url_for(tmp_path))
    yield made
    await made.close()


async def take(store: RedisStore) -> Job:
    [job] = await store.claim(Claim(("default",), "worker", 1))
    return job


async def scripts_run(store: RedisStore) -> int:
    told = (await store._wire.command("INFO", "commandstats")).decode()
    return sum(map(int, re.findall(r"cmdstat_eval(?:sha)?:calls=(\d+)", told)))


async def is_watched(store: RedisStore) -> bool:
    return bool(await store._wire.command("EXISTS", f"{store._wire.prefix}watch"))


@pytest.mark.parametrize("result", [b"42", b"", None])
async def test_the_news_tell_how_the_job_ended(store: RedisStore, result: bytes | None):
    spec = a_spec(payload=b"payload", headers={"a": "b"})
    async with store.watch(spec.id) as watch:
        await store.enqueue([spec])
        job = await take(store)
        await store.settle([(job.lease, Change.completed(result, duration=7))])
        told = await watch.wait(PATIENCE)

    [kept] = await store.get([spec.id])
    assert kept is not None and (kept.state, kept.result) == (State.COMPLETED, result)
    assert told == Ending(kept.generation, result)


async def test_who_was_given_the_job_is_no_longer_written_down(store: RedisStore):
    spec = a_spec()
    async with store.watch(spec.id) as watch:
        await store.enqueue([spec])
        assert await is_watched(store)
        job = await take(store)
        await store.settle([(job.lease, Change.completed())])
        await watch.wait(PATIENCE)
        assert not await is_watched(store)


async def test_a_job_that_is_too_large_for_news_is_a_mere_hint(store: RedisStore):
    spec = a_spec()
    async with store.watch(spec.id) as watch:
        await store.enqueue([spec])
        job = await take(store)
        await store.settle([(job.lease, Change.completed(b"x" * 100_000))])
        begun = time.monotonic()
        assert await watch.wait(PATIENCE) is None
        assert time.monotonic() - begun < PATIENCE * 0.8


async def test_an_end_before_the_first_wait_is_found_by_it(store: RedisStore):
    spec = a_spec()
    await store.enqueue([spec])
    job = await take(store)
    async with store.watch(spec.id) as watch:
        await store.settle([(job.lease, Change.completed())])
        begun = time.monotonic()
        await watch.wait(PATIENCE)
        assert time.monotonic() - begun < PATIENCE * 0.8


async def test_a_watch_goes_on_after_the_news(store: RedisStore):
    spec = a_spec()
    async with store.watch(spec.id) as watch:
        await store.enqueue([spec])
        job = await take(store)
        await store.settle([(job.lease, Change.completed(b"1"))])
        assert await watch.wait(PATIENCE) is not None
        await store.replay([spec.id])
        waiting = asyncio.create_task(watch.wait(PATIENCE))
        while not await is_watched(store):
            await asyncio.sleep(0.01)
        job = await take(store)
        await store.settle([(job.lease, Change.completed(b"2"))])
        await asyncio.wait([waiting], timeout=PATIENCE * 0.8)

    assert waiting.done()


async def test_a_call_takes_an_enqueue_a_claim_a_settle_and_a_sleep(tmp_path):
    app = App(url_for(tmp_path))

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker(slots=4):
        store = await app.connected()
        assert isinstance(store, RedisStore)
        await double.call(n=0)
        before = await scripts_run(store)
        for n in range(50):
            assert await double.call(n=n) == 2 * n
        after = await scripts_run(store)

    assert after - before < 50 * 5  # a fifth each would be a trip too many; the worker's own upkeep is in it, too
