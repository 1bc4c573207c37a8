"""Several processes on one file: they take turns, wake each other, and never see `database is locked`."""

import asyncio
import multiprocessing
import os
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from millrace.domain.errors import StoreError
from millrace.domain.job import State
from millrace.domain.request import Query
from millrace.store.sqlite import SqliteStore, self_deadlock
from millrace.store.sqlite.connection import Io
from millrace.store.sqlite.wake import Wake, mask_for
from millrace.store.sqlite.writer import WriteLock
from millrace.testing.builders import a_spec, specs
from tests.narrowing import the

ROOT = Path(__file__).resolve().parents[3]

WORKER = """
import asyncio, sys
import millrace.store.sqlite.store
from millrace.domain.change import Change
from millrace.domain.request import Claim
from millrace.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.connect()
    millrace.store.sqlite.store._SLICE = 600.0  # it would look by itself every five seconds
    print("up", flush=True)
    while True:
        jobs = await store.claim(Claim(queues=("default",), worker="w", limit=10))
        if jobs:
            await store.settle([(job.lease, Change.completed(job.spec.payload)) for job in jobs])
            if any(job.spec.payload == b"stop" for job in jobs):
                break
        else:
            await store.wait(["default"], None, 600.0)
    await store.close()

asyncio.run(main())
"""

