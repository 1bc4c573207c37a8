"""`Threads`: no work is left behind, whichever thread is awake, and only as many threads work as allowed."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from millrace.worker.threads import Threads


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Let the interpreter change threads often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_idle_threads_are_used_again_and_end_when_told():
    threads = Threads(2, "test")
    names: set[str] = set()
    done = threading.Semaphore(0)

    def work() -> None:
        names.add(str(threading.get_ident()))
        done.release()

    for _ in range(10):
        threads.submit(work)
        assert done.acquire(timeout=60)
        time.sleep(0.002)

    assert len(names) <= 2
    threads.close()


@pytest.mark.usefixtures("frequent_switches")
def test_as_many_threads_work_at_the_same_time_as_allowed():
    threads = Threads(6, "test")
    together = threading.Barrier(7)

    for _ in range(300):  # the first round starts threads, the others wake them
        for _ in range(6):
            threads.submit(lambda: together.wait(60))
        together.wait(60)

    threads.close()


@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_work_is_left_behind(limit: int):
    threads = Threads(limit, "test")
    chance = random.Random(limit)
    lock = threading.Lock()
    running = most = 0
    done = threading.Semaphore(0)

    def work(pause: float | None) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if pause is not None:
            time.sleep(pause)
        with lock:
            running -= 1
        done.release()

    def submit(pauses: list[float | None]) -> None:
        for pause in pauses:
            threads.submit(partial(work, pause))

    for _ in range(200):  # after each round, no further call could wake a thread for work that was left behind
        rounds = [[chance.choice((None, None, 0.0, 1e-4)) for _ in range(chance.randint(1, 8))] for _ in range(2)]
        other = threading.Thread(target=submit, args=(rounds[0],))
        other.start()
        submit(rounds[1])
        other.join()
        assert all(done.acquire(timeout=60) for pauses in rounds for _ in pauses)

    assert most <= limit
    threads.close()


def test_work_waits_for_a_thread_only_if_all_are_in_use():
    threads = Threads(2, "test")
    begun, let_go = threading.Semaphore(0), threading.Event()

    def work() -> None:
        begun.release()
        let_go.wait(60)

    free = [threads.submit(work) for _ in range(3)]
    assert begun.acquire(timeout=60)
    assert begun.acquire(timeout=60)

    assert (free, threads.backlog) == ([True, True, False], True)

    threads.abandoned()  # one more thread is allowed, and takes the work that waits
    assert begun.acquire(timeout=60)
    assert not threads.backlog
    let_go.set()
    threads.close()


def test_work_is_kept_if_the_system_has_no_more_threads(monkeypatch: pytest.MonkeyPatch):
    threads = Threads(2, "test")
    done = threading.Semaphore(0)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_more_threads)
        with pytest.raises(RuntimeError, match="can't start"):
            threads.submit(done.release)

    threads.submit(done.release)
    assert done.acquire(timeout=60)
    assert done.acquire(timeout=60)
    threads.close()


def test_a_thread_that_cannot_start_the_next_one_does_all_the_work(monkeypatch: pytest.MonkeyPatch):
    threads = Threads(2, "test")
    done = threading.Semaphore(0)
    ran_in: list[int] = []

    def work() -> None:
        ran_in.append(threading.get_ident())
        done.release()

    with threads._change:  # the first thread is started, but cannot take work yet
        threads.submit(work)
        monkeypatch.setattr(threading.Thread, "start", _no_more_threads)
        threads.submit(work)
        threads.abandoned()
    assert done.acquire(timeout=60)
    assert done.acquire(timeout=60)
    assert len(set(ran_in)) == 1

    monkeypatch.undo()
    together = threading.Barrier(3)
    for _ in range(2):
        threads.submit(lambda: together.wait(60))
    together.wait(60)  # a second thread is started as soon as the system allows it
    threads.close()


def _no_more_threads(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
