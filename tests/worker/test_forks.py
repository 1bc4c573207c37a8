"""Forks: a child opens its own, a parent keeps its own, and no lock, handle or job is shared by accident.

Each story is a program of its own, because a test runner has threads that have no business in a fork.
"""

import subprocess
import sys
import textwrap

import pytest

SCENE = """
import asyncio, multiprocessing, os, sqlite3, sys, threading, time
from millrace import App
from millrace.testing.invariants import assert_holds, gather

url = sys.argv[1]
app = App(url)

@app.task
async def work(n: int) -> int:
    return n + 1

def forked(story, *arguments):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            story(*arguments)
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid

def ended(pids):
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]

def waiting():
    return sum(row.waiting for row in app.sync.jobs.count())

def judged():
    assert_holds(app.sync.run(gather(app.store, since=0)))
    return app.sync.run(app.store.check())
"""


# Python 3.12 and later warn of every fork of a process with threads, which is what these stories are about.
QUIET = ("-W", "ignore:This process:DeprecationWarning")


def play(story, *arguments):
    done = subprocess.run(
        [sys.executable, *QUIET, "-c", SCENE + textwrap.dedent(story), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/jobs.db"


def test_parent_and_children_go_on_with_the_store_each_on_its_own(url):
    lines = play(
        """
        def child(name):
            for n in range(20):
                work.sync.enqueue(n)
            async def more():
                async with app:
                    for n in range(20):
                        await work.enqueue(n)
            asyncio.run(more())
            app.sync.close()

        work.sync.enqueue(0)
        pids = [forked(child, n) for n in range(3)]
        for n in range(20):
            work.sync.enqueue(n)
        print(ended(pids), waiting(), judged())
        """,
        url,
    )

    assert lines == ["[0, 0, 0] 141 []"]


def test_a_child_made_by_multiprocessing_opens_its_own(url):
    lines = play(
        """
        def child(n):
            work.sync.enqueue(n)
            return os.getpid()

        work.sync.enqueue(0)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pids = pool.map(child, range(10))
        print(os.getpid() in pids, waiting(), judged())
        """,
        url,
    )

    assert lines == ["False 11 []"]


def test_forking_while_the_writer_is_busy_loses_and_doubles_nothing(url):
    """SQLite keeps what it knows of locks in one table per process; a fork in the middle of a write would copy it."""
    lines = play(
        """
        stop, done = threading.Event(), []

        def producer(name):
            n = 0
            while not stop.is_set():
                done.append(work.options(id=f"{name}-{n}").sync.enqueue(n).id)
                n += 1

        def child(name):
            for n in range(10):
                work.options(id=f"child-{name}-{n}").sync.enqueue(n)

        work.options(id="first").sync.enqueue(0)
        threads = [threading.Thread(target=producer, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        pids = []
        for n in range(8):
            time.sleep(0.02)
            pids.append(forked(child, n))
        time.sleep(0.1)
        stop.set()
        for thread in threads:
            thread.join()
        codes = ended(pids)
        assert None not in app.sync.jobs.get(done)
        print(set(codes), waiting() - len(done), judged())
        """,
        url,
    )

    assert lines == ["{0} 81 []"]


def test_a_server_that_preloads_runs_each_job_once_over_all_its_workers(url):
    lines = play(
        """
        def serve():
            async def main():
                async with app:
                    await app.worker(burst=True).run(handle_signals=False)
            asyncio.run(main())

        async def preload():
            async with app:
                await work.enqueue_many([(n,) for n in range(200)])
        asyncio.run(preload())
        waiting()  # open in the parent while it forks
        print(ended([forked(serve) for _ in range(3)]))
        counts = app.sync.jobs.count()[0]
        attempts = {job.attempt for job in app.sync.jobs.find()}
        print(counts.completed, attempts, judged())
        """,
        url,
    )

    assert lines == ["[0, 0, 0]", "200 {1} []"]


def test_who_sleeps_in_the_parent_is_still_woken_by_other_processes(url):
    lines = play(
        """
        import millrace.store.sqlite.store
        millrace.store.sqlite.store._SLICE = 600.0  # it would look by itself every five seconds
        woken = []

        async def sleeper():
            async with app:
                store = await app.connected()
                begun = time.monotonic()
                task = asyncio.create_task(store.wait(["default"], None, 600.0))
                await asyncio.sleep(0.2)
                [code] = ended([forked(lambda: None)])
                await asyncio.sleep(0.3)
                pid = forked(producer)
                await task
                woken.append(time.monotonic() - begun < 300)
                ended([pid])

        def producer():
            asyncio.events._set_running_loop(None)
            time.sleep(0.5)
            asyncio.run(put())

        async def put():
            other = App(url)
            async with other:
                other.task(work.handler)
                await other.tasks["work"].enqueue(1)

        asyncio.run(sleeper())
        print(woken)
        """,
        url,
    )

    assert lines == ["[True]"]


def test_a_child_that_leaves_the_store_alone_ends_in_order(url, tmp_path):
    lines = play(
        """
        work.sync.enqueue(0)
        pid = os.fork()
        if pid == 0:
            print("child", threading.active_count())
            sys.exit(0)  # with everything that runs at exit
        print(ended([pid]), waiting(), judged())
        """,
        url,
    )

    assert sorted(lines) == ["[0] 1 []", "child 1"]
    assert not (tmp_path / "jobs.db-wal").exists()


def test_a_child_forked_in_the_middle_of_a_call_is_refused_the_store(url):
    lines = play(
        """
        from millrace import StoreError
        from millrace.store.sqlite import process as home, self_deadlock
        from millrace.store.sqlite.connection import Io
        home.FORK_PATIENCE = 0.2
        self_deadlock.A_WHILE = 60  # the lock is in this process, and stands for another's

        work.sync.enqueue(0)
        path = url.removeprefix("sqlite:///")
        lock = sqlite3.connect(path, check_same_thread=False)
        lock.execute("BEGIN IMMEDIATE")
        begun, begin = threading.Event(), Io.begin
        late = threading.Thread(target=work.sync.enqueue, args=(1,))

        def begin_waiting(io, connection):
            if threading.current_thread() is not late:  # which does not wait for the lock, but lets the writer wait
                begun.set()
            begin(io, connection)

        Io.begin = begin_waiting
        late.start()
        begun.wait()

        def child():
            try:
                work.sync.enqueue(2)
            except StoreError as error:
                print("was forked while" in str(error))

        pid = forked(child)
        lock.rollback()
        lock.close()
        late.join()
        print(ended([pid]), waiting())
        """,
        url,
    )

    assert lines == ["True", "[0] 2"]


def test_a_store_in_memory_is_copied_and_the_copies_go_their_own_ways():
    lines = play(
        """
        stop = threading.Event()

        def producer():
            while not stop.is_set():
                work.sync.enqueue(0)

        busy = threading.Thread(target=producer)
        busy.start()

        def child(before):
            here = waiting()
            assert here >= before
            for n in range(5):
                work.sync.enqueue(n)
            assert waiting() == here + 5
            assert_holds(app.sync.run(gather(app.store, since=0)))

        codes = []
        for n in range(5):
            time.sleep(0.02)
            codes += ended([forked(child, waiting())])
        stop.set()
        busy.join()
        mine = waiting()
        work.sync.enqueue(1)
        print(codes, waiting() - mine)
        """,
        "memory://",
    )

    assert lines == ["[0, 0, 0, 0, 0] 1"]
