"""Counters of the store and of queues are in the newest page of the feed, so that a commit changes fewer pages.

They stay right however many queues there are, and when the page is deleted or another process has written the next one.
"""

import sqlite3
from contextlib import closing

import pytest

from millrace.domain.change import Change
from millrace.domain.request import Query
from millrace.store.sqlite import SqliteStore
from millrace.store.sqlite.connection import Io
from millrace.store.sqlite.registry import MOST_IN_PAGE
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.clock import VirtualClock

QUEUES = [f"queue-{number}" for number in range(2 * MOST_IN_PAGE + 1)]
MINUTE = 60


class Written(Io):
    """Remembers the statements that wrote something."""

    def __init__(self):
        self.statements: list[str] = []

    def execute(self, connection, sql, params=()):
        if "INSERT" in sql or "UPDATE" in sql:
            self.statements.append(sql)
        return super().execute(connection, sql, params)


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
async def store(tmp_path, clock):
    store = SqliteStore(tmp_path / "jobs.db", clock=clock)
    await store.connect()
    yield store
    await store.close()


@pytest.fixture
async def other(store, clock):
    """As of another process."""
    other = SqliteStore(store.path, clock=clock)
    await other.connect()
    yield other
    await other.close()


async def waiting(store: SqliteStore) -> dict[str, int]:
    return {row.queue: row.waiting for row in await store.count()}


async def check(*stores: SqliteStore) -> None:
    for store in stores:
        found = [job.spec.queue for job in (await store.find(Query(state="waiting", limit=1_000))).jobs]
        assert await waiting(store) == {queue: found.count(queue) for queue in {*found, *await waiting(store)}}


@pytest.mark.parametrize("queues", [1, MOST_IN_PAGE, MOST_IN_PAGE + 1, len(QUEUES)])
async def test_counters_are_right_with_any_number_of_queues(store: SqliteStore, other: SqliteStore, queues):
    for turn in range(4 * queues):
        writer = (store, other)[turn // 3 % 2]
        await writer.enqueue([a_spec(queue=QUEUES[turn * 3 % queues]) for _ in range(1 + turn % 2)])
    await store.enqueue([a_spec(queue=queue) for queue in QUEUES[:queues]])
    await check(store, other)

    for queue in QUEUES[:queues]:
        [job] = await other.claim(a_claim(1, queue=queue))
        await store.settle([(job.lease, Change.completed())])
    await check(store, other)
    assert sum(row.completed for row in await store.count()) == queues


async def test_a_single_enqueue_writes_two_rows(tmp_path, clock):
    """The row of the job, and the page of the feed with its event and the counters."""
    io = Written()
    store = SqliteStore(tmp_path / "jobs.db", clock=clock, io=io)
    await store.enqueue([a_spec()])
    io.statements.clear()

    await store.enqueue([a_spec()])
    await store.close()

    assert [sql.split("INTO ")[1].split()[0] for sql in io.statements] == ["millrace_job", "millrace_event"]


async def test_counters_survive_the_end_of_the_whole_feed(store: SqliteStore, other: SqliteStore, clock):
    await store.control("store", "", {"keep_events": MINUTE * 1000})
    [first, *_] = await store.enqueue([a_spec(queue=queue) for queue in QUEUES])
    clock.advance(3 * MINUTE)
    while (await other.maintain()).events:
        pass
    with closing(sqlite3.connect(store.path)) as file:
        assert file.execute("SELECT count(*) FROM millrace_event").fetchone() == (0,)
    await check(store, other)

    [next_one] = await store.enqueue([a_spec(queue=QUEUES[0])])
    assert next_one.seq == first.seq + len(QUEUES)
    await check(store, other)


async def test_a_setting_of_a_queue_does_not_touch_its_counters(store: SqliteStore, other: SqliteStore):
    await store.enqueue([a_spec(queue="q"), a_spec(queue="r")])
    await other.control("queue", "q", {"max_depth": 7})
    await check(store, other)

    await store.enqueue([a_spec(queue="q")])
    await other.control("queue", "r", {"paused": True})
    await check(store, other)
    assert {row.queue: row.waiting for row in await store.count()} == {"q": 2, "r": 1}
