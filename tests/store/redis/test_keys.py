"""What is kept where: one slot, no key that outlives what it tells of, and no time limit on work (BR-06)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.rules.check import specs_like
from millrace.store.redis import RedisStore
from millrace.store.redis.scripts import METHODS, script
from millrace.testing.builders import a_claim, a_retry_change, a_spec
from millrace.testing.clock import VirtualClock
from tests.servers.redis_server import url_for

LASTING = {"store", "queue", "settings", "combos"}  # of names that were ever used, not of jobs
PASSING = {"memo"}  # answers for who asks again, for ten minutes
WAITING = {"idle", "room", "asleep", "watch", "watching"}


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def store(tmp_path, clock: VirtualClock) -> AsyncIterator[RedisStore]:
    made = RedisStore(url_for(tmp_path), clock=clock)
    await made.connect()
    try:
        yield made
    finally:
        await made.close()


async def keys(store: RedisStore) -> list[str]:
    found: list[str] = []
    cursor = 0
    while True:
        after, page = await store._wire.command("SCAN", cursor, "MATCH", f"{store._wire.prefix}*", "COUNT", 1000)
        found += [key.decode() for key in page]
        cursor = int(after)
        if not cursor:
            return sorted(found)


def kinds(names: list[str], store: RedisStore) -> set[str]:
    return {name.removeprefix(store._wire.prefix).partition(":")[0] for name in names}


async def lived(store: RedisStore, clock: VirtualClock) -> None:
    """Jobs of every kind, in every state."""
    await store.control("queue", "pool", {"lanes": 2, "on_empty": "told"})
    await store.control("queue", "default", {"auto_retries": 1})
    await store.enqueue([a_spec(id=f"plain-{n}") for n in range(5)])
    await store.enqueue([a_spec(id=f"laned-{n}", queue="pool", group=f"g{n % 2}") for n in range(4)])
    await store.enqueue([a_spec(id=f"grouped-{n}", group="g", delay=n, key=f"k{n}") for n in range(4)])
    await store.enqueue([a_spec(id="windowed", key="w", scope="window", window=5_000, on_dead_letter="told")])
    await store.enqueue([a_spec(id="child", after=("plain-0", "windowed"), on_dependency="wait", expires=60)])
    for turn in range(6):
        jobs = await store.claim(a_claim(10, queues=("default", "pool")))
        changes = [Change.completed(b"1"), a_retry_change(1), Change.bury(None, "explicit_fail"), Change.snooze(1)]
        await store.settle([(job.lease, changes[(turn + n) % 4]) for n, job in enumerate(jobs)])
        clock.advance(2)


async def test_all_keys_of_a_store_lie_in_one_slot(store: RedisStore, clock: VirtualClock):
    await lived(store, clock)
    await store.wait(["default"], None, 0.01)

    found = await keys(store)
    assert len(found) > 20
    assert [name for name in found if not name.startswith("{" + store.options.prefix + "}:")] == []


# BR-06
async def test_no_work_has_a_time_limit(store: RedisStore, clock: VirtualClock):
    await lived(store, clock)

    for name in await keys(store):
        limit = await store._wire.command("TTL", name)
        assert (limit > 0) == (kinds([name], store) <= PASSING), name


async def test_what_is_removed_leaves_nothing_behind(store: RedisStore, clock: VirtualClock):
    await lived(store, clock)
    for queue in ("default", "pool"):
        while await store.obliterate(queue, 100):
            pass
    clock.advance(40 * 86_400)
    while (await store.maintain()).more:
        pass

    left = kinds(await keys(store), store)
    assert left <= LASTING | PASSING | WAITING | {"line"}, left - LASTING
    page = await store.events(None, 1_000)
    assert page.events == ()


async def test_retention_leaves_nothing_behind(store: RedisStore, clock: VirtualClock):
    """The same, by time alone."""
    await lived(store, clock)
    for _ in range(12):
        clock.advance(5 * 86_400)
        jobs = await store.claim(a_claim(100, queues=("default", "pool")))
        await store.settle([(job.lease, Change.completed()) for job in jobs])
        await store.drain("default")
        while (await store.maintain()).more:
            pass

    left = kinds(await keys(store), store)
    assert left <= LASTING | PASSING | WAITING | {"line"}, left


@pytest.mark.parametrize("name", METHODS)
def test_a_script_says_what_it_is_for(name):
    text = script(name).source
    assert f"-- {name}:" in text


async def test_ids_that_come_twice_in_one_call_are_one_job(store: RedisStore):
    """Also in specs that were made from one template, as a data pipeline makes them."""
    made = specs_like(Spec("template", "work"), ["a", "b", "a"], [b"1", b"2", b"3"])

    answers = await store.enqueue(made)

    assert [answer.id for answer in answers] == ["a", "b", "a"]
    assert [row.waiting for row in await store.count()] == [2]
