"""The same on an older server: the system's PostgreSQL, or the wheel's older one.

All other tests run on the wheel's newest; MILLRACE_TEST_POSTGRES_BINARIES=system has them run on the system's.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from millrace.domain.change import Change
from millrace.domain.job import State
from millrace.domain.request import Receipt
from millrace.store.clock import Clock
from millrace.store.postgres import PostgresStore
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_reclaim, a_retry_change, a_spec
from millrace.testing.invariants import assert_holds, gather
from proof.model.store_machine import COVERAGE, store_machine
from tests.servers.postgres import PostgresServer, Schemas, older_binaries
from tests.store.postgres.stores import PostgresForTests, kept_open
from tests.store.test_model import run


@pytest.fixture(scope="module")
def older_server() -> Iterator[PostgresServer]:
    server = PostgresServer(older_binaries())
    server.start()
    yield server
    server.remove()


@pytest.fixture
async def store(older_server: PostgresServer) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(older_server.url)
    await made.connect()
    try:
        yield made
    finally:
        await made.close()


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
    assert "140000" <= (await store.facts())["version"] < "180000"
    evidence = await gather(store, since=0)
    assert_holds(evidence)
    states = {job.id: job.state for job in evidence.jobs}
    assert states["child"] is states["keyed"] is states["lane"] is states["m"] is State.COMPLETED
    assert (states["plain"], states["later"]) == (State.WAITING, State.CANCELLED)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_store_behaves_like_the_ledger_on_an_older_server(older_server: PostgresServer) -> None:
    """Fewer examples than on the newest: every statement, with whatever arguments."""
    schemas = Schemas(older_server.url)
    folders: dict[int, Path] = {}

    def make(clock: Clock, folder: Path) -> Store:
        store = PostgresForTests(schemas.url_for(folder), clock=clock)
        folders[id(store)] = folder
        return store

    label = "postgres, older"
    with kept_open() as runner:
        machine = store_machine(
            lambda clock: make(clock, Path(f"example-{next(numbers)}")),
            reopen=lambda store, clock: make(clock, folders.pop(id(store))),
            discard=lambda store: schemas.release(folders.pop(id(store))),
            label=label,
            runner=runner,
        )
        numbers = itertools.count()
        run(machine, number=4, examples=12, steps=60)

    assert COVERAGE[label].counts.total() > 500
