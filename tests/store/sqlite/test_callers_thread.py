"""Calls for few jobs run on the thread of their caller, where nothing makes them wait."""

import asyncio
import os
import signal
import sqlite3
import threading
import time

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import QueueFull, StoreError
from millrace.store.sqlite import SqliteStore, process, threads, writer
from millrace.store.sqlite.connection import Io
from millrace.store.sqlite.writer import WriteLock
from millrace.testing.builders import a_claim, a_spec, specs

HERE = threading.main_thread()


class Seen(Io):
    """Remembers which thread began each transaction, read and checkpoint."""

    def __init__(self):
        self.threads = []
        self.checkpoints = []
        self.reads = []
        self.busy_reads = 0
        self.after_rollback = lambda: None
        self.before_commit = lambda: None

    def begin(self, connection):
        super().begin(connection)
        self.threads.append(threading.current_thread())

    def begin_read(self, connection):
        self.reads.append(threading.current_thread())
        if self.busy_reads:
            self.busy_reads -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorname = "SQLITE_BUSY"
            raise error
        super().begin_read(connection)

    def rollback(self, connection):
        super().rollback(connection)
        self.after_rollback()

    def commit(self, connection):
        self.before_commit()
        super().commit(connection)

    def execute(self, connection, sql, params=()):
        if "wal_checkpoint" in sql:
            self.checkpoints.append(threading.current_thread())
        return super().execute(connection, sql, params)


def refused_half_way(ledger, now):
    ledger.enqueue([a_spec(id="half")], now)
    raise QueueFull("q", 1, 1)


@pytest.fixture(autouse=True)
def _any_disk_is_quick(monkeypatch):
    monkeypatch.setattr(threads, "QUICK", 60.0)
    monkeypatch.setattr(threads, "LONG", 60.0)


@pytest.fixture
def io():
    return Seen()


@pytest.fixture
async def store(tmp_path, io):
    store = SqliteStore(tmp_path / "jobs.db", io=io)
    await store.connect()
    await store.enqueue([a_spec(id="first")])
    io.threads.clear()
    yield store
    await store.close()


async def steps_of_several_tasks(store: SqliteStore):
    """From now on, steps wait for those of other tasks."""
    await asyncio.gather(*(store.enqueue([a_spec()]) for _ in range(3)))


async def test_a_single_enqueue_runs_on_the_thread_of_its_event_loop(store: SqliteStore, io):
    [answer] = await store.enqueue([a_spec()])

    assert answer.status == "queued"
    assert io.threads == [HERE]


async def test_claims_and_settles_of_few_jobs_run_on_the_thread_of_their_event_loop(store: SqliteStore, io):
    await store.enqueue(specs(50))
    io.threads.clear()

    [job] = await store.claim(a_claim(1))
    await store.settle([(job.lease, Change.completed(b"1"))])
    assert io.threads == [HERE, HERE]

    jobs = await store.claim(a_claim(30))  # the last claim returned few jobs
    io.threads.clear()
    jobs += await store.claim(a_claim(20))
    await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
    assert HERE not in io.threads


async def test_few_jobs_are_read_on_the_thread_of_the_event_loop(store: SqliteStore, io):
    await store.get(["first"])  # opens the connection
    io.reads.clear()
    [job] = await store.get(["first"])
    assert job is not None
    assert io.reads == [HERE]
    io.reads.clear()

    await store.get([f"job-{number}" for number in range(50)])

    assert HERE not in io.reads


async def test_a_read_on_the_event_loop_waits_for_no_lock(store: SqliteStore, io):
    await store.get(["first"])
    io.reads.clear()
    io.busy_reads = 1

    [job] = await store.get(["first"])

    assert job is not None
    assert io.reads[0] is HERE
    assert HERE not in io.reads[1:]


@pytest.mark.parametrize("tasks", [1, 3])
async def test_tasks_that_enqueue_in_a_loop_yield_to_the_event_loop(store: SqliteStore, tasks):
    """They leave room for timers and other tasks, however long their commits take."""
    ticks: list[int] = []

    async def tick():
        while len(ticks) < 5:
            await asyncio.sleep(0)
            ticks.append(1)

    async def enqueue():
        while len(ticks) < 5:
            await store.enqueue([a_spec()])

    await asyncio.wait_for(asyncio.gather(tick(), *(enqueue() for _ in range(tasks))), 60)


