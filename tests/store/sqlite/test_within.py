"""Steps on the caller's own SQLite connection: what is SQLite's about them. The rest is in the shared sentences."""

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput, QueueFull, StoreError
from millrace.domain.request import Claim
from millrace.store.sqlite import SqliteStore, commit_watch, self_deadlock
from millrace.store.sqlite.connection import Io
from millrace.testing.builders import a_spec, specs
from millrace.testing.invariants import assert_holds, gather
from tests.narrowing import the


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "jobs.db")
    await store.connect()
    yield store
    assert_holds(await gather(store, since=0))
    await store.close()


@pytest.fixture
def mine(store: SqliteStore):
    with contextlib.closing(sqlite3.connect(store.path)) as connection:
        connection.execute("CREATE TABLE purchase (id INTEGER PRIMARY KEY)")
        yield connection


def dump(store):
    with contextlib.closing(sqlite3.connect(store.path)) as connection:
        return list(connection.iterdump())


async def waiting(store):
    return sum(row.waiting for row in await store.count())


# ── the transaction is the caller's ───────────────────────────────────────────────────────────


async def test_a_rollback_leaves_the_file_as_it_was_to_the_last_row(store: SqliteStore, mine):
    await store.control("queue", "pool", {"lanes": 3, "max_depth": 5})
    await store.enqueue([a_spec(id="old", key="k"), *specs(3, group="g"), *specs(2, queue="pool")])
    await store.claim(Claim(("default",), "w", 2))
    before = dump(store)

    mine.execute("INSERT INTO purchase DEFAULT VALUES")
    within = store.within(mine)
    await within.enqueue([a_spec(id="new", key="k2", group="g"), *specs(3, queue="pool", group="p")])
    await within.enqueue([a_spec(id="child", after=("old", "new"), expires=60_000, delay=5_000)])
    with pytest.raises(QueueFull):
        await within.enqueue(specs(20, queue="pool", group="p"))
    mine.rollback()

    assert dump(store) == before


async def test_the_job_and_the_purchase_commit_together(store: SqliteStore, mine):
    mine.execute("INSERT INTO purchase DEFAULT VALUES")
    await store.within(mine).enqueue([a_spec(id="mail")])
    with contextlib.closing(sqlite3.connect(store.path)) as other:
        unseen = other.execute("SELECT (SELECT count(*) FROM purchase), (SELECT count(*) FROM millrace_job)").fetchone()
        mine.commit()
        seen = other.execute("SELECT (SELECT count(*) FROM purchase), (SELECT count(*) FROM millrace_job)").fetchone()

    assert (unseen, seen) == ((0, 0), (1, 1))


async def test_without_a_transaction_one_is_begun_as_an_insert_would(store: SqliteStore, mine):
    assert not mine.in_transaction
    await store.within(mine).enqueue([a_spec()])
    assert mine.in_transaction
    mine.rollback()
    assert await waiting(store) == 0


async def test_a_refused_step_leaves_no_transaction_that_it_began_itself(store: SqliteStore, mine):
    await store.control("queue", "default", {"max_depth": 1})
    with pytest.raises(QueueFull):
        await store.within(mine).enqueue(specs(2))
    assert not mine.in_transaction


async def test_in_autocommit_mode_a_transaction_has_to_be_open(store: SqliteStore):
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as mine:
        with pytest.raises(InvalidInput, match="autocommit"):
            await store.within(mine).enqueue([a_spec()])
        mine.execute("BEGIN")
        await store.within(mine).enqueue([a_spec()])
        mine.execute("ROLLBACK")
        mine.execute("BEGIN IMMEDIATE")
        await store.within(mine).enqueue([a_spec(id="kept")])
        mine.execute("COMMIT")

    assert [job.id for job in await store.claim(Claim(("default",), "w", 9))] == ["kept"]


async def test_savepoints_of_the_caller_count(store: SqliteStore, mine):
    mine.execute("BEGIN")
    await store.within(mine).enqueue([a_spec(id="first")])
    mine.execute("SAVEPOINT half")
    await store.within(mine).enqueue([a_spec(id="second")])
    mine.execute("ROLLBACK TO half")
    [third] = await store.within(mine).enqueue([a_spec(id="third")])
    mine.commit()

    assert third.seq == 2
    assert [job and job.id for job in await store.get(["first", "second", "third"])] == ["first", None, "third"]


class Loud(sqlite3.Cursor):
    def execute(self, *arguments):
        raise AssertionError("the cursor of the caller's own kind was used")


