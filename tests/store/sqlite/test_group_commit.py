"""Calls that wait together are committed together; one that is refused, or breaks, concerns nobody else."""

import asyncio
import sqlite3
import threading

import pytest

from millrace.domain.errors import DuplicateKey, QueueFull, StoreError
from millrace.domain.request import Query
from millrace.store.sqlite import SqliteStore
from millrace.store.sqlite.connection import Io
from millrace.testing.builders import a_claim, a_spec, specs
from millrace.testing.clock import VirtualClock
from tests.narrowing import the


class Gate(Io):
    """Counts commits, and holds the writer back before it begins, so that calls gather."""

    def __init__(self):
        self.commits = 0
        self.free = threading.Event()
        self.free.set()
        self.fail_next_commit = False

    def begin(self, connection):
        if threading.current_thread() is threading.main_thread() and not self.free.is_set():
            raise busy()  # the event loop does not wait for a lock
        self.free.wait(10)
        super().begin(connection)

    def commit(self, connection):
        self.commits += 1
        if self.fail_next_commit:
            self.fail_next_commit = False
            raise sqlite3.OperationalError("database or disk is full")
        super().commit(connection)


def busy():
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorname = "SQLITE_BUSY"
    return error


@pytest.fixture
def io():
    return Gate()


@pytest.fixture
async def store(tmp_path, io):
    store = SqliteStore(tmp_path / "jobs.db", clock=VirtualClock(), io=io)
    await store.connect()
    yield store
    await store.close()


async def together(io, *calls):
    """Start all calls while the writer is busy with another one, so that they share its next commit."""
    io.free.clear()
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0.05)
    io.free.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_many_callers_share_commits(store: SqliteStore, io):
    before = io.commits

    await together(io, *(store.enqueue([a_spec()]) for _ in range(200)))

    assert io.commits - before <= 3
    assert (await store.count())[0].waiting == 200


async def test_a_refused_call_leaves_the_others_of_its_commit_alone(store: SqliteStore, io):
    await store.control("queue", "small", {"max_depth": 3})
    await store.enqueue([a_spec(key="k", queue="keyed")])

    answers = await together(
        io,
        store.enqueue(specs(2, queue="small")),
        store.enqueue(specs(2, queue="small")),  # one too many: all or nothing
        store.enqueue([a_spec(queue="keyed"), a_spec(key="k", queue="keyed", on_hit="raise")]),
        store.enqueue([a_spec(queue="small")]),
    )

    assert [type(answer) for answer in answers] == [list, QueueFull, DuplicateKey, list]
    assert {row.queue: row.waiting for row in await store.count()} == {"keyed": 1, "small": 3}


async def test_a_call_that_breaks_half_way_is_undone_alone(store: SqliteStore, io):
    def breaks(ledger, now):
        ledger.enqueue([a_spec(id="half")], now)
        raise QueueFull("q", 1, 1)

    answers = await together(
        io, store.enqueue([a_spec(id="first")]), store._here().write(breaks), store.enqueue([a_spec(id="last")])
    )

    assert [type(answer) for answer in answers] == [list, QueueFull, list]
    assert [job and job.id for job in await store.get(["first", "half", "last"])] == ["first", None, "last"]
    assert {event.job for event in (await store.events(None, 100)).events} == {"first", "last"}


async def test_a_defect_in_a_step_reaches_its_caller_and_nobody_else(store: SqliteStore, io):
    def broken(ledger, now):
        raise ZeroDivisionError

    answers = await together(io, store.enqueue([a_spec(id="a")]), store._here().write(broken))

    assert [type(answer) for answer in answers] == [list, ZeroDivisionError]
    assert (await store.get(["a"]))[0] is not None


async def test_a_failed_commit_is_an_error_for_all_and_the_store_goes_on(store: SqliteStore, io):
    """ENOSPC: what was remembered of the lost transaction must not be believed afterwards."""
    await store.enqueue([a_spec(id="before")])
    io.fail_next_commit = True

    with pytest.raises(StoreError, match="full"):
        await store.enqueue([a_spec(id="lost")])

    assert await store.get(["lost"]) == [None]
    [answer] = await store.enqueue([a_spec(id="after")])
    assert answer.seq == 2
    assert [job.id for job in await store.claim(a_claim(limit=10))] == ["before", "after"]
    assert len((await store.find(Query())).jobs) == 2


async def test_a_caller_that_gave_up_before_its_turn_changes_nothing(store: SqliteStore, io):
    io.free.clear()
    first = asyncio.ensure_future(store.enqueue([a_spec(id="kept")]))
    await asyncio.sleep(0.02)
    late = asyncio.ensure_future(store.enqueue([a_spec(id="given-up")]))
    await asyncio.sleep(0.02)
    late.cancel()
    await asyncio.sleep(0)
    io.free.set()
    await first

    assert [job and job.id for job in await store.get(["kept", "given-up"])] == ["kept", None]


async def test_it_works_from_several_event_loops_at_once(store: SqliteStore):
    def from_another_thread(number):
        asyncio.run(store.enqueue(specs(50, queue=f"q{number}")))

    await asyncio.gather(*(asyncio.to_thread(from_another_thread, number) for number in range(4)))

    assert [row.waiting for row in await store.count()] == [50, 50, 50, 50]


async def test_a_closed_store_says_so_and_can_be_opened_again(store: SqliteStore):
    await store.enqueue([a_spec(id="a")])
    await store.close()

    with pytest.raises(StoreError, match="closed"):
        await store.get(["a"])

    await store.connect()
    assert the((await store.get(["a"]))[0]).id == "a"


async def test_a_call_that_was_given_up_before_its_turn_is_not_carried_out(store: SqliteStore, io):
    io.free.clear()
    given_up = asyncio.create_task(store.enqueue([a_spec(id="given up")]))
    wanted = asyncio.create_task(store.enqueue([a_spec(id="wanted")]))
    await asyncio.sleep(0.05)  # the writer has taken both, and stands at the gate
    given_up.cancel()
    await asyncio.wait([given_up])
    io.free.set()
    await wanted

    assert [job and job.id for job in await store.get(["given up", "wanted"])] == [None, "wanted"]
