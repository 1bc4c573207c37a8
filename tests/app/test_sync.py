"""`app.sync`: the same answers for programs without an event loop, from any thread."""

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from millrace import (
    App,
    Context,
    InvalidInput,
    JobFailed,
    PayloadInvalid,
    QueueFull,
    StoreError,
    WaitTimeout,
)
from millrace.app.pools.task import MOST_AT_ONCE
from millrace.app.sync.background import background
from millrace.domain.event import Event
from millrace.domain.request import Archived, Cancelled, Deleted, Replayed
from millrace.store.sqlite import SqliteStore, self_deadlock
from millrace.testing.invariants import assert_holds, gather
from tests.narrowing import checked_cast, the
from tests.project.page import assert_printed, blocks_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["memory", "sqlite"])
def app(request, tmp_path):
    app = App("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db")
    with app.sync:
        yield app
        assert_holds(app.sync.run(gather(app.store, since=0)))


@contextlib.contextmanager
def a_worker(app, **options):
    """A worker on an event loop of its own, in a thread, as another program would have it."""
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def work():
        async with app.worker(poll_max=1.0, **options) as worker:
            stop = asyncio.Event()
            ready.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()
            return worker.stats

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    loop, stop = ready.result()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def test_enqueue_and_call_answer_as_they_do_with_await(app: App):
    @app.task
    async def double(n: int) -> int:
        return n * 2

    @app.task(max_attempts=1)
    def fail() -> None:
        raise LookupError("no")

    with a_worker(app):
        assert double.sync.call(21) == 42
        job = double.sync.enqueue(n=4)
        assert app.sync.jobs.result(job, wait=30) == 8
        with pytest.raises(JobFailed):
            fail.sync.call()


def test_options_apply_and_mistakes_show_before_anything_is_written(app: App):
    @app.task
    async def work(n: int) -> None: ...

    job = work.options(id="mine", delay=timedelta(minutes=1), priority=4).sync.enqueue(1)
    again = work.options(id="mine").sync.enqueue(1)
    with pytest.raises(PayloadInvalid):
        work.sync.enqueue("one")  # type: ignore[arg-type]
    with pytest.raises(WaitTimeout):
        work.options(wait=0.05).sync.call(3)

    found = the(app.sync.jobs.get(job))
    assert (found.priority, found.state, again.is_duplicate) == (4, "scheduled", True)
    assert app.sync.jobs.get("nobody") is None
    assert len(list(app.sync.jobs.find())) == 2


def test_many_jobs_are_taken_from_the_callers_own_thread(app: App, tmp_path):
    @app.task
    async def work(n: int) -> None: ...

    with contextlib.closing(sqlite3.connect(tmp_path / "rows.db")) as rows:
        rows.execute("CREATE TABLE row (n INTEGER)")
        rows.executemany("INSERT INTO row VALUES (?)", [(n,) for n in range(250)])
        answers = work.sync.enqueue_many(rows.execute("SELECT n FROM row"), chunk=100)
        with pytest.raises(PayloadInvalid) as caught:
            work.sync.enqueue_many([(1,), (2,), ("x",)], chunk=2)
    with pytest.raises(InvalidInput):
        work.options(id="one").sync.enqueue_many([(1,)])

    assert [answer.seq for answer in answers] == list(range(1, 251))
    assert caught.value.__notes__ == ["2 jobs of this call were enqueued before the chunk that failed."]
    assert [len(list(app.sync.jobs.find(limit=limit, page=50))) for limit in (None, 120)] == [252, 120]


def test_operators_have_every_call(app: App):
    @app.task(queue="mail")
    async def work(n: int) -> None: ...

    first, second, third = work.sync.enqueue_many([(1,), (2,), (3,)])
    queue, jobs = app.sync.queue("mail"), app.sync.jobs

    assert queue.pause().paused and not queue.resume().paused
    assert queue.limits(max_running=3).max_running == 3
    assert queue.set(max_depth=3) == queue.settings()
    with pytest.raises(QueueFull):
        work.sync.enqueue(4)
    assert (queue.counts().waiting, queue.lanes(), jobs.position(second)) == (3, [], 1)
    assert jobs.cancel(first) is Cancelled.CANCELLED
    assert jobs.cancel([first.id, second]) == [Cancelled.CANCELLED, Cancelled.CANCELLED]
    assert (jobs.archive(first), jobs.unarchive(first)) == (Archived.DONE, Archived.DONE)
    assert jobs.replay([first, third]) == [Replayed.REPLAYED, Replayed.WAITING]
    assert [event.kind for event in jobs.history(second)] == ["enqueued", "cancelled"]
    assert [job.id for job in jobs.find(queue="mail", state="waiting")] == [first.id, third.id]
    assert jobs.delete([third.id, "nobody"]) == [Deleted.NOT_FINISHED, Deleted.NOT_FOUND]
    assert jobs.purge(queue="mail", state="cancelled", dry_run=True) == 1
    assert [event.job for event in app.sync.events(follow=False, page=2)][:3] == [first.id, second.id, third.id]
    assert app.sync.limit(work, rate=5).rate == 5
    assert [row.queue for row in jobs.count()] == ["mail"]
    assert (queue.drain(), queue.obliterate(force=True)) == (2, 3)


