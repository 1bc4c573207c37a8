"""Open jobs that are in order are found by seq alone, others by the index of due times. No caller sees a difference."""

import sqlite3
from contextlib import closing
from random import Random

import pytest

from millrace.domain.change import Change
from millrace.domain.job import Job
from millrace.domain.request import Query
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.store.sqlite import SqliteStore
from millrace.testing.builders import a_claim, a_spec
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


def how_open(store: SqliteStore) -> dict[str, int]:
    with closing(sqlite3.connect(store.path)) as file:
        return dict(file.execute("SELECT id, open FROM millrace_job"))


async def test_jobs_are_in_order_unless_delayed_or_enqueued_after_the_clock_was_set_back(store: SqliteStore, clock):
    other = SqliteStore(store.path, clock=clock)
    await store.enqueue([a_spec(id="first"), a_spec(id="delayed", delay=1_000), a_spec(id="second")])
    await other.enqueue([a_spec(id="third")])
    clock.advance(-60)
    await store.enqueue([a_spec(id="before")])
    await other.enqueue([a_spec(id="before, too")])
    await other.close()
    clock.advance(60)
    await store.enqueue([a_spec(id="fourth")])

    found = how_open(store)
    assert {job for job, is_open in found.items() if is_open == 2} == {"first", "second", "third", "fourth"}
    assert {job for job, is_open in found.items() if is_open == 1} == {"delayed", "before", "before, too"}
    jobs = await store.claim(a_claim(10))
    assert [job.id for job in jobs] == ["before", "before, too", "first", "second", "third", "fourth"]
    assert set(how_open(store).values()) == {0, 1}

    await store.settle([(jobs[2].lease, Change.release())])
    assert how_open(store)["first"] == 1


@pytest.mark.parametrize("seed", range(6))
async def test_claims_positions_lists_and_counts_are_those_of_the_memory_store(store: SqliteStore, clock, seed):
    random = Random(seed)
    memory = MemoryStore(clock=clock, salt="s")
    both: tuple[Store, Store] = (store, memory)
    await memory.connect()
    running: list[tuple[Job, Job]] = []
    for step in range(120):
        clock.advance(random.choice([0, 0, 0.001, 1, 5, -3, -0.002]))
        match random.randrange(5):
            case 0 | 1:
                delays = [random.choice([0, 0, 0, 2_000]) for _ in range(random.randrange(1, 4))]
                specs = [
                    a_spec(id=f"{step}-{n}", delay=delay, priority=random.choice([0, 0, 1]))
                    for n, delay in enumerate(delays)
                ]
                for each in both:
                    await each.enqueue(specs)
            case 2:
                taken = [await each.claim(a_claim(3)) for each in both]
                assert [job.id for job in taken[0]] == [job.id for job in taken[1]]
                running += zip(*taken, strict=True)
            case 3 if running:
                change = random.choice([Change.release(), Change.completed(), Change.snooze(1_000)])
                for each, job in zip(both, running.pop(random.randrange(len(running))), strict=True):
                    await each.settle([(job.lease, change)])
            case _:
                await assert_same(random, *both)
    await assert_same(random, *both)


async def assert_same(random, store, memory):
    assert await store.count() == await memory.count()
    newest_first = random.choice([True, False])
    pages = [await everything(each, newest_first) for each in (store, memory)]
    assert pages[0] == pages[1]
    for job_id in random.sample(pages[0], min(5, len(pages[0]))):
        assert await store.position(job_id) == await memory.position(job_id)


async def everything(store, newest_first):
    """The ids of all live jobs, read in small pages."""
    found, cursor = [], None
    while True:
        query = Query(queue="default", state=None, newest_first=newest_first, cursor=cursor, limit=7)
        page = await store.find(query)
        found += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            return found