async def test_steps_of_one_task_run_at_once_until_their_time_is_up(store: SqliteStore, monkeypatch):
    async def iterations(of):
        loop, count, done = asyncio.get_running_loop(), 0, False

        def iterate():
            nonlocal count
            count += 1
            if not done:
                loop.call_soon(iterate)

        loop.call_soon(iterate)
        for _ in range(of):
            await store.enqueue([a_spec()])
        done = True
        return count

    monkeypatch.setattr(process, "AT_ONCE_FOR", 60.0)
    await store.enqueue([a_spec()])
    assert await iterations(10) == 0

    monkeypatch.setattr(process, "AT_ONCE_FOR", 0.0)
    await asyncio.sleep(0)
    assert await iterations(10) >= 10


async def test_tasks_that_are_ready_together_share_a_commit(store: SqliteStore, io):
    """Once the store has seen that steps of several tasks come together. Before that, the first task goes ahead."""
    await steps_of_several_tasks(store)
    assert io.threads == [HERE, HERE]
    io.threads.clear()

    await asyncio.gather(*(store.enqueue([a_spec()]) for _ in range(process.FEW)))
    assert io.threads == [HERE]
    io.threads.clear()

    await asyncio.gather(*(store.enqueue([a_spec()]) for _ in range(process.FEW + 1)))

    assert len(io.threads) == 1
    assert HERE not in io.threads


async def test_a_task_that_is_alone_again_does_not_wait_for_others(store: SqliteStore, monkeypatch):
    monkeypatch.setattr(process, "AT_ONCE_FOR", 60.0)
    await steps_of_several_tasks(store)
    await store.enqueue([a_spec()])  # waits in vain
    waited: list[bool] = []

    asyncio.get_running_loop().call_soon(waited.append, True)
    await store.enqueue([a_spec()])

    assert not waited


async def test_large_calls_run_on_the_writers_thread(store: SqliteStore, io):
    await store.enqueue(specs(50))
    assert HERE not in io.threads


async def test_calls_run_in_the_order_in_which_they_were_made(store: SqliteStore):
    answers = await asyncio.gather(store.enqueue([a_spec()]), store.enqueue(specs(20)), store.enqueue([a_spec()]))

    seqs = [answer.seq for call in answers for answer in call]
    assert seqs == sorted(seqs)


@pytest.mark.parametrize("limit", ["QUICK", "LONG"])
async def test_after_a_slow_commit_event_loops_leave_commits_to_the_thread(store: SqliteStore, io, monkeypatch, limit):
    monkeypatch.setattr(threads, limit, 0.0)  # every commit is too slow
    monkeypatch.setattr(threads, "SLOW_SHARE", 1_000_000)
    await store.enqueue([a_spec()])
    io.threads.clear()

    await store.enqueue([a_spec()])

    assert HERE not in io.threads


async def test_an_event_loop_waits_for_no_lock_of_another_process(store: SqliteStore, io):
    lock = WriteLock(store.path, Io(), print)
    lock.acquire()
    waiting = asyncio.create_task(store.enqueue([a_spec(id="behind a file lock")]))
    await asyncio.sleep(0.05)  # would not return if the loop waited
    assert not waiting.done()
    lock.release()
    assert (await waiting)[0].status == "queued"
    lock.close()

    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(store.enqueue([a_spec(id="behind a transaction")]))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    other.execute("COMMIT")
    other.close()
    assert (await waiting)[0].status == "queued"
    assert HERE not in io.threads


async def test_checkpoints_run_on_the_writers_thread(store: SqliteStore, io, monkeypatch):
    monkeypatch.setattr(writer, "CHECKPOINT_PAGES", 40)

    for _ in range(20):
        await store.enqueue([a_spec()])

    assert HERE in io.threads
    assert io.checkpoints
    assert HERE not in io.checkpoints


async def test_a_call_that_was_made_before_the_store_is_closed_is_finished(store: SqliteStore):
    await steps_of_several_tasks(store)
    begun = asyncio.ensure_future(store.enqueue([a_spec(id="last")]))
    await asyncio.sleep(0)
    await store.close()
    assert (await begun)[0].status == "queued"

    await store.connect()
    assert await store.get(["last"]) != [None]


async def test_a_cancelled_enqueue_that_has_not_begun_writes_nothing(store: SqliteStore):
    await steps_of_several_tasks(store)
    begun = asyncio.ensure_future(store.enqueue([a_spec(id="never")]))
    await asyncio.sleep(0)
    begun.cancel()
    await asyncio.gather(begun, return_exceptions=True)
    await store.enqueue([a_spec()])

    assert await store.get(["never"]) == [None]


