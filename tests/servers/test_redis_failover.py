"""Another Redis server takes over while a worker runs jobs: the store finds it, and nothing stops for good."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millrace import App
from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.job import State
from millrace.domain.request import Receipt
from millrace.store.redis import RedisStore
from millrace.testing.builders import a_claim, a_spec, specs
from millrace.testing.invariants import assert_holds, gather
from tests.servers.redis_topology import (
    PATIENCE,
    Cluster,
    MovingName,
    Watched,
    a_cluster,
    a_moving_name,
    a_sentinel,
    tell,
)

NEVER = 10 * PATIENCE  # seconds between two looks of a worker that nobody wakes
ROUNDS = 6
KINDS = ["cluster", "moving name", "sentinel", "sentinel, master killed"]
Topology = Cluster | MovingName | Watched


@asynccontextmanager
async def topology(kind: str, folder: Path) -> AsyncIterator[Topology]:
    if kind == "cluster":
        async with a_cluster() as cluster:
            yield cluster
    elif kind == "moving name":
        async with a_moving_name() as name:
            yield name
    else:
        async with a_sentinel(folder) as watched:
            watched.kills = kind.endswith("killed")
            yield watched


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_worker_and_who_waits_for_its_results_go_on_with_the_new_master(kind: str, tmp_path: Path):
    """A claim loop that depends on hints, a job that is running and a result that is waited for."""
    async with topology(kind, tmp_path) as servers:
        app = App(f"{servers.url}?patience=120&timeout=2")
        begun, go = asyncio.Event(), asyncio.Event()

        @app.task
        async def held(n: int) -> int:
            begun.set()
            await go.wait()
            return n

        @app.task
        async def double(n: int) -> int:
            return 2 * n

        async with asyncio.timeout(PATIENCE), app, app.worker(slots=3, poll_min=NEVER, poll_max=NEVER):
            assert await double.call(n=1) == 2
            waited_for = asyncio.create_task(held.call(n=7))
            await begun.wait()

            await servers.fail_over()

            assert await double.call(n=4) == 8
            go.set()
            assert await waited_for == 7
            assert [await double.call(n=n) for n in range(5)] == [0, 2, 4, 6, 8]
            assert "hear:" in str(tell(servers.master, "PUBSUB", "CHANNELS")), "nobody listens to the new master"
            assert_holds(await gather(app.store))


@pytest.mark.slow
async def test_the_node_that_the_url_names_may_be_the_one_that_dies(tmp_path: Path):
    """The other nodes of the cluster were learnt from it."""
    async with a_cluster() as cluster:
        store = RedisStore(f"{cluster.master.url}?patience=120&timeout=2")
        await store.connect()
        await store.enqueue(specs(3))

        await cluster.fail_over()

        [answer] = await store.enqueue([a_spec()])
        assert answer.status == "queued"
        assert len(await store.claim(a_claim(10))) == 4
        await store.close()


@pytest.mark.slow
async def test_a_store_whose_slot_is_moved_waits_until_one_node_has_all_of_it():
    """A script that runs on half of its keys would take the other half for absent."""
    async with a_cluster() as cluster:
        store, hasty = (RedisStore(f"{cluster.url}?patience={patience}&timeout=2") for patience in (120, 3))
        asked = specs(5)
        await store.enqueue(asked)
        [running] = await store.claim(a_claim(1))
        cluster.begin_move()
        late = asyncio.create_task(store.enqueue([a_spec(id="late")]))
        settled = asyncio.create_task(store.settle([(running.lease, Change.completed())]))
        assert cluster.move_keys(most=3) > 0
        with pytest.raises(StoreError, match="moving the store's slot to another node"):
            await hasty.enqueue([a_spec()])
        assert not late.done() and not settled.done()

        assert cluster.move_keys() == 0
        async with asyncio.timeout(PATIENCE):
            [answer] = await late  # the new node has all, and answers who was sent there by the old one
            assert await settled == [Receipt.OK]
            found = await store.get([spec.id for spec in asked])
            await store.control("store", "", {"keep_events": 3_600_000})
            cluster.end_move()
            jobs = await store.claim(a_claim(10))

        assert answer.status == "queued" and None not in found
        assert len(jobs) == 5
        assert_holds(await gather(store))
        for one in (store, hasty):
            await one.close()


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_acknowledged_is_run_however_often_the_master_changes(kind: str, tmp_path: Path):
    """Under load, at the level at which an acknowledged write is held by a replica, too."""
    chance = random.Random(7)
    async with topology(kind, tmp_path) as servers:
        app = App(f"{servers.url}?durability=replicated&patience=90&timeout=2")
        acknowledged: set[str] = set()

        @app.task(lease="5s")
        async def nap(n: int) -> int:
            await asyncio.sleep(0.005)
            return n

        async def produce(done: asyncio.Event) -> None:
            while not done.is_set():
                handles = await nap.enqueue_many([{"n": n} for n in range(10)])
                acknowledged.update(handle.id for handle in handles)
                await asyncio.sleep(0.02)

        async with app, app.worker(slots=8):
            done = asyncio.Event()
            producers = [asyncio.create_task(produce(done)) for _ in range(3)]
            for _ in range(ROUNDS):
                await asyncio.sleep(chance.uniform(0.5, 2.0))
                await servers.fail_over(at_rest=False)
                await servers.revive()
            done.set()
            await asyncio.gather(*producers)
            await until_all_ended(app)
            jobs = [job for batch in batched(acknowledged) for job in await app.store.get(batch)]

        assert len(acknowledged) > 100 * ROUNDS
        assert {None if job is None else job.state for job in jobs} == {State.COMPLETED}
        store = RedisStore(f"{servers.url}?patience=120")
        assert_holds(await gather(store))
        await store.close()


async def until_all_ended(app: App) -> None:
    deadline = time.monotonic() + PATIENCE
    while any(row.waiting + row.running for row in await app.store.count()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


def batched(ids: set[str]) -> list[list[str]]:
    ordered = sorted(ids)
    return [ordered[first : first + 500] for first in range(0, len(ordered), 500)]
