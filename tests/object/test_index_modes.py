"""How claims find jobs: by the index, by the index and the objects, or by the objects alone (O-07, O-17, O-30)."""

from __future__ import annotations

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.request import WorkerInfo
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.clock import START, VirtualClock
from millrace.testing.invariants import assert_holds, gather

OPTIONS = ObjectOptions(look_every=0, feed_delay=0, lock_patience=1, listing_reuse=0, log_scan_pace=0)
MODES = ("index-only", "hybrid", "log-scan")


async def opened(mode: str, blobs: MemoryBlobs, clock: VirtualClock, **options) -> ObjectStore:
    chosen = msgspec.structs.replace(OPTIONS, index_mode=mode, **options)
    store = ObjectStore(lambda: blobs, clock=clock, options=chosen)
    await store.connect()
    return store


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def blobs(clock: VirtualClock) -> MemoryBlobs:
    return MemoryBlobs(clock=clock)


async def lose_the_index(blobs: MemoryBlobs) -> None:
    lost = [key for key in blobs._keys if key.startswith("ready/")]
    assert lost
    await blobs.delete(lost)


async def all_claimed(store: ObjectStore, claims: int, **how) -> list[str]:
    return [job.id for _ in range(claims) for job in await store.claim(a_claim(4, lease=1_000, **how))]


def test_hybrid_is_what_one_gets():
    assert ObjectOptions().index_mode == "hybrid"


@pytest.mark.parametrize("mode", MODES)
async def test_every_mode_takes_jobs_in_order_and_each_once(mode, blobs: MemoryBlobs, clock: VirtualClock):
    store = await opened(mode, blobs, clock)
    await store.enqueue([a_spec(id=f"job{number}", priority=number % 3) for number in range(12)])
    await store.enqueue([a_spec(id="later", delay=60), a_spec(id="elsewhere", queue="mail")])

    found = await all_claimed(store, 4)

    assert found == [f"job{number}" for number in (2, 5, 8, 11, 1, 4, 7, 10, 0, 3, 6, 9)]
    assert_holds(await gather(store, since=START))
    clock.advance(61)
    assert await all_claimed(store, 2) == ["later"]


async def test_index_only_finds_nothing_without_its_index(blobs: MemoryBlobs, clock: VirtualClock):
    store = await opened("index-only", blobs, clock)
    await store.enqueue([a_spec() for _ in range(3)])
    await lose_the_index(blobs)

    assert await all_claimed(store, 5) == []


@pytest.mark.parametrize("mode", ["hybrid", "log-scan"])
@pytest.mark.parametrize("size", [1, 7, 50])
async def test_the_others_find_every_job_though_the_index_is_gone(mode, size, blobs: MemoryBlobs, clock: VirtualClock):
    store = await opened(mode, blobs, clock, log_scan_page_size=size)
    await store.enqueue([a_spec(id=f"job{number}") for number in range(20)])
    await store.enqueue([a_spec(id="held", group="g"), a_spec(id="next", group="g")])
    await lose_the_index(blobs)

    found = await all_claimed(store, 60)

    assert sorted(found) == sorted([*(f"job{number}" for number in range(20)), "held"])
    assert_holds(await gather(store, since=START))


async def test_log_scan_reads_no_index(blobs: MemoryBlobs, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch):
    store = await opened("log-scan", blobs, clock)
    await store.enqueue([a_spec() for _ in range(3)])
    asked: list[str] = []
    listed = blobs.list

    async def list_and_note(prefix, after, limit):
        asked.append(prefix)
        return await listed(prefix, after, limit)

    monkeypatch.setattr(blobs, "list", list_and_note)

    assert len(await all_claimed(store, 2)) == 3
    assert not [prefix for prefix in asked if prefix.startswith("ready")]
    assert "tasks/" in asked


async def test_log_scan_passes_over_finished_jobs_to_the_last_waiting_one(blobs: MemoryBlobs, clock: VirtualClock):
    """One claim looks at twenty pages; the next goes on from there, so none is out of reach."""
    store = await opened("log-scan", blobs, clock, log_scan_page_size=2)
    await store.enqueue([a_spec(id=f"a{number:03d}") for number in range(100)])
    jobs = [job for _ in range(30) for job in await store.claim(a_claim(10))]
    await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
    await store.enqueue([a_spec(id="last")])

    assert await all_claimed(store, 10) == ["last"]


@pytest.mark.parametrize("mode", ["hybrid", "log-scan"])
async def test_only_the_shards_that_were_asked_for_are_looked_through(mode, blobs: MemoryBlobs, clock: VirtualClock):
    everything = await opened("index-only", blobs, clock)
    layout = everything.engine.layout
    await everything.enqueue([a_spec(id=f"job{number}") for number in range(40)])
    await lose_the_index(blobs)
    mine = [f"job{number}" for number in range(40) if layout.shard_of(f"job{number}") in ("0", "7")]
    assert mine

    found = await all_claimed(await opened(mode, blobs, clock, shards=("0", "7")), 30)

    assert sorted(found) == sorted(mine)


async def test_a_worker_tells_whose_jobs_it_takes(blobs: MemoryBlobs, clock: VirtualClock):
    """O-15: the record of a worker names its shards."""
    some, every = await opened("hybrid", blobs, clock, shards=("0", "7")), await opened("hybrid", blobs, clock)
    await some.beat(WorkerInfo("some"), 1_000)
    await every.beat(WorkerInfo("every"), 1_000)

    assert {record.info.id: record.info.shards for record in await every.workers()} == {"some": ("0", "7"), "every": ()}


async def test_hybrid_pays_for_a_look_with_a_pause(blobs: MemoryBlobs, clock: VirtualClock):
    store = await opened("hybrid", blobs, clock, log_scan_pace=60_000)
    await store.enqueue([a_spec() for _ in range(60)])
    await store.claim(a_claim(60, lease=10_000))
    await store.claim(a_claim())  # the one look
    before = blobs.requests.copy()

    for _ in range(10):
        assert await store.claim(a_claim()) == []

    assert blobs.requests["get"] == before["get"]


async def test_hybrid_does_not_read_again_what_nobody_has_changed(blobs: MemoryBlobs, clock: VirtualClock):
    store = await opened("hybrid", blobs, clock)
    await store.enqueue([a_spec() for _ in range(60)])
    await store.claim(a_claim(60, lease=10_000))
    clock.advance(120)
    for _ in range(4):  # two rounds of two pages
        await store.claim(a_claim())
    before = blobs.requests.copy()

    for _ in range(10):
        assert await store.claim(a_claim()) == []

    assert blobs.requests["get"] - before["get"] < 10
    assert blobs.requests["list"] - before["list"] <= 40
