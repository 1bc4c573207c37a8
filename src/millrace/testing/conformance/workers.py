"""Workers: the records that their heartbeats write, and when a worker counts as gone."""

from __future__ import annotations

from millrace.store.protocol import Store
from millrace.testing.builders import a_worker, seconds
from millrace.testing.clock import VirtualClock


async def test_a_worker_that_beats_is_shown(store: Store, clock: VirtualClock) -> None:
    info = a_worker("w-1", queues=("mail",), tasks=("send",), slots=4, running=("job-7",), completed=3, host="h", pid=9)
    await store.beat(info, seconds(60))

    [record] = await store.workers()
    assert record.info == info
    assert (record.started_at, record.last_beat, record.ttl, record.alive) == (clock(), clock(), seconds(60), True)


async def test_a_beat_tells_the_latest_and_keeps_the_start(store: Store, clock: VirtualClock) -> None:
    started = clock()
    await store.beat(a_worker("w", completed=1), seconds(60))
    clock.advance(20)
    await store.beat(a_worker("w", completed=5), seconds(30))

    [record] = await store.workers()
    assert (record.started_at, record.last_beat, record.ttl) == (started, clock(), seconds(30))
    assert record.info.completed == 5


async def test_a_worker_that_stops_beating_is_shown_as_gone(store: Store, clock: VirtualClock) -> None:
    """A worker counts as gone when its last heartbeat is older than the `ttl` of that heartbeat."""
    await store.beat(a_worker("w"), seconds(60))
    clock.advance(60)
    assert [record.alive for record in await store.workers()] == [True]

    clock.advance(0.001)
    assert [record.alive for record in await store.workers()] == [False]


async def test_a_worker_that_leaves_is_not_shown(store: Store, clock: VirtualClock) -> None:
    await store.beat(a_worker("stays"), seconds(60))
    await store.beat(a_worker("leaves"), seconds(60))
    await store.beat(a_worker("leaves"), 0)
    await store.beat(a_worker("never came"), 0)

    assert [record.info.id for record in await store.workers()] == ["stays"]


async def test_upkeep_forgets_workers_long_gone(store: Store, clock: VirtualClock) -> None:
    await store.beat(a_worker("old"), seconds(60))
    clock.advance(3600)
    await store.beat(a_worker("new"), seconds(60))
    assert (await store.maintain()).workers == 0
    clock.advance(60.001)

    assert (await store.maintain()).workers == 1
    assert [record.info.id for record in await store.workers()] == ["new"]


async def test_workers_come_in_the_order_of_their_names(store: Store, clock: VirtualClock) -> None:
    for name in ("c", "a", "b"):
        await store.beat(a_worker(name), seconds(60))

    assert [record.info.id for record in await store.workers()] == ["a", "b", "c"]
