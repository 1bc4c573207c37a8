"""What was wrong in bunqueue's design (BE-01 … BE-17), and is not here. Every store, one name per number.

Where a sentence of the conformance suite is the proof, it stands here under its number too.
"""

from __future__ import annotations

import asyncio
import shutil

from millrace.store.memory import MemoryStore
from millrace.store.memory.indexes import IndexedHeap
from millrace.store.sqlite import SqliteStore
from millrace.testing import VirtualClock, a_claim, a_spec, specs
from millrace.testing.conformance.scenes import count


async def test_be_08_one_hot_queue_serves_many_workers_side_by_side(store, clock):
    await store.enqueue(specs(200))

    taken = await asyncio.gather(*(store.claim(a_claim(10, worker=f"worker-{n}")) for n in range(20)))

    assert [len(jobs) for jobs in taken] == [10] * 20
    assert len({job.id for jobs in taken for job in jobs}) == 200


async def test_be_15_a_queue_that_is_only_cancelled_does_not_grow(clock):
    """Jobs come and are cancelled, delayed ones too, and none is ever claimed: nothing of them piles up."""
    store = MemoryStore(clock=clock)
    for _ in range(20):
        jobs = [*specs(100), *specs(100, delay=60)]
        await store.enqueue(jobs)
        await store.cancel([job.id for job in jobs])

    assert (await count(store)).waiting == 0
    data = store._tables._data_of("default")
    assert data.ready
    assert not any(map(len, data.ready.values()))
    kept = sum(ready.entries for ready in data.ready.values()) + len(data.outside) + data.outside.stale
    places = 3 * len(data.ready) + 1
    assert kept <= places * (IndexedHeap.compact_above + 1)


async def test_be_17_an_acknowledged_job_is_on_disk(tmp_path):
    """The files as they are at the moment of the answer, copied away as after a crash, hold the job."""
    clock = VirtualClock()
    here, copy = tmp_path / "here", tmp_path / "copy"
    here.mkdir(), copy.mkdir()
    store = SqliteStore(here / "jobs.db", clock=clock)
    await store.connect()
    try:
        spec = a_spec()
        await store.enqueue([spec])
        for file in here.glob("jobs.db*"):
            if file.is_file():
                shutil.copy(file, copy / file.name)
    finally:
        await store.close()
    found = SqliteStore(copy / "jobs.db", clock=clock)
    await found.connect()
    try:
        assert [job is not None and job.payload for job in await found.get([spec.id])] == [spec.payload]
    finally:
        await found.close()
