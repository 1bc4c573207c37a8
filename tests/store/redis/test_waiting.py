"""Waking up between processes: as many as there are jobs, whatever becomes of the connection (BE-14, BR-16)."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable

import pytest

from millrace.domain.request import Claim
from millrace.store.redis import RedisStore
from millrace.testing.builders import a_spec, specs
from tests.servers.redis_server import url_for

PATIENCE = 60.0
SHORT = 0.3

Make = Callable[[], RedisStore]


@pytest.fixture
async def make(tmp_path) -> AsyncIterator[Make]:
    """Stores as of several processes, each with connections of its own."""
    made: list[RedisStore] = []

    def another() -> RedisStore:
        made.append(RedisStore(url_for(tmp_path)))
        return made[-1]

    yield another
    for store in made:
        await store.close()


async def asleep(store: RedisStore, count: int) -> None:
    """Until so many are written down as asleep."""
    deadline = time.monotonic() + PATIENCE
    while await store._wire.command("HLEN", f"{store._wire.prefix}asleep") < count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_one_enqueue_wakes_one_of_many_and_each_wakes_another(make: Make):
    producer = make()
    sleepers = [asyncio.create_task(make().wait(["default", "other"], None, PATIENCE)) for _ in range(5)]
    await asleep(producer, 5)

    for woken in range(1, 4):
        await producer.enqueue([a_spec(queue="other", delay=600)])  # not due: it wakes nobody up
        await producer.enqueue([a_spec()])
        deadline = time.monotonic() + PATIENCE
        while sum(task.done() for task in sleepers) < woken:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await asyncio.sleep(SHORT)
        assert sum(task.done() for task in sleepers) <= 2 * woken

    for task in sleepers:
        task.cancel()
    await asyncio.gather(*sleepers, return_exceptions=True)


async def test_who_was_killed_asleep_takes_no_hint_from_those_who_came_later(make: Make):
    producer, killed, living = make(), make(), make()
    await killed._wire.ask("sleep", [["default"], None, "*", "nobody", "nobody.1", 5_000])  # and it never wakes up
    sleeper = asyncio.create_task(living.wait(["default"], None, PATIENCE))
    await asleep(producer, 2)
    begun = time.monotonic()

    await producer.enqueue([a_spec()])
    await sleeper

    assert time.monotonic() - begun < PATIENCE * 0.8


async def test_a_lost_connection_is_made_again_and_loses_nobody(make: Make):
    producer, worker = make(), make()
    sleeper = asyncio.create_task(worker.wait(["default"], None, PATIENCE))
    await asleep(producer, 1)
    begun = time.monotonic()

    await producer._wire.command("CLIENT", "KILL", "TYPE", "pubsub")
    await producer.enqueue([a_spec()])
    await sleeper

    assert time.monotonic() - begun < PATIENCE * 0.8


async def test_a_sleeper_that_a_lost_connection_woke_takes_no_hint_from_its_next_sleep(make: Make):
    """Its first registration would expire later than the second, and the one with the longest time left is woken."""
    producer, worker = make(), make()
    first = asyncio.create_task(worker.wait(["default"], None, 100 * PATIENCE))
    await asleep(producer, 1)
    await producer._wire.command("CLIENT", "KILL", "TYPE", "pubsub")
    async with asyncio.timeout(PATIENCE):
        await first

    second = asyncio.create_task(worker.wait(["default"], None, 10 * PATIENCE))
    await asleep(producer, 1)
    assert await producer._wire.command("HLEN", f"{producer._wire.prefix}asleep") == 1
    await producer.enqueue([a_spec()])
    async with asyncio.timeout(PATIENCE):
        await second


async def test_a_hint_that_its_sleeper_no_longer_needs_goes_on_to_the_next(make: Make):
    producer, first, second = make(), make(), make()
    given_up = asyncio.create_task(first.wait(["default"], None, PATIENCE))
    await asleep(producer, 1)
    staying = asyncio.create_task(second.wait(["default"], None, PATIENCE))
    await asleep(producer, 2)
    begun = time.monotonic()
    enqueued = asyncio.create_task(producer.enqueue([a_spec()]))
    await asyncio.sleep(0)

    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    await enqueued
    await asyncio.wait([staying], timeout=PATIENCE)

    if not given_up.cancelled():  # it was woken before it could give up: then the hint was its own
        await producer.enqueue([a_spec()])
    await staying
    assert time.monotonic() - begun < PATIENCE * 0.8


async def test_who_has_waited_leaves_no_trace(make: Make):
    store = make()
    await store.wait(["default", "other"], None, 0.05)
    async with store.watch("job") as watch:
        await watch.wait(0.01)
    await store._here().listener.close()

    for key in ("asleep", "idle:default", "idle:other", "idle:default:*", "idle:other:*", "watch", "watching"):
        assert await store._wire.command("EXISTS", f"{store._wire.prefix}{key}") == 0, key


async def test_sleepers_cost_the_server_a_command_or_two_each(make: Make):
    stores = [make() for _ in range(10)]
    await asyncio.gather(*(store.wait(["default"], None, 0.01) for store in stores))
    before = await _commands(stores[0])

    await asyncio.gather(*(store.wait(["default"], None, SHORT) for store in stores for _ in range(2)))

    assert await _commands(stores[0]) - before <= 20 * 3  # falling asleep, waking up, and the question itself


async def _commands(store: RedisStore) -> int:
    told = (await store._wire.command("INFO", "commandstats")).decode()
    return sum(map(int, re.findall(r"cmdstat_eval(?:sha)?:calls=(\d+)", told)))


async def test_a_batch_wakes_workers_of_other_processes(make: Make):
    producer = make()
    sleepers = [asyncio.create_task(make().wait(["default"], None, PATIENCE)) for _ in range(4)]
    await asleep(producer, 4)
    begun = time.monotonic()

    await producer.enqueue(specs(4))
    await asyncio.gather(*sleepers)

    assert time.monotonic() - begun < PATIENCE * 0.8


async def test_a_cancel_that_finds_its_worker_between_two_waits_ends_the_next_wait(make: Make):
    holder, operator = make(), make()
    await holder.enqueue([a_spec(id="a")])
    await holder.claim(Claim(("default",), "w", 1))
    while not holder._here().listener.is_subscribed:
        await holder.wait_for_cancel("w", SHORT)
    assert not await holder.wait_for_cancel("w", SHORT)

    await operator.cancel(["a"], running="request")

    assert await asyncio.wait_for(holder.wait_for_cancel("w", 2 * PATIENCE), PATIENCE)
    assert not await holder.wait_for_cancel("w", SHORT)