class Own(sqlite3.Connection):
    def cursor(self, factory=Loud):
        return super().cursor(factory)


@pytest.mark.parametrize("level", ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
async def test_settings_of_the_connection_neither_harm_nor_change(store: SqliteStore, level):
    """Row and text factories, isolation level, busy timeout, a class of one's own."""
    mine = sqlite3.connect(store.path, isolation_level=level, timeout=7, factory=Own)
    mine.row_factory = factory = lambda cursor, row: {"only": row[0]}
    mine.text_factory = bytes
    spec = a_spec(id="ünï", key="kéy", group="grüppe", queue="q.1")

    await store.within(mine).enqueue([spec, a_spec(after=(spec.id,))])
    with pytest.raises(InvalidInput):
        await store.within(mine).enqueue([a_spec(priority=77)])
    mine.commit()

    assert (mine.row_factory, mine.text_factory, mine.isolation_level) == (factory, bytes, level)
    assert sqlite3.Cursor(mine).execute("PRAGMA busy_timeout").fetchall() == [(7_000,)]
    mine.close()
    assert [job.id for job in await store.claim(Claim(("q.1",), "w"))] == ["ünï"]


async def test_a_connection_that_converts_text_is_refused(store: SqliteStore, monkeypatch):
    monkeypatch.setitem(sqlite3.converters, "TEXT", lambda data: data.decode().upper())
    with (
        contextlib.closing(sqlite3.connect(store.path, detect_types=sqlite3.PARSE_DECLTYPES)) as converting,
        contextlib.closing(sqlite3.connect(store.path)) as plain,
    ):
        with pytest.raises(InvalidInput, match="detect_types"):
            await store.within(converting).enqueue([a_spec()])
        await store.within(plain).enqueue([a_spec()])
        plain.commit()
    assert await waiting(store) == 1


class FullDisk(Io):
    """Lets the job's row pass and fails at its event."""

    def execute(self, connection, sql, params=()):
        if "INTO millrace_event" in sql:
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(connection, sql, params)


async def test_a_step_that_fails_half_way_leaves_nothing_in_a_transaction_that_commits(store: SqliteStore, mine):
    failing = SqliteStore(store.path, io=FullDisk())
    before = dump(store)

    mine.execute("INSERT INTO purchase DEFAULT VALUES")
    with pytest.raises(StoreError, match="full"):
        await failing.within(mine).enqueue([a_spec(key="k", group="g")])
    mine.commit()

    assert [line for line in dump(store) if "purchase" not in line] == [
        line for line in before if "purchase" not in line
    ]
    assert mine.execute("SELECT count(*) FROM purchase").fetchone() == (1,)


# ── which connections ─────────────────────────────────────────────────────────────────────────


async def test_a_connection_to_another_file_is_refused_with_both_names(store: SqliteStore, tmp_path):
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other,
        pytest.raises(InvalidInput, match=r"other\.db.*jobs\.db"),
    ):
        await store.within(other).enqueue([a_spec()])