def test_following_the_events_waits_for_the_next(app: App):
    @app.task
    async def work() -> None: ...

    feed = app.sync.events()
    seen: list[Event] = []
    reader = threading.Thread(target=lambda: seen.extend(next(feed) for _ in range(2)))
    reader.start()
    jobs = [work.sync.enqueue(), work.sync.enqueue()]
    reader.join(60)

    assert [event.job for event in seen] == [job.id for job in jobs]


def test_jobs_of_several_tasks_go_in_as_one_step(app: App):
    @app.task
    async def first() -> None: ...

    @app.task
    async def second() -> None: ...

    parent = first.spec()
    answers = app.sync.enqueue([second.options(after=parent.id).spec(), parent])

    assert [the(app.sync.jobs.get(answer)).record.blocked for answer in answers] == [1, 0]


def test_many_threads_share_it(app: App):
    @app.task
    async def work(n: int) -> None: ...

    def produce(thread):
        return [work.sync.enqueue(n).seq for n in range(40)] + [app.sync.jobs.count()[0].waiting]

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(produce, range(8)))

    assert sorted(seq for answer in answers for seq in answer[:-1]) == list(range(1, 321))


def test_a_pool_answers_where_the_job_stands(app: App):
    pool = app.pool("carts", lanes=2)

    @pool.handler
    async def cart(n: int) -> None: ...

    first = [cart.options(partition="a").sync.enqueue(n) for n in range(2)]
    then = app.sync.enqueue([cart.options(partition="a").spec(3)])
    last = cart.options(partition="a").sync.enqueue_many([(4,), (5,)])

    assert [answer.position for answer in (*first, *then, *last)] == [0, 1, 2, 3, 4]
    assert (first[0].instance, app.sync.run(pool.status()).waiting) == (last[1].instance, 5)


def test_a_pool_answers_the_same_within_a_transaction(tmp_path):
    """W-20, W-22: where the job stands, and many as one step or not at all."""
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.pool("carts", lanes=2, max_depth=MOST_AT_ONCE)
    async def cart(n: int) -> None: ...

    with app.sync, contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as mine:
        bound = cart.options(partition="a", within=mine)
        mine.execute("BEGIN")
        with pytest.raises(InvalidInput, match="cannot be written inside your transaction.*app.sync.run"), mine:
            bound.sync.enqueue(1)
        cart.sync.enqueue(0)
        with mine:
            placed = [bound.sync.enqueue(1), *bound.sync.enqueue_many([(2,), (3,)])]
        with pytest.raises(QueueFull) as full, mine:
            bound.sync.enqueue_many([(n,) for n in range(MOST_AT_ONCE)])
        with pytest.raises(InvalidInput, match="at most 10,000 jobs in one step"), mine:
            bound.sync.enqueue_many([(n,) for n in range(MOST_AT_ONCE + 1)])

        assert len({answer.instance for answer in placed}) == 1
        assert (placed[0].instance, full.value.lane) == (f"workerPool:carts:{placed[0].lane}", placed[0].lane)
        assert app.sync.run(cart.pool.status()).waiting == 4


def test_handlers_in_threads_may_use_it(app: App):
    @app.task
    async def inner(n: int) -> int:
        return n + 1

    @app.task
    def outer(ctx: Context, n: int) -> int:
        answer: int = inner.sync.call(n)
        return answer * 10

    with a_worker(app):
        assert outer.sync.call(1) == 20


