"""The same on an older server: the system's PostgreSQL, or the wheel's older one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from millrace.domain.change import Change
from millrace.domain.job import State
from millrace.domain.request import Receipt
from millrace.store.postgres import PostgresStore
from millrace.testing.builders import a_claim, a_reclaim, a_retry_change, a_spec
from millrace.testing.invariants import assert_holds, gather
from tests.servers.postgres import PostgresServer, older_binaries


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    server = PostgresServer(older_binaries())
    await asyncio.to_thread(server.start)
    made = PostgresStore(server.url)
    await made.connect()
    try:
        yield made
    finally:
        await made.close()
        await asyncio.to_thread(server.remove)


async def test_every_statement_of_the_store_works_on_an_older_server(store: PostgresStore) -> None:
    await store.control("queue", "pool", {"lanes": 2, "max_depth": 10, "on_empty": "told"})
    await store.control("task", "mail", {"max_running": 5, "rate": 100.0})
    await store.enqueue([a_spec(id="plain"), a_spec(id="keyed", key="k", group="g", expires=60)])
    await store.enqueue(
        [a_spec(id="child", after=("plain",)), a_spec(id="lane", queue="pool"), a_spec(id="m", task="mail")]
    )
    await store.enqueue([a_spec(id="quick"), a_spec(id="later", delay=3600)])
    while jobs := await store.claim(a_claim(3, queues=("default", "pool"))):
        ends = [a_retry_change(0) if job.attempt == 1 and job.id == "keyed" else Change.completed(b"1") for job in jobs]
        assert set(await store.settle([(job.lease, end) for job, end in zip(jobs, ends, strict=True)])) == {Receipt.OK}
    assert await store.reclaim(a_reclaim(5)) == []
    await store.cancel(["later"])
    await store.replay(["plain"])
    await store.maintain()
    await store.wait(["default"], None, 0.01)

    assert [event.kind.value for event in await store.history("child")] == [
        "enqueued",
        "unblocked",
        "claimed",
        "completed",
    ]
    assert (await store.facts())["version"] >= "140000"
    evidence = await gather(store, since=0)
    assert_holds(evidence)
    states = {job.id: job.state for job in evidence.jobs}
    assert states["child"] is states["keyed"] is states["lane"] is states["m"] is State.COMPLETED
    assert (states["plain"], states["later"]) == (State.WAITING, State.CANCELLED)