async def test_an_attached_store_is_refused_because_two_files_do_not_commit_as_one(store: SqliteStore, tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("ATTACH ? AS jobs", (store.path,))
        with pytest.raises(InvalidInput, match="not atomic"):
            await store.within(shop).enqueue([a_spec()])


async def test_the_same_file_by_another_name_is_the_same_file(store: SqliteStore, tmp_path):
    os.symlink(store.path, tmp_path / "alias.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "alias.db")) as mine:
        await store.within(mine).enqueue([a_spec()])
        mine.commit()
    assert await waiting(store) == 1


async def test_a_read_only_connection_is_told_so(store: SqliteStore):
    with contextlib.closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as mine:
        with pytest.raises(StoreError, match="read-only"):
            await store.within(mine).enqueue([a_spec()])
        assert not mine.in_transaction


async def test_a_closed_connection_and_one_of_another_thread_are_refused(store: SqliteStore, mine):
    closed = sqlite3.connect(store.path)
    closed.close()
    with pytest.raises(InvalidInput, match="closed"):
        await store.within(closed).enqueue([a_spec()])
    with pytest.raises(InvalidInput, match="thread"):
        await asyncio.to_thread(lambda: store.within(mine).enqueue_now([a_spec()]))


async def test_the_tables_are_made_for_a_connection_that_comes_first(tmp_path):
    path = tmp_path / "new.db"
    store = SqliteStore(path)
    with contextlib.closing(sqlite3.connect(path)) as mine:
        await store.within(mine).enqueue([a_spec()])
        mine.commit()
    assert await waiting(store) == 1
    await store.close()


async def test_inside_a_transaction_it_is_too_late_to_make_tables(tmp_path):
    path = tmp_path / "new.db"
    store = SqliteStore(path)
    with contextlib.closing(sqlite3.connect(path)) as mine:
        mine.execute("BEGIN IMMEDIATE")
        with pytest.raises(InvalidInput, match="before the transaction begins"):
            await store.within(mine).enqueue([a_spec()])
        mine.rollback()
    await store.connect()
    await store.close()


async def test_a_store_that_is_not_open_yet_joins_a_running_transaction(store: SqliteStore, mine):
    """The tables are there, so nothing has to wait for the caller's lock."""
    late = SqliteStore(store.path)
    mine.execute("INSERT INTO purchase DEFAULT VALUES")
    await late.within(mine).enqueue([a_spec()])
    mine.commit()
    assert await waiting(store) == 1
    await late.close()


class LikeAiosqlite:
    """Its connection lives on a thread of its own, and everything goes there."""

    def __init__(self, path):
        self._pool = ThreadPoolExecutor(1)
        self._conn = self._pool.submit(sqlite3.connect, path).result()

    async def _execute(self, function, *arguments):
        return await asyncio.wrap_future(self._pool.submit(function, *arguments))

    def finish(self, how):
        self._pool.submit(getattr(self._conn, how)).result()
        self._pool.submit(self._conn.close).result()
        self._pool.shutdown()


class LikeSqlalchemy:
    """Commits only what it has begun, and holds the driver's connection two doors in."""

    def __init__(self, driver):
        self.connection = type("Proxied", (), {"driver_connection": driver})()
        self.begun = False
        self.driver = driver

    def in_transaction(self):
        return self.begun

    def begin(self):
        self.begun = True

    def commit(self):
        if self.begun:
            self.driver.commit()


class LikeSession:
    def __init__(self, inner):
        self.inner = inner

    def get_bind(self):
        return None

    def connection(self):
        return self.inner


async def test_a_connection_with_a_thread_of_its_own_is_used_there(store: SqliteStore):
    for how, jobs in (("rollback", 0), ("commit", 1)):
        mine = LikeAiosqlite(store.path)
        await store.within(mine).enqueue([a_spec()])
        with pytest.raises(InvalidInput, match="await"):
            store.within(mine).enqueue_now([a_spec()])
        mine.finish(how)
        assert await waiting(store) == jobs


@pytest.mark.parametrize("wrap", [LikeSqlalchemy, lambda raw: LikeSession(LikeSqlalchemy(raw))])
async def test_a_wrapper_that_commits_what_it_has_begun_is_told_to_begin(store: SqliteStore, mine, wrap):
    wrapper = wrap(mine)
    await store.within(wrapper).enqueue([a_spec()])
    (wrapper.inner if isinstance(wrapper, LikeSession) else wrapper).commit()
    assert await waiting(store) == 1


# ── locks ─────────────────────────────────────────────────────────────────────────────────────


async def test_two_tasks_of_one_loop_take_turns_without_blocking_it(store: SqliteStore, mine):
    with contextlib.closing(sqlite3.connect(store.path, timeout=60)) as other:
        await store.within(mine).enqueue([a_spec(id="a")])
        second = asyncio.create_task(store.within(other).enqueue([a_spec(id="b")]))
        await asyncio.sleep(0.05)
        assert not second.done()
        mine.commit()
        [answer] = await second
        other.commit()
    assert answer.seq == 2


async def test_patience_for_the_lock_is_that_of_the_connection(store: SqliteStore, mine):
    await store.within(mine).enqueue([a_spec()])
    with contextlib.closing(sqlite3.connect(store.path, timeout=0.05)) as other:
        with pytest.raises(StoreError, match="kept the database locked"):
            await store.within(other).enqueue([a_spec()])
        with pytest.raises(StoreError, match="kept the database locked"):
            await asyncio.to_thread(now_in_a_thread, store)
        assert not other.in_transaction
    mine.rollback()


def now_in_a_thread(store):
    with contextlib.closing(sqlite3.connect(store.path, timeout=0.05)) as other:
        store.within(other).enqueue_now([a_spec()])


async def test_a_transaction_that_read_before_others_wrote_is_told_to_start_again(store: SqliteStore, mine):
    mine.execute("BEGIN")
    mine.execute("SELECT count(*) FROM purchase").fetchall()
    await store.enqueue([a_spec()])

    with pytest.raises(StoreError, match="BEGIN IMMEDIATE"):
        await store.within(mine).enqueue([a_spec()])
    mine.rollback()
    await store.within(mine).enqueue([a_spec()])
    mine.commit()

    assert await waiting(store) == 2


async def test_who_would_wait_for_their_own_lock_gets_an_error_and_nothing_happens_later(
    store: SqliteStore, mine, monkeypatch
):
    await store.within(mine).enqueue([a_spec(id="mine")])

    with monkeypatch.context() as soon:
        soon.setattr(self_deadlock, "JOINED_LIMIT", 0.1)
        with pytest.raises(StoreError, match="this is a deadlock"):
            await store.enqueue([a_spec(id="outside")])
    others = asyncio.create_task(ask_elsewhere(store))
    await asyncio.sleep(0.3)
    assert not others.done()  # somebody else simply waits for the commit
    mine.commit()
    await others

    assert [job and job.id for job in await store.get(["mine", "outside", "elsewhere"])] == ["mine", None, "elsewhere"]
    [answer] = await store.enqueue([a_spec(id="outside")])
    assert answer.status == "queued"


async def ask_elsewhere(store):
    await store.enqueue([a_spec(id="elsewhere")])


async def test_a_thread_that_would_wait_for_its_own_lock_gets_the_error_too(store: SqliteStore, monkeypatch):
    def story():
        with contextlib.closing(sqlite3.connect(store.path)) as mine:
            store.within(mine).enqueue_now([a_spec(id="mine")])
            with monkeypatch.context() as soon:
                soon.setattr(self_deadlock, "JOINED_LIMIT", 0.1)
                with pytest.raises(StoreError, match="this is a deadlock"):
                    store.enqueue_now([a_spec(id="outside")])
            mine.commit()
            store.enqueue_now([a_spec(id="after")])

    await asyncio.to_thread(story)
    assert [job and job.id for job in await store.get(["mine", "outside", "after"])] == ["mine", None, "after"]


async def test_writers_of_all_kinds_lose_and_invent_nothing(store: SqliteStore):
    """Threads with connections of their own, some rolling back, beside the store's own writers."""
    stop = threading.Event()
    committed: list[str] = []

    def customer(number):
        chance = random.Random(number)
        with contextlib.closing(sqlite3.connect(store.path, timeout=30)) as mine:
            for n in range(25):
                batch = [a_spec(id=f"c{number}-{n}-{k}", group=f"g{k}", key=f"k{n % 3}") for k in range(3)]
                answers = store.within(mine).enqueue_now(batch)
                if chance.random() < 0.4:
                    mine.rollback()
                else:
                    mine.commit()
                    committed.extend(answer.id for answer in answers if answer.status == "queued")

    async def producer():
        n = 0
        while not stop.is_set():
            await store.enqueue([a_spec(id=f"p-{n}", key=f"k{n % 3}")])
            for job in await store.claim(Claim(("default",), "w", 3)):
                await store.settle([(job.lease, Change.completed())])
            n += 1

    busy = asyncio.create_task(producer())
    await asyncio.gather(*(asyncio.to_thread(customer, number) for number in range(3)))
    stop.set()
    await busy

    found = await store.get(committed)
    assert committed
    assert [job and job.id for job in found] == committed
    everything = {event.job for event in (await gather(store, since=0)).events}
    assert {name for name in everything if name.startswith("c")} == set(committed)


# ── being heard of ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def no_poll(monkeypatch):
    """A sleeper looks by itself every five seconds; here it does not."""
    monkeypatch.setattr("millrace.store.sqlite.store._SLICE", 600.0)


@pytest.mark.usefixtures("no_poll")
async def test_who_waits_is_woken_by_the_commit_and_not_before(store: SqliteStore, mine):
    sleeper = asyncio.create_task(store.wait(["default"], None, 600.0))
    await asyncio.sleep(0.05)
    await store.within(mine).enqueue([a_spec()])
    await asyncio.sleep(0.2)
    assert not sleeper.done()

    mine.commit()
    await asyncio.wait_for(sleeper, 60)


async def test_a_rolled_back_job_wakes_nobody(store: SqliteStore, mine):
    sleeper = asyncio.create_task(store.wait(["default"], None, 600.0))
    await asyncio.sleep(0.05)
    await store.within(mine).enqueue([a_spec()])
    mine.rollback()
    await asyncio.sleep(0.2)

    assert not sleeper.done()
    sleeper.cancel()


async def test_who_waits_for_the_end_of_a_job_hears_of_a_settle_in_a_transaction(store: SqliteStore, mine):
    await store.enqueue([a_spec(id="job")])
    [job] = await store.claim(Claim(("default",), "w"))
    async with store.watch("job") as watch:
        heard = asyncio.create_task(watch.wait(600.0))
        await store.within(mine).settle([(job.lease, Change.completed(b"1"))])
        await asyncio.sleep(0.1)
        assert not heard.done()
        mine.commit()
        await asyncio.wait_for(heard, 60)


async def test_waiting_for_a_commit_costs_next_to_nothing(store: SqliteStore, mine):
    await store.within(mine).enqueue([a_spec()])
    await asyncio.sleep(0.3)
    before = time.process_time()
    await asyncio.sleep(1.0)
    spent = time.process_time() - before
    mine.rollback()

    assert spent < 0.15


async def test_a_disk_that_no_longer_answers_is_not_looked_at_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(commit_watch, "STAY", 0.1)
    monkeypatch.setattr(commit_watch, "LINGER", 0.05)
    looked = threading.Event()

    class Broken(Io):
        def execute(self, connection, sql, params=()):
            if "commit-watch" in threading.current_thread().name and sql == "PRAGMA data_version":
                looked.set()
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(connection, sql, params)

    store = SqliteStore(tmp_path / "jobs.db", io=Broken())
    await store.connect()
    with contextlib.closing(sqlite3.connect(store.path)) as mine:
        await store.within(mine).enqueue([a_spec()])
        await asyncio.to_thread(looked.wait, 60)
        async with asyncio.timeout(60):
            while any(thread.name == "millrace-sqlite-commit-watch" for thread in threading.enumerate()):
                await asyncio.sleep(0.01)
        mine.commit()
    assert looked.is_set() and await waiting(store) == 1
    await store.close()


SLEEPER = """
import asyncio, sys
import millrace.store.sqlite.store
from millrace.domain.request import Claim
from millrace.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.connect()
    millrace.store.sqlite.store._SLICE = 600.0  # it would look by itself every five seconds
    print("up", flush=True)
    while not (jobs := await store.claim(Claim(("default",), "w"))):
        print("sleeps", flush=True)
        await store.wait(["default"], None, 600.0)
    print(jobs[0].id, flush=True)
    await store.close()

asyncio.run(main())
"""


async def test_a_worker_in_another_process_is_woken_by_the_commit(store: SqliteStore, mine):
    worker = subprocess.Popen([sys.executable, "-c", SLEEPER, store.path], stdout=subprocess.PIPE, text=True)
    out = the(worker.stdout)
    try:
        assert [out.readline() for _ in range(2)] == ["up\n", "sleeps\n"]
        await asyncio.sleep(0.2)
        await store.within(mine).enqueue([a_spec(id="poked")])
        mine.commit()
        line = await asyncio.wait_for(asyncio.to_thread(out.readline), 60)
        while line == "sleeps\n":
            line = await asyncio.wait_for(asyncio.to_thread(out.readline), 60)
        assert line == "poked\n"
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.wait()
        out.close()


# ── crashes ───────────────────────────────────────────────────────────────────────────────────

KILLED = """
import os, signal, sqlite3, sys
from millrace.domain.job import Spec
from millrace.store.sqlite import SqliteStore

path, when = sys.argv[1:]
store = SqliteStore(path)
mine = sqlite3.connect(path)
mine.execute("INSERT INTO purchase DEFAULT VALUES")
store.within(mine).enqueue_now([Spec(id=f"job-{n}", task="t", group="g") for n in range(500)])
if when == "after":
    mine.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("when", "kept"), [("before", 0), ("after", 500)])
async def test_a_process_killed_around_its_commit_leaves_all_or_nothing(store: SqliteStore, mine, when, kept):
    done = subprocess.run([sys.executable, "-c", KILLED, store.path, when], check=False, timeout=580)

    assert done.returncode == -signal.SIGKILL
    assert await waiting(store) == kept
    assert mine.execute("SELECT count(*) FROM purchase").fetchone() == (kept // 500,)
    assert len(await store.claim(Claim(("default",), "w"))) == min(kept, 1)