async def test_a_running_event_loop_is_told_to_await(tmp_path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def work() -> None: ...

    for blocking in (work.sync.enqueue, work.sync.call, app.sync.jobs.count, app.sync.close, app.sync.__enter__):
        with pytest.raises(InvalidInput, match="await"):
            blocking()
    assert not (tmp_path / "jobs.db").exists()


async def test_closing_the_app_on_a_loop_leaves_it_open_for_threads(tmp_path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def work() -> None: ...

    await asyncio.to_thread(work.sync.enqueue)
    async with app:
        await work.enqueue()
    await asyncio.to_thread(work.sync.enqueue)
    assert (await asyncio.to_thread(app.sync.jobs.count))[0].waiting == 3
    await asyncio.to_thread(app.sync.close)

    await asyncio.to_thread(work.sync.enqueue)  # and it opens again at the next use
    await asyncio.to_thread(app.sync.close)
    async with app:
        assert (await app.jobs.count())[0].waiting == 4


def test_within_runs_on_the_callers_thread(tmp_path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def work(n: int) -> None: ...

    with app.sync, contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as mine:
        bound = work.options(within=mine)
        for end in (mine.rollback, mine.commit):
            bound.sync.enqueue(1)
            bound.sync.enqueue_many([(2,), (3,)], chunk=1)
            app.sync.enqueue([work.spec(4)], within=mine)
            end()
        with pytest.raises(InvalidInput, match="commit, then wait"):
            bound.sync.call(5)
        assert app.sync.jobs.count()[0].waiting == 4


def test_a_thread_that_would_wait_for_its_own_transaction_gets_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(self_deadlock, "JOINED_LIMIT", 0.1)
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def work() -> None: ...

    with app.sync, contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as mine:
        work.options(within=mine).sync.enqueue()
        for waits in (work.sync.enqueue, work.sync.call, app.sync.queue("default").pause):
            with pytest.raises(StoreError, match="this is a deadlock"):
                waits()
        assert list(app.sync.jobs.find()) == []  # reading never waits
        mine.commit()
        monkeypatch.setattr(self_deadlock, "JOINED_LIMIT", 60)
        assert app.sync.queue("default").pause().paused
        assert len(list(app.sync.jobs.find())) == 1


def test_who_has_written_since_is_not_taken_for_waiting_for_itself(tmp_path, monkeypatch):
    """A transaction that was rolled back cannot be seen; but a write that went through proves that it is over."""
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def work() -> None: ...

    with app.sync, contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as mine:
        commit_watch = checked_cast(SqliteStore, app.store)._process._commit_watch
        monkeypatch.setattr(commit_watch, "expect", lambda step: None)  # it has not looked yet
        work.options(within=mine).sync.enqueue()
        mine.rollback()
        work.sync.enqueue()
        monkeypatch.setattr(self_deadlock, "JOINED_LIMIT", 0.1)
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            threading.Timer(0.5, other.rollback).start()
            work.sync.enqueue()

        assert len(list(app.sync.jobs.find())) == 2


async def test_a_task_that_has_written_since_is_not_taken_for_waiting_for_itself(tmp_path, monkeypatch):
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def work() -> None: ...

    async with app:
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as mine:
            commit_watch = checked_cast(SqliteStore, app.store)._process._commit_watch
            monkeypatch.setattr(commit_watch, "expect", lambda step: None)
            await work.options(within=mine).enqueue()
            mine.rollback()
            await work.enqueue()
            monkeypatch.setattr(self_deadlock, "JOINED_LIMIT", 0.1)
            mine.execute("BEGIN IMMEDIATE")
            asyncio.get_running_loop().call_later(0.5, mine.rollback)
            await work.enqueue()

        assert (await app.jobs.count())[0].waiting == 2


def test_a_closed_connection_is_said_to_be_of_no_use(tmp_path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def work() -> None: ...

    with app.sync:
        app.sync.queue("default").pause()
        mine = sqlite3.connect(tmp_path / "jobs.db")
        mine.close()
        with pytest.raises(InvalidInput, match="given as within cannot be used here.*closed"):
            work.options(within=mine).sync.enqueue()


def test_an_interrupt_ends_the_wait_and_the_call():
    cancelled = threading.Event()

    async def forever():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    code = threading.main_thread().ident
    timer = threading.Timer(0.1, lambda: __import__("signal").pthread_kill(code, 2))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        background.run(forever())
    assert cancelled.wait(60)


PROGRAM = """
import sys, threading
from millrace import App

app = App(sys.argv[1])

@app.task
async def work(n: int) -> None: ...

assert threading.active_count() == 1
for n in range(20):
    work.sync.enqueue(n)
print(app.sync.jobs.count()[0].waiting, sorted(thread.name for thread in threading.enumerate() if not thread.daemon))
"""


def test_a_program_that_closes_nothing_ends_in_order(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "20 ['MainThread']\n", "")
    assert not (tmp_path / "jobs.db-wal").exists()  # written back: nobody takes it for a crash


def test_its_benchmark_runs():
    command = [sys.executable, "-m", "benchmarks.sync", "--jobs", "16", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=580)

    assert {tuple(figures) for figures in json.loads(done.stdout).values()} == {
        ("awaited", "sync", "sync_8_threads", "ratio")
    }


def test_the_page_about_it_is_true(tmp_path):
    [block] = blocks_of((ROOT / "docs" / "sync.md").read_text(encoding="utf-8"), "py")
    (tmp_path / "program.py").write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert block.said
    assert_printed(block, done.stdout)
