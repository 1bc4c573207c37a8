"""Every statement of a hot path is answered by its index, in order: its cost does not grow with the queue (X5).

The statements are those that the store really runs, caught on their way to SQLite while it does everything there is
to do on a file with jobs of every kind; a new statement is covered by itself.
"""

import re
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.request import Claim, Extension, Query, Reclaim
from millrace.store.sqlite import SqliteStore
from millrace.store.sqlite.connection import Io
from millrace.testing.builders import a_spec
from millrace.testing.clock import VirtualClock

LARGE = re.compile(r"\bSCAN (millrace_)?(job|body|event|past|dependency|hold)\b")


class Listening(Io):
    """Keeps every statement with its parameters, and counts the steps of SQLite's machine."""

    def __init__(self):
        self.heard = {}
        self.steps = 0
        self.on = False

    def open(self, path, options="mode=rw"):
        connection = super().open(path, options)
        connection.set_progress_handler(self._count, 10)
        return connection

    def _count(self):
        self.steps += 10
        return 0

    def execute(self, connection, sql, params=()):
        if self.on and not sql.startswith("PRAGMA"):
            self.heard.setdefault(sql, params)
        return super().execute(connection, sql, params)


def jobs(start, number):
    """Plain jobs, four priorities, groups of every size, the far future, keys, expiry and two queues, all mixed."""
    for n in range(start, start + number):
        fields: dict[str, Any] = {
            "id": f"job-{n}",
            "task": ("work", "mail")[n % 7 == 0],
            "queue": ("q", "r")[n % 11 == 0],
        }
        match n % 10:
            case 0 | 1:
                fields["group"] = f"g{n % 500}"
            case 2 | 3:
                fields["delay"] = 3_600_000 + n
            case 4:
                fields["priority"] = n % 4
            case 5:
                fields["expires"] = 7_200_000
            case 6 if n % 60 == 6:
                fields["key"] = f"k{n}"
        yield Spec(token=f"t{n}", **fields)


async def fill(store, number, batch=2_000):
    for start in range(0, number, batch):
        await store.enqueue(list(jobs(start, min(batch, number - start))))


def claim(limit):
    return Claim(queues=("q", "r"), worker="w", limit=limit, tasks=frozenset({"work", "mail"}))


async def do_the_hot_things(store, clock):
    """Enqueue, claim, settle in every way, extend, reclaim, expire, wait."""
    await store.enqueue([a_spec(queue="q"), a_spec(queue="q", group="g1"), a_spec(queue="r", key="fresh")])
    taken = await store.claim(claim(20))
    await store.extend([Extension(job.lease) for job in taken])
    changes = [Change.completed(b"1"), Change.retry(None, delay=1000), Change.snooze(5), Change.bury(None, "unknown")]
    await store.settle([(job.lease, changes[n % 4]) for n, job in enumerate(taken[:16])])
    clock.advance(60)
    await store.reclaim(Reclaim(worker="w", limit=3, queues=("q", "r")))
    await store.wait(["q"], None, 0)
    clock.advance(3 * 3600)  # the short-lived ones expire, the delayed ones fall due
    await store.claim(claim(20))


async def do_the_rest(store, clock):
    await store.cancel(["job-17"])
    await store.replay(["job-17"])
    await store.archive(["job-17"])
    await store.count()
    await store.position("job-18")
    await store.get(["job-18", "nobody"])
    await store.history("job-18")
    await store.events(None, 100)
    for query in (
        Query(queue="q"),
        Query(task="mail", state="waiting"),
        Query(state="dead"),
        Query(state="running"),
        Query(group="g1"),
        Query(key="k6"),
        Query(queue="r", state="completed", newest_first=True),
        Query(enqueued_from=clock() - 1000),
        Query(finished_from=clock() - 1000),
    ):
        await store.find(query)
    await store.partitions(4)
    await store.drain("r", 5)
    await store.control("task", "mail", {"max_running": 100})
    clock.advance(30 * 24 * 3600)
    await store.maintain(50)


def plans(database, heard):
    with closing(sqlite3.connect(database)) as connection:
        for sql, params in heard.items():
            if re.match(r"(WITH|SELECT|UPDATE|DELETE|INSERT)", _bare(sql)):
                yield _bare(sql), [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, params)]


def _bare(sql):
    return " ".join(line for line in sql.splitlines() if not line.startswith("--")).strip()


async def check_plans(folder, number):
    clock, io = VirtualClock(), Listening()
    store = SqliteStore(folder / "jobs.db", clock=clock, io=io)
    await store.connect()
    await fill(store, number)

    io.on = True
    await do_the_hot_things(store, clock)
    hot, io.heard = io.heard, {}
    await do_the_rest(store, clock)
    rest = io.heard
    await store.close()

    assert len(hot) > 20
    sorting = [sql for sql, plan in plans(store.path, hot) if any("TEMP B-TREE" in step for step in plan)]
    scanning = [(sql, plan) for sql, plan in plans(store.path, {**hot, **rest}) if any(map(LARGE.search, plan))]
    assert sorting == []
    assert [(sql, plan) for sql, plan in scanning if not _walks_by_seq(sql)] == []


def _walks_by_seq(sql):
    """What runs is as long as what runs; an EXISTS stops at its first row."""
    return "EXISTS" in sql or "lease_until IS NOT NULL" in sql


async def test_no_hot_statement_scans_or_sorts(tmp_path):
    await check_plans(tmp_path, 20_000)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
async def test_no_hot_statement_scans_or_sorts_among_a_million(tmp_path):
    await check_plans(tmp_path, 1_000_000)


async def cost_of_a_claim_and_settle(folder, number):
    """Steps of SQLite's machine per job; unlike time, the same on every run."""
    clock, io = VirtualClock(), Listening()
    store = SqliteStore(folder / f"{number}.db", clock=clock, io=io)
    await store.connect()
    await fill(store, number)
    await store.claim(claim(10))
    before = io.steps
    for _ in range(10):
        taken = await store.claim(claim(10))
        assert len(taken) == 10
        await store.settle([(job.lease, Change.completed(b"1")) for job in taken])
    steps = (io.steps - before) / 100
    await store.close()
    return steps


async def test_a_claim_and_settle_cost_the_same_with_a_long_queue(tmp_path):
    """With groups, priorities and future jobs mixed in."""
    short = await cost_of_a_claim_and_settle(tmp_path, 1_000)
    long = await cost_of_a_claim_and_settle(tmp_path, 30_000)
    print(f"steps per job: {short:.0f} with 1,000 jobs, {long:.0f} with 30,000")

    assert long <= 1.5 * short


@pytest.mark.nightly
@pytest.mark.timeout(1800)
async def test_a_claim_and_settle_cost_the_same_among_a_million(tmp_path):
    short = await cost_of_a_claim_and_settle(tmp_path, 1_000)
    long = await cost_of_a_claim_and_settle(tmp_path, 1_000_000)
    print(f"steps per job: {short:.0f} with 1,000 jobs, {long:.0f} with 1,000,000")

    assert long <= 1.5 * short
