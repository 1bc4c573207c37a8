"""Which calls use the fast path: those that the domain allows, for every setting of a queue, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.rules.fast_path import accepts_all, claims_by_order_and_count, ends_alone_or_makes_room
from millrace.domain.settings import QueueSettings, updated
from millrace.store.redis import RedisStore
from millrace.testing.builders import a_claim, a_spec
from tests.narrowing import the
from tests.servers.redis_server import url_for

SETTINGS: list[dict[str, Any]] = [
    {},
    {"paused_lanes": ()},
    {"max_running": 10},
    {"rate": 100.0, "burst": 5},
    {"fair_share": 0.5},
    {"on_empty": "emptied"},
    {"keep_completed": 0},
    {"keep_completed": 60_000},
    {"keep_completed": None},
    {"keep_dead": 0},
    {"max_depth": 10},
    {"lanes": 2},
    {"dead_cap": 5},
    {"dead_overflow": "archive"},
    {"dead_overflow": "reject"},
    {"dead_overflow": "reject", "dead_cap": None},
    {"auto_retries": 1, "auto_retry_delay": 5},
]


@pytest.fixture
async def store(tmp_path) -> AsyncIterator[RedisStore]:
    made = RedisStore(url_for(tmp_path))
    yield made
    await made.close()


async def general_steps(store: RedisStore) -> int:
    """How many general steps the server has run: each begins with a DEL, and the fast path has none."""
    client = store._wire.connect()
    stats = await client.info("commandstats")
    await client.aclose()
    return int(stats.get("cmdstat_del", {"calls": 0})["calls"])


async def until_asleep(store: RedisStore) -> None:
    while not await store._wire.command("EXISTS", f"{store._wire.prefix}asleep"):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
async def test_a_call_uses_the_fast_path_if_the_settings_allow_it(
    store: RedisStore, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    settings = updated(QueueSettings(), changes)
    assert await store.control("queue", "default", changes) == settings
    assert await store.control("queue", "default", {}) == settings  # as it was stored
    sent: list[str] = []
    change = store._wire.change

    def recorded(name: str, *rest: Any, **more: Any) -> Any:
        sent.append(name)
        return change(name, *rest, **more)

    monkeypatch.setattr(store._wire, "change", recorded)

    await store.enqueue([a_spec(), a_spec()])
    assert ("enqueue" not in sent) == accepts_all(settings)

    before = await general_steps(store)
    jobs = await store.claim(a_claim(2))
    claimed = await general_steps(store)
    assert (claimed == before) == (claims_by_order_and_count(settings) and settings.lanes is None)

    await store.settle([(job.lease, Change.completed()) for job in jobs])
    assert (await general_steps(store) == claimed) == (ends_alone_or_makes_room(settings) and settings.lanes is None)


@pytest.mark.parametrize(
    "options",
    [{}, {"group": "g"}, {"key": "k"}, {"expires": 60_000}, {"key": "k", "group": "g", "expires": 60_000}],
    ids=str,
)
async def test_groups_keys_and_expiry_are_handled_by_the_fast_paths(store: RedisStore, options: dict[str, Any]):
    before = await general_steps(store)
    assert isinstance(await store._here().enqueues.on_fast_path([a_spec(**options)]), int)
    assert isinstance(
        await store._here().enqueues.on_fast_path([a_spec(**(options | {"key": None})), a_spec(), a_spec(group="h")]),
        int,
    )
    while jobs := await store.claim(a_claim(10)):
        await store.settle([(job.lease, Change.completed()) for job in jobs])

    assert await general_steps(store) == before


async def test_parents_that_wait_or_run_are_handled_by_the_fast_path_of_enqueue(store: RedisStore):
    assert isinstance(await store._here().enqueues.on_fast_path([a_spec(id="a"), a_spec(after=("a",))]), int)
    assert isinstance(
        await store._here().enqueues.on_fast_path([a_spec(after=("a",)), a_spec(id="b"), a_spec(after=("a", "b"))]), int
    )


async def test_jobs_that_nobody_waits_for_complete_by_the_fast_path_although_others_are_awaited(store: RedisStore):
    await store.enqueue([a_spec(id="parent", queue="other"), a_spec(queue="other", after=("parent",)), a_spec()])
    before = await general_steps(store)
    jobs = await store.claim(a_claim(10))
    await store.settle([(job.lease, Change.completed()) for job in jobs])
    assert await general_steps(store) == before

    jobs = await store.claim(a_claim(10, queue="other"))
    await store.settle([(job.lease, Change.completed()) for job in jobs])
    assert await general_steps(store) == before + 1


def test_a_queue_without_settings_allows_every_fast_path():
    """Scripts take the fast path if a queue has no stored settings."""
    settings = QueueSettings()

    assert accepts_all(settings)
    assert claims_by_order_and_count(settings)
    assert ends_alone_or_makes_room(settings)


async def test_claims_by_the_fast_path_stay_within_max_running_and_ends_wake_who_waits_for_room(store: RedisStore):
    await store.control("queue", "default", {"max_running": 3})
    await store.enqueue([a_spec() for _ in range(7)])
    before = await general_steps(store)
    first = await store.claim(a_claim(limit=2))
    second = await store.claim(a_claim(limit=5))
    assert (len(first), len(second)) == (2, 1)
    assert await store.claim(a_claim(limit=5)) == []

    waiting = asyncio.create_task(store.wait(["default"], None, 60.0))
    await until_asleep(store)
    await store.settle([(the(job.lease), Change.completed()) for job in first])
    await asyncio.wait_for(waiting, 60.0)

    assert len(await store.claim(a_claim(limit=5))) == 2
    assert await general_steps(store) == before
    [counts] = await store.count()
    assert (counts.waiting, counts.running) == (2, 3)


async def test_settings_that_an_earlier_version_has_written_are_heeded(store: RedisStore):
    await store.control("queue", "default", {"max_running": 1})
    kept = msgspec.msgpack.decode(await store._wire.command("HGET", f"{store._wire.prefix}settings", "default"))
    old = {name: value for name, value in kept.items() if not name.startswith("limited_")}
    await store._wire.command("HSET", f"{store._wire.prefix}settings", "default", msgspec.msgpack.encode(old))
    await store.enqueue([a_spec() for _ in range(3)])
    [job] = await store.claim(a_claim(limit=3))
    await store.settle([(the(job.lease), Change.completed())])

    assert len(await store.claim(a_claim(limit=3))) == 1
