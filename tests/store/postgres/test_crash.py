"""The server is killed again and again under load: what was acknowledged is there, and nothing ran twice at a time."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

import pytest

from millrace.domain.change import Change
from millrace.domain.event import Kind
from millrace.domain.job import State
from millrace.domain.request import Receipt
from millrace.store.postgres import PostgresStore
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.invariants import assert_holds, gather
from tests.servers.postgres import PostgresServer, wheel_binaries

CRASHES = (signal.SIGQUIT, signal.SIGKILL, signal.SIGKILL)  # at once; and every process of the server at once

BETWEEN = 30  # jobs that are acknowledged from one crash to the next


async def produce(store: PostgresStore, number: int, done: asyncio.Event, acknowledged: list[str]) -> None:
    n = 0
    while not done.is_set():
        n += 1
        wishes = [a_spec(id=f"{number}-{n}-{k}", group="g" if k == 0 else None) for k in range(3)]
        acknowledged += [answer.id for answer in await store.enqueue(wishes)]
        await asyncio.sleep(0.02)


async def work(store: PostgresStore, number: int, produced: asyncio.Event) -> Counter[str]:
    """Counts the ends that were acknowledged, by job."""
    ended: Counter[str] = Counter()
    while True:
        last = produced.is_set()
        jobs = await store.claim(a_claim(5, worker=f"w{number}"))
        if not jobs and last:
            return ended
        receipts = await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
        assert set(receipts) <= {Receipt.OK}
        ended.update(job.id for job in jobs)
        await asyncio.sleep(0 if jobs else 0.02)


@pytest.mark.timeout(180)
async def test_a_server_that_crashes_again_and_again_loses_nothing_that_was_acknowledged() -> None:
    server = PostgresServer(wheel_binaries(), durable=True)
    server.start()
    store = PostgresStore(server.url)
    try:
        await store.connect()
        done, produced = asyncio.Event(), asyncio.Event()
        acknowledged: list[str] = []
        producers = [asyncio.ensure_future(produce(store, n, done, acknowledged)) for n in range(2)]
        workers = [asyncio.ensure_future(work(store, n, produced)) for n in range(2)]
        for how in CRASHES:
            so_far = len(acknowledged)
            while len(acknowledged) < so_far + BETWEEN:
                await asyncio.sleep(0.05)
            await asyncio.to_thread(server.kill, how)
            await asyncio.to_thread(server.start)
        done.set()
        await asyncio.gather(*producers)
        produced.set()
        ended = sum(await asyncio.gather(*workers), Counter[str]())

        found = await store.get(acknowledged)
        evidence = await gather(store, since=0)
        assert_holds(evidence)
        assert [job for job in found if job is None or job.state is not State.COMPLETED] == []
        completed = Counter(event.job for event in evidence.events if event.kind is Kind.COMPLETED)
        assert completed == ended
        assert set(completed.values()) == {1}
        assert len(acknowledged) >= BETWEEN * len(CRASHES)
    finally:
        await store.close()
        await asyncio.to_thread(server.remove)
