"""Everything at once, by many, on connections of their own: what is promised holds, whoever was in whose way.

Producers, workers that end runs in every way, an operator and upkeep work on the same few groups, keys, parents and
limits, so that nearly every step meets another one. Afterwards the feed is the witness.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import QueueError
from millrace.domain.event import Kind
from millrace.domain.job import LIVE, Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Query, Receipt
from millrace.store.postgres import PostgresStore
from millrace.testing.builders import a_claim, a_reclaim, a_spec
from millrace.testing.invariants import assert_holds, gather
from tests.servers.postgres import url_for

QUEUES = ("plain", "limited", "pool", "other")
ERROR = Failure("ValueError", "no")


def a_wish(chance: random.Random, name: str, earlier: list[str]) -> Spec:
    queue = chance.choice(QUEUES)
    wish: dict[str, object] = {
        "queue": queue,
        "task": chance.choice(["work", "mail"]),
        "priority": chance.choice([0, 0, 5]),
    }
    wish["max_attempts"] = None
    if chance.random() < 0.4:
        wish["group"] = chance.choice("abc")
    if chance.random() < 0.2:
        wish |= {"key": chance.choice("xy"), "on_hit": chance.choice(["keep", "replace"])}
    if earlier and chance.random() < 0.3:
        wish |= {
            "after": tuple({chance.choice(earlier) for _ in range(2)}),
            "on_dependency": chance.choice(["run", "bury"]),
        }
    if chance.random() < 0.1:
        wish |= {"after": (f"{name[:2]}-{chance.randrange(40)}",), "allow_missing": True, "on_dependency": "run"}
    return a_spec(id=name, **wish)


async def produce(store: PostgresStore, number: int, chance: random.Random) -> None:
    earlier: list[str] = []
    for n in range(15):
        name = f"p{number}-{n}"
        wishes = [a_wish(chance, name, earlier)] + [
            a_wish(chance, f"{name}-{k}", earlier) for k in range(chance.choice([0, 0, 4]))
        ]
        try:
            await store.enqueue([wish for wish in wishes if wish.id not in wish.after])
        except QueueError:  # a cycle, or a parent that nobody put in: refused, and nothing of it is there
            continue
        earlier += [wish.id for wish in wishes]


async def work(store: PostgresStore, number: int, chance: random.Random, done: asyncio.Event) -> None:
    while True:
        last = done.is_set()
        jobs = await store.claim(a_claim(chance.choice([1, 3, 10]), worker=f"w{number}", queues=QUEUES))
        if not jobs:
            if last:
                return
            await asyncio.sleep(0.01)
            continue
        changes = [an_end(chance, last) for _ in jobs]
        receipts = await store.settle([(job.lease, change) for job, change in zip(jobs, changes, strict=True)])
        assert set(receipts) <= {Receipt.OK, Receipt.CANCELLING}


def an_end(chance: random.Random, last: bool) -> Change:
    choice = 0.0 if last else chance.random()
    if choice < 0.7:
        return Change.completed(b"1")
    if choice < 0.8:
        return Change.retry(ERROR, delay=0)
    if choice < 0.9:
        return Change.bury(ERROR, "explicit_fail")
    return Change.release()


async def meddle(store: PostgresStore, chance: random.Random, done: asyncio.Event) -> None:
    while not done.is_set():
        ids = [f"p{chance.randrange(4)}-{chance.randrange(15)}" for _ in range(3)]
        await store.cancel(ids, "request")
        await store.replay(ids[:1])
        await store.extend([])
        await store.reclaim(a_reclaim(5))
        await store.maintain(100)
        await asyncio.sleep(0.01)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_many_do_at_once_the_promises_hold(tmp_path: Path, seed: int) -> None:
    url = url_for(tmp_path)
    stores = [PostgresStore(url) for _ in range(4)]
    for store in stores:
        await store.connect()
    try:
        await stores[0].control("queue", "limited", {"max_running": 2})
        await stores[0].control("queue", "pool", {"lanes": 3})
        done = asyncio.Event()
        workers = [
            asyncio.ensure_future(work(store, n, random.Random(seed * 100 + n), done))
            for n, store in enumerate([*stores, *stores])
        ]
        meddler = asyncio.ensure_future(meddle(stores[3], random.Random(seed), done))
        await asyncio.gather(*(produce(store, n, random.Random(seed * 10 + n)) for n, store in enumerate(stores)))
        done.set()
        await asyncio.gather(meddler, *workers)
        await asyncio.gather(*(work(stores[0], 9, random.Random(0), done) for _ in range(2)))

        evidence = await gather(stores[0], since=0, fixed_limits=True)
        assert_holds(evidence)
        left = [job for job in evidence.jobs if job.state in LIVE]
        present = {job.id for job in evidence.jobs}
        assert [job for job in left if not job.blocked] == [], "ready, and nobody can claim it"
        for job in left:
            open_parents = [parent for parent in job.spec.after if parent not in present]
            waits_for = await stores[0].get(list(job.spec.after))
            still = [parent for parent in waits_for if parent is not None and parent.state in LIVE]
            assert open_parents or still, f"{job.id} waits for nothing"
        assert sum(event.kind is Kind.ENQUEUED for event in evidence.events) > 100
        assert (await stores[0].find(Query(limit=1))).jobs
    finally:
        for store in stores:
            await store.close()
