"""Every request that a compaction or an expiry makes, cut off before and after it: at once, and when the next run has
come by, each job is in the table once, as it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.spark.archive import operations as archive
from millrace.store.object.archive.files import FILES, GRACE, SILENCE
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.clock import VirtualClock
from proof.blob_faults import BlobPlan, Crashed, FaultyBlobs, crash_points, no_faults
from tests.object.archiving import OPTIONS, compact, here, rows
from tests.object.test_crash_points import copy, everything_is_well, processes

LARGE = b'"' + b"x" * 2_000 + b'"'
Act = Callable[[ObjectStore], Awaitable[archive.ArchiveOutcome]]


async def opened(driver: Any, clock: VirtualClock, place: str) -> ObjectStore:
    """Each time as a process of its own: with no number that another one, dead or alive, has taken."""
    store = ObjectStore(lambda: driver, clock=clock, options=OPTIONS, place=f"{place} {next(processes)}")
    await store.connect()
    return store


async def archived(store: ObjectStore, name: str) -> None:
    specs = [a_spec(id=f"{name}-mail", queue="mail", keep_result=0), a_spec(id=name, payload=LARGE, keep_result=0)]
    await store.enqueue(specs)
    jobs = await store.claim(a_claim(10, queues=("mail", "default")))
    await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
    await store.archive([job.id for job in jobs])


async def a_scene() -> tuple[MemoryBlobs, int]:
    """Small files, one fewer than are merged, and two jobs to compact; one that waits, and one that is not archived."""
    clock = VirtualClock()
    blobs = MemoryBlobs(clock=clock)
    store = await opened(blobs, clock, "archive scene")
    for number in range(archive.FEW - 1):
        await archived(store, f"before{number}")
        await compact(store)
        clock.advance(60)
    await store.enqueue([a_spec(id="waits", delay=3_600_000)])
    await archived(store, "now")
    await store.close()
    return blobs, clock()


async def dies(act: Act, blobs: MemoryBlobs, clock: VirtualClock, plan: BlobPlan) -> FaultyBlobs:
    faulty = FaultyBlobs(blobs)
    store = await opened(faulty, clock, "archive actor")
    faulty.calls, faulty.plan = 0, plan
    await act(store)
    return faulty


async def visit(
    scene: MemoryBlobs, now: int, act: Act, judge: Callable[[ObjectStore, VirtualClock, str], Awaitable[None]]
) -> tuple[int, int]:
    clock = VirtualClock(now)
    undisturbed = await dies(act, copy(scene, clock), clock, no_faults)
    judged: set[int] = set()
    visited = 0
    for number, plan in enumerate(crash_points(undisturbed.calls)):
        clock = VirtualClock(now)
        blobs = copy(scene, clock)
        with pytest.raises(Crashed):
            await dies(act, blobs, clock, plan)
        visited += 1
        if blobs._changes not in judged:
            judged.add(blobs._changes)
            point = f"crash {'after' if number % 2 else 'before'} request {number // 2 + 1} of {undisturbed.calls}"
            await judge(await opened(blobs, clock, "archive next"), clock, point)
    assert visited == 2 * undisturbed.calls
    print(f"{visited} points, {len(judged)} states")
    return visited, len(judged)


def tidy(store: ObjectStore) -> list[str]:
    driver = store.blobs.driver
    assert isinstance(driver, MemoryBlobs)
    return [key for key in driver._keys if key.startswith(FILES)]


async def test_wherever_a_compaction_dies_no_job_is_lost_and_none_is_there_twice():
    scene, now = await a_scene()
    wanted = await rows(await opened(copy(scene, VirtualClock(now)), VirtualClock(now), "wanted"))
    assert len(wanted) == 2 * archive.FEW + 1

    async def judge(store: ObjectStore, clock: VirtualClock, point: str) -> None:
        assert await rows(store) == wanted, f"{point}: at once"
        clock.advance(SILENCE / 1000 + 20)
        await store.sweep(full=True)
        assert await rows(store) == wanted, f"{point}: after a sweep"
        outcome = await compact(store)
        assert outcome.lived_on == 0 and outcome.jobs == 2 * archive.FEW, f"{point}: {outcome}"
        assert await rows(store) == wanted, f"{point}: after the next run"
        assert len(await rows(store, compacted="without")) == 1
        await everything_is_well(store)
        assert (await store.compacted.value()).open == () and (await store.compacted.value()).run is None
        clock.advance(GRACE / 1000 + 1)
        await compact(store)
        assert len(tidy(store)) == len((await store.compacted.value()).files), f"{point}: files that nobody names"
        assert (await store.sweep(full=True)).repairs == {}

    visited, states = await visit(scene, now, compact, judge)
    assert visited >= 100 and states >= 15


async def test_wherever_an_expiry_dies_files_that_count_are_there_and_the_next_one_finishes():
    scene, now = await a_scene()
    store = await opened(copy(scene, VirtualClock(now)), VirtualClock(now), "wanted")
    wanted = await rows(store)
    files = sorted((await store.compacted.value()).files, key=lambda file: file.last)
    before = files[0].last + 1
    kept = [row for row in wanted if row["finished_at"] is None or row["finished_at"].timestamp() * 1000 >= before]
    assert len(kept) == len(wanted) - 2

    async def expire(store: ObjectStore) -> archive.ArchiveOutcome:
        return await archive.expire(store, here(store), before=before, grace=0)

    async def judge(store: ObjectStore, clock: VirtualClock, point: str) -> None:
        assert await rows(store) in (wanted, kept), f"{point}: at once"
        clock.advance(SILENCE / 1000 + 20)
        await expire(store)
        assert await rows(store) == kept, f"{point}: after the next run"
        assert len(tidy(store)) == len((await store.compacted.value()).files) == len(files) - 1

    visited, states = await visit(scene, now, expire, judge)
    assert visited > 10 and states > 3
