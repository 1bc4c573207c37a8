"""Conditions of single statements that no sentence about stores can tell: what is read too much or kept too long."""

import sqlite3

import pytest

from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.request import Claim
from millrace.store.sqlite import SqliteStore
from millrace.testing.clock import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
async def store(tmp_path, clock):
    store = SqliteStore(tmp_path / "jobs.db", clock=clock)
    await store.connect()
    yield store
    await store.close()


async def due_in(store, *queues):
    """How long a worker of these queues may sleep, in milliseconds."""
    due, now = await store._here().read(lambda ledger, now: (ledger.next_due(queues, None, now), now))
    return None if due is None else due - now


async def test_who_waits_sleeps_until_a_group_member_of_its_own_queue_is_due(store):
    await store.enqueue(
        [
            Spec("near", "work", queue="busy", group="g", delay=1_000),
            Spec("far", "work", queue="calm", group="g", delay=60_000),
        ]
    )
    assert await due_in(store, "busy") == 1_000
    assert await due_in(store, "calm") == 60_000


async def test_spans_of_blocks_without_a_job_go_and_others_stay(store, clock, tmp_path):
    """A block is 1,024 seqs; its span lets a search by time pass it over, so a live one must not go."""
    await store.control("queue", "default", {"keep_completed": 0})
    await store.enqueue([Spec(f"j{number}", "work") for number in range(2_100)])
    jobs = await store.claim(Claim(("default",), "w", 1_500))
    await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
    clock.advance(8 * 24 * 3600)
    for _ in range(5):
        await store.maintain(2_000)
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        [(first,)] = db.execute("SELECT min(seq) FROM millrace_job")
        blocks = [block for (block,) in db.execute("SELECT block FROM millrace_span ORDER BY block")]
    assert first == 1_501
    assert blocks == [1, 2]


async def test_a_parent_that_ended_is_forgotten_and_the_other_one_is_not(store, clock, tmp_path):
    """Another process, which has nothing at hand, sees what the file says."""
    await store.enqueue([Spec("a", "work", priority=1), Spec("b", "work"), Spec("child", "work", after=("a", "b"))])
    await complete_next(store, "a")
    other = SqliteStore(tmp_path / "jobs.db", clock=clock)
    await other.connect()
    await complete_next(other, "b")
    await complete_next(other, "child")
    await other.close()


async def test_a_child_that_was_cancelled_is_forgotten_and_its_sibling_is_not(store, clock, tmp_path):
    children = [Spec("first", "work", after=("parent",)), Spec("second", "work", after=("parent",))]
    await store.enqueue([Spec("parent", "work"), *children])
    await store.cancel(["first"])
    other = SqliteStore(tmp_path / "jobs.db", clock=clock)
    await other.connect()
    await complete_next(other, "parent")
    await complete_next(other, "second")
    await other.close()


async def complete_next(store, expected):
    [job] = await store.claim(Claim(("default",), "w", 1))
    assert job.id == expected
    await store.settle([(job.lease, Change.completed(b"1"))])


async def test_a_key_whose_window_is_over_leaves_no_row(store, clock, tmp_path):
    await store.enqueue([Spec("a", "work", key="k", scope="window", window=1_000), Spec("b", "work", key="live")])
    clock.advance(2)
    await store.maintain()
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        assert db.execute("SELECT key FROM millrace_hold").fetchall() == [("live",)]