MIXED = """
import asyncio, sys
from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.request import Claim
from millrace.store.sqlite import SqliteStore

async def main(path, name, number):
    store = SqliteStore(path)
    await store.connect()
    done = 0
    for n in range(number):
        await store.enqueue([Spec(id=f"{name}-{n}", task="t", group=f"g{n % 5}")])
        for job in await store.claim(Claim(queues=("default",), worker=name, limit=2)):
            await store.settle([(job.lease, Change.completed())])
            done += 1
        if n % 10 == 0:
            await store.count()
    print(done)
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def start(code, *arguments):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "jobs.db")
    await store.connect()
    yield store
    await store.close()


async def test_two_processes_wake_each_other_and_need_no_poll(store: SqliteStore):
    """R-04, L-03: both sleep for ten minutes unless poked, so one poke that is lost ends the test."""
    worker = start(WORKER, store.path)
    assert worker.stdout.readline() == "up\n"
    trips = []
    for payload in [b"x"] * 60 + [b"stop"]:
        await asyncio.sleep(0.005)
        spec = a_spec(payload=payload)
        begun = time.perf_counter()
        async with asyncio.timeout(60), store.watch(spec.id) as watch:
            await store.enqueue([spec])
            while the((await store.get([spec.id]))[0]).state is not State.COMPLETED:
                await watch.wait(600.0)
        trips.append(time.perf_counter() - begun)
    assert await asyncio.to_thread(worker.wait, 60) == 0
    worker.stdout.close()
    print(f"enqueue, run elsewhere and hear of it: p50 {statistics.median(trips) * 1000:.2f} ms")


async def test_waiting_costs_no_time_of_the_processor(store: SqliteStore):
    before = time.process_time()

    await store.wait(["default"], None, 1.0)

    assert time.process_time() - before < 0.1


async def test_one_job_pokes_one_sleeping_process(tmp_path):
    """BE-14, HERD."""
    heard = []
    path = str(tmp_path / "jobs.db")
    sleepers = [Wake(path, Io(), lambda *hint, n=n: heard.append((n, *hint)), print) for n in range(5)]
    for sleeper in sleepers:
        sleeper.publish(1, mask_for(("q",), None, None))
    enqueuer = Wake(path, Io(), print, print)

    enqueuer.wake({("q", "work"): 1})
    await until(lambda: len(heard) == 1)
    enqueuer.wake({("q", "work"): 2})
    await until(lambda: len(heard) == 3)
    await asyncio.sleep(0.05)

    assert len({n for n, *_ in heard}) == 3
    for wake in (*sleepers, enqueuer):
        wake.close()


FALLS_ASLEEP_AND_DIES = """
import os, sys
from millrace.store.sqlite.connection import Io
from millrace.store.sqlite.wake import Wake, mask_for
Wake(sys.argv[1], Io(), print, print).publish(1, (1 << 256) - 1)
os.kill(os.getpid(), 9)
"""


# BR-22
async def test_a_process_that_died_asleep_is_forgotten(tmp_path):
    path = str(tmp_path / "jobs.db")
    heard = []
    enqueuer = Wake(path, Io(), print, print)
    with start(FALLS_ASLEEP_AND_DIES, path) as gone:
        assert gone.wait(60) == -9
    alive = Wake(path, Io(), lambda place, jobs, tried: heard.append(place), print)
    alive.publish(1, (1 << 256) - 1)

    enqueuer.wake({("q", "work"): 1})
    await until(lambda: heard == [("q", "work")])

    alive.close()
    enqueuer.close()


async def test_a_hint_that_nobody_can_use_goes_to_each_process_once(tmp_path):
    """What slots say may be wrong, and two processes that both have no use for a hint must not go on exchanging it."""
    path, heard = str(tmp_path / "jobs.db"), []

    def passing_on(n):
        def woken(place, jobs, tried):
            heard.append(n)
            wakes[n].publish(1, (1 << 256) - 1)
            wakes[n].wake({place: jobs}, tried)

        return woken

    wakes = []
    wakes += [Wake(path, Io(), passing_on(n), print) for n in range(3)]
    for wake in wakes:
        wake.publish(1, (1 << 256) - 1)
    enqueuer = Wake(path, Io(), print, print)

    enqueuer.wake({("q", "work"): 1})
    await until(lambda: len(heard) == 3)
    await asyncio.sleep(0.1)

    assert sorted(heard) == [0, 1, 2]
    for wake in (*wakes, enqueuer):
        wake.close()


async def test_a_long_path_still_has_room_for_a_socket(tmp_path):
    folder = tmp_path / ("deep" * 20) / ("deeper" * 10)
    folder.mkdir(parents=True)
    heard = []
    sleeper = Wake(str(folder / "jobs.db"), Io(), lambda place, jobs, tried: heard.append(place), print)
    sleeper.publish(1, (1 << 256) - 1)
    enqueuer = Wake(str(folder / "jobs.db"), Io(), print, print)

    enqueuer.wake({("q", "work"): 1})
    await until(lambda: heard == [("q", "work")])

    sleeper.close()
    enqueuer.close()


async def until(condition, patience=60.0):
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_processes_that_open_a_new_file_at_once_agree_on_one_schema(tmp_path):
    path = tmp_path / "jobs.db"
    processes = [start(MIXED, path, f"p{n}", 3) for n in range(6)]
    outputs = [await asyncio.to_thread(process.communicate) for process in processes]

    assert [process.returncode for process in processes] == [0] * 6
    assert sum(int(out) for out, _ in outputs) <= 18
    store = SqliteStore(path)
    assert len((await store.find(Query(limit=1000))).jobs) == 18
    assert await store.check() == []
    await store.close()


async def busy(path, processes, each, reads_for):
    """Every process enqueues, claims, settles and counts, while a foreign reader holds one snapshot."""
    store = SqliteStore(path)
    await store.connect()
    with closing(sqlite3.connect(path)) as reader:
        started = [start(MIXED, path, f"p{n}", each) for n in range(processes)]
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM millrace_job").fetchall()
        await asyncio.sleep(reads_for)
        reader.execute("COMMIT")
        outputs = [await asyncio.to_thread(process.communicate) for process in started]

    assert [process.returncode for process in started] == [0] * processes
    [row] = await store.count()
    assert row.completed == sum(int(out) for out, _ in outputs)
    assert row.completed + row.waiting == processes * each
    assert Path(f"{path}-wal").stat().st_size <= 64 << 20
    assert await store.check() == []
    await store.close()


@pytest.mark.slow
async def test_busy_processes_and_a_long_reader_never_see_a_lock(tmp_path):
    """BUSY, scaled down: no `database is locked` reaches anybody, and the log stays bounded."""
    await busy(tmp_path / "jobs.db", processes=6, each=60, reads_for=2)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
async def test_sixteen_busy_processes_and_a_long_reader_never_see_a_lock(tmp_path):
    """BUSY as it is aimed at."""
    await busy(tmp_path / "jobs.db", processes=16, each=2_000, reads_for=30)


async def test_a_foreign_transaction_of_two_seconds_is_waited_out(store: SqliteStore, monkeypatch):
    monkeypatch.setattr(self_deadlock, "A_WHILE", 60)  # the lock is in this process, and stands for another's
    with closing(sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        threading.Timer(2.0, foreign.execute, ("ROLLBACK",)).start()

        await store.enqueue([a_spec()])

        assert time.monotonic() - begun > 1.5


async def test_what_another_connection_wrote_is_seen_by_the_next_call(store: SqliteStore, tmp_path):
    """Nothing that is kept at hand outlives a write of somebody else."""
    other = SqliteStore(tmp_path / "jobs.db")
    await store.enqueue(specs(3))
    await other.control("queue", "default", {"max_depth": 4})
    await store.enqueue(specs(1))
    assert [answer.seq for answer in await other.enqueue([a_spec(queue="elsewhere")])] == [5]
    assert [answer.seq for answer in await store.enqueue([a_spec(queue="elsewhere")])] == [6]
    await other.close()


async def test_who_keeps_the_lock_too_long_is_named(tmp_path):
    """NET: no call outlives its deadline by much."""
    io = Io()
    said: list[str] = []
    path = str(tmp_path / "jobs.db")
    holder, waiter = WriteLock(path, io, said.append), WriteLock(path, io, said.append, deadline=0.2)
    holder.acquire()
    thread = threading.Thread(target=waiter.acquire)
    thread.start()
    await until(lambda: said)
    holder.release()
    thread.join(60)
    assert not thread.is_alive()

    assert f"process {os.getpid()}" in said[0]
    waiter.release()
    holder.close()
    waiter.close()


async def test_a_call_is_given_up_when_another_process_does_not_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.store.sqlite.writer.DEADLINE", 0.3)
    monkeypatch.setattr(WriteLock.__init__, "__defaults__", (0.3,))
    store = SqliteStore(tmp_path / "jobs.db")
    await store.connect()
    holder = WriteLock(store.path, Io(), print)
    holder.acquire()

    with pytest.raises(StoreError, match="has kept the database locked"):
        await asyncio.wait_for(store.enqueue([a_spec(id="late")]), 60)

    holder.release()
    lock = store._here()._writer._write_lock
    await until(lambda: lock._since is None)  # the store has had its turn; before, it would give up the next call too
    await store.enqueue([a_spec(id="next")])
    assert [job and job.id for job in await store.get(["late", "next"])] == [None, "next"]
    await store.close()
    holder.close()


def in_a_child(store, pipe):
    async def main():
        [answer] = await store.enqueue([a_spec(id="from-the-child")])
        await store.close()
        return answer.seq

    pipe.send(asyncio.run(main()))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_forked_child_opens_its_own_connection(store: SqliteStore):
    """GUARANTEES 5: never carry a handle over fork."""
    await store.enqueue([a_spec(id="before")])
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=in_a_child, args=(store, there))
    child.start()
    assert await asyncio.to_thread(here.poll, 60)
    assert here.recv() == 2
    child.join(60)

    assert child.exitcode == 0
    [answer] = await store.enqueue([a_spec(id="after")])
    assert answer.seq == 3
    assert all(await store.get(["before", "from-the-child", "after"]))