async def test_a_refused_call_reaches_only_its_caller(store: SqliteStore, io):
    await store.control("queue", "small", {"max_depth": 1})
    await steps_of_several_tasks(store)
    io.threads.clear()

    answers = await asyncio.gather(
        store.enqueue([a_spec(queue="small")]),
        store.enqueue([a_spec(queue="small")]),
        store.enqueue([a_spec()]),
        return_exceptions=True,
    )

    assert [isinstance(answer, Exception) for answer in answers] == [False, True, False]
    assert io.threads == [HERE]


@pytest.mark.parametrize("how", ["loop", "thread"])
async def test_a_call_that_is_undone_and_waits_for_its_own_caller_gets_an_error(store: SqliteStore, io, how):
    """It runs again after the rollback, and a transaction of the same thread has taken the lock in between."""
    mine = sqlite3.connect(store.path, isolation_level=None)

    def take_the_lock():
        io.after_rollback = lambda: None
        mine.execute("BEGIN IMMEDIATE")

    async def call():
        if how == "loop":
            await store._here().write(refused_half_way, small=True)
        else:
            store._here().write_now(refused_half_way)

    io.after_rollback = take_the_lock
    with pytest.raises(StoreError, match="this is a deadlock"):
        await call()
    mine.close()

    assert await store.get(["half"]) == [None]
    assert (await store.enqueue([a_spec()]))[0].status == "queued"


# ── without an event loop ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def blocking(tmp_path, io):
    store = SqliteStore(tmp_path / "jobs.db", io=io)
    store.enqueue_now([a_spec(id="first")])
    io.threads.clear()
    yield store
    store.close_now()


def test_a_blocking_enqueue_runs_on_its_own_thread(blocking: SqliteStore, io):
    assert blocking.enqueue_now([a_spec()])[0].status == "queued"
    assert io.threads == [HERE]


def test_threads_that_enqueue_at_once_lose_nothing_and_share_commits(blocking: SqliteStore, io):
    def enqueue(name):
        for number in range(50):
            blocking.enqueue_now([a_spec(id=f"{name}-{number}")])

    threads = [threading.Thread(target=enqueue, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    jobs = asyncio.run(found(blocking, [f"{name}-{number}" for name in range(8) for number in range(50)]))
    assert None not in jobs
    assert len({job.seq for job in jobs}) == 400
    assert len(io.threads) <= 400


async def found(store, ids):
    return await store.get(ids)


def test_an_interrupted_call_leaves_a_store_that_goes_on(blocking: SqliteStore, io):
    """As Ctrl-C does: nothing of the call is written, and no lock stays taken."""

    def interrupt():
        io.before_commit = lambda: None
        signal.raise_signal(signal.SIGINT)

    io.before_commit = interrupt
    with pytest.raises(KeyboardInterrupt):
        blocking.enqueue_now([a_spec(id="interrupted")])

    assert blocking.enqueue_now([a_spec(id="next")])[0].status == "queued"
    assert [job is None for job in asyncio.run(found(blocking, ["interrupted", "next"]))] == [True, False]


def test_a_call_inside_a_call_of_the_same_thread_is_refused(blocking: SqliteStore, io):
    """A signal handler runs in the middle of a call. Waiting for that call would never end."""
    refused = []

    def handler(*_):
        io.before_commit = lambda: None
        with pytest.raises(StoreError, match="signal handler"):
            blocking.enqueue_now([a_spec(id="inner")])
        refused.append(True)

    before = signal.signal(signal.SIGUSR1, handler)
    io.before_commit = lambda: signal.raise_signal(signal.SIGUSR1)
    try:
        assert blocking.enqueue_now([a_spec(id="outer")])[0].status == "queued"
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert refused
    assert [job is None for job in asyncio.run(found(blocking, ["inner", "outer"]))] == [True, False]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_waits_for_a_call_of_another_thread(blocking: SqliteStore, io):
    """The child would inherit an open connection otherwise."""
    begun = threading.Event()

    def slow():
        io.before_commit = lambda: None
        begun.set()
        time.sleep(0.3)

    io.before_commit = slow
    thread = threading.Thread(target=blocking.enqueue_now, args=([a_spec(id="slow")],))
    thread.start()
    begun.wait(10)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if blocking.enqueue_now([a_spec(id="child")])[0].status == "queued" else 1
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    thread.join()

    assert os.waitstatus_to_exitcode(status) == 0
    assert None not in asyncio.run(found(blocking, ["slow", "child"]))
