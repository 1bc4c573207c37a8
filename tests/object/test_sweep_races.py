"""A sweep amid the traffic: it takes everybody for dead who is only slow, and still nobody loses anything.

With no patience at all the sweep gives up transactions under way and deletes keys that were just written. That may
cost somebody a second attempt, and an event may reach the feed late, or once too often. It must never cost a job or an
event, nor let two into a line. (A limit may be passed: a lease key that is deleted before its job runs is not counted.)
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.job import LIVE, Job
from millrace.domain.request import Query, Receipt
from millrace.store.object.blobs import RetryBudget
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_claim, a_reclaim, a_retry_change, a_spec
from millrace.testing.clock import START, VirtualClock
from millrace.testing.invariants import check, gather
from proof.blob_faults import BlobFault, FaultyBlobs, seeded_faults

OPTIONS = ObjectOptions(look_every=0, feed_delay=0, lock_patience=2, listing_reuse=0, sweep_patience=0)
NETWORK = {
    BlobFault.SLOW: 0.25,
    BlobFault.LOST_REPLY: 0.02,
    BlobFault.LOST_REQUEST: 0.02,
    BlobFault.CONFLICT: 0.02,
}
ORDER_OF_THE_FEED = ("line_order", "two_in_line")  # told by those who are inside, instead
WORKERS = 4
BATCHES = 12


def a_stubborn_one(**more):
    return a_spec(max_attempts=None, **more)


class Traffic:
    def __init__(self, seed: int) -> None:
        self.clock = VirtualClock()
        self.blobs = MemoryBlobs(clock=self.clock)
        self.seed = seed
        self.accepted: set[str] = set()
        self.completed: Counter[str] = Counter()
        self.swept: Counter[str] = Counter()
        self.inside: Counter[str] = Counter()
        self.most_inside: Counter[str] = Counter()
        self.producing = True

    def enter(self, job: Job, by: int) -> None:
        for place in (f"{job.queue} {job.line}", job.queue):
            self.inside[place] += by
            self.most_inside[place] = max(self.most_inside[place], self.inside[place])

    async def client(self, number: int) -> ObjectStore:
        driver = FaultyBlobs(self.blobs, seeded_faults(self.seed * 100 + number, NETWORK), delay=0.001)
        store = ObjectStore(lambda: driver, clock=self.clock, options=OPTIONS, place=f"{self.blobs.url} {number}")
        store.blobs.patience = RetryBudget(attempts=14, first=0.0005, longest=0.005)
        await store.connect()
        return store

    async def produce(self, store: ObjectStore) -> None:
        chance = random.Random(self.seed)
        for batch in range(BATCHES):
            first = f"{batch}-first"
            specs = [
                a_stubborn_one(id=first),
                a_stubborn_one(id=f"{batch}-after", after=(first,)),
                a_stubborn_one(id=f"{batch}-line", group=f"g{chance.randrange(2)}"),
                a_stubborn_one(id=f"{batch}-lane", queue="pool"),
                a_stubborn_one(id=f"{batch}-slow", queue="slow"),
                *(a_stubborn_one(id=f"{batch}-plain{number}") for number in range(chance.randrange(5))),
            ]
            await self.asked(store, lambda specs=specs: store.enqueue(specs))
            self.accepted.update(spec.id for spec in specs)
            self.clock.advance(0.5)
            if batch in (3, 6, 9):  # exact counting is switched on, off and on amid the traffic
                limit = None if batch == 6 else 50
                await self.asked(store, lambda limit=limit: store.control("queue", "default", {"max_running": limit}))
        self.producing = False

    async def asked(self, store: ObjectStore, ask):
        """As whoever is told that the store could not answer: ask again."""
        for _ in range(50):
            try:
                return await ask()
            except StoreError:
                await asyncio.sleep(0.001)
        raise AssertionError("no answer in fifty tries")

    async def work(self, store: ObjectStore, number: int) -> None:
        chance = random.Random(self.seed * 31 + number)
        idle = 0
        while self.producing or idle < 20:
            jobs = await self.asked(
                store,
                lambda: store.claim(a_claim(3, queues=("default", "pool", "slow"), worker=f"w{number}", lease=60)),
            )
            idle = 0 if jobs else idle + 1
            for job in jobs:
                self.enter(job, 1)
            for job in jobs:
                await asyncio.sleep(0.001)
                self.enter(job, -1)
                done = chance.random() < 0.8
                change = Change.completed(b"1") if done else a_retry_change()
                [receipt] = await self.asked(store, lambda job=job, change=change: store.settle([(job.lease, change)]))
                self.completed[job.id] += done and receipt is Receipt.OK
            await asyncio.sleep(0.001)

    async def sweep(self, store: ObjectStore) -> None:
        while True:
            swept = await self.asked(store, lambda: store.sweep(full=True))
            self.swept.update(swept.repairs)
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "seed", [1, 2, pytest.param(3, marks=pytest.mark.nightly), pytest.param(4, marks=pytest.mark.nightly)]
)
async def test_no_job_is_lost_or_run_by_two_while_an_impatient_sweep_goes_on(seed):
    traffic = Traffic(seed)
    stores = [await traffic.client(number) for number in range(WORKERS + 2)]
    await stores[0].control("queue", "pool", {"lanes": 2})
    await stores[0].control("queue", "slow", {"max_running": 2})
    sweeping = asyncio.create_task(traffic.sweep(stores[-1]))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(traffic.produce(stores[0]))
        for number in range(WORKERS):
            group.create_task(traffic.work(stores[number + 1], number))
    sweeping.cancel()
    await asyncio.wait([sweeping])

    lines = [most for place, most in traffic.most_inside.items() if "g:" in place or "l:" in place]
    assert set(lines) == {1}, "two ran in one line"
    await judge(traffic)
    assert traffic.swept, "the sweep met nothing in its way"


async def judge(traffic: Traffic) -> None:
    options = msgspec.structs.replace(OPTIONS, sweep_patience=1_000)
    store = ObjectStore(lambda: traffic.blobs, clock=traffic.clock, options=options, place=f"{traffic.blobs.url} judge")
    await store.connect()
    traffic.clock.advance(120)
    await store.sweep(full=True)
    for _ in range(60):
        lost = await store.reclaim(a_reclaim())
        await store.settle([(job.lease, a_retry_change()) for job in lost])
        jobs = await store.claim(a_claim(20, queues=("default", "pool", "slow")))
        await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
        traffic.completed.update(job.id for job in jobs)
        traffic.clock.advance(1)
    assert (await store.sweep(full=True)).repairs.keys() <= {"triggers_restored"}
    found = (await store.find(Query(archived=None, limit=1_000))).jobs
    assert {job.id for job in found} == traffic.accepted
    assert [job.id for job in found if job.state in LIVE] == []
    assert set(traffic.completed.values()) == {1}, "completed twice"
    evidence = await gather(store, since=START)
    told = {(event.seq, event.n): event for event in evidence.events}
    evidence.events = [told[place] for place in sorted(told)]
    assert [violation for violation in check(evidence) if violation.name not in ORDER_OF_THE_FEED] == []
