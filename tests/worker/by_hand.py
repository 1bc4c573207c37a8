"""A worker by hand: claims one job and settles it, so that producers can be tested without one."""

import asyncio

from millrace.domain.change import Change
from millrace.domain.job import Job
from millrace.domain.request import Claim, Receipt
from millrace.store.memory.store import MemoryStore

QUEUES = ("default", "mail", "other")


class HandClock:
    """The store's clock, moved by hand; milliseconds."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * 1000)


async def take(store: MemoryStore) -> Job:
    """The next job, claimed; waits until there is one."""
    for _ in range(500):
        found = await store.claim(Claim(QUEUES, "by-hand"))
        if found:
            return found[0]
        await asyncio.sleep(0.005)
    raise AssertionError("there was nothing to claim")


async def settle(store: MemoryStore, change: Change) -> Job:
    job = await take(store)
    assert await store.settle([(job.lease, change)]) == [Receipt.OK]
    return job
