"""Many short `def` handlers: a thread runs one after another, and the event loop hears of their ends together."""

from __future__ import annotations

import asyncio
import threading
import time

from millrace import Context, State
from tests.worker.stage import Stage, until

JOBS = 1_000


async def test_no_more_handlers_run_in_threads_than_there_are_slots():
    stage = Stage()
    lock = threading.Lock()
    running = most = 0

    @stage.app.task
    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0)
        with lock:
            running -= 1

    await work.enqueue_many([{}] * JOBS)
    worker = await stage.burst(slots=4)

    assert most <= 4
    assert worker.stats.completed == JOBS


async def test_handlers_in_threads_and_on_the_loop_share_the_slots():
    stage = Stage()
    lock = threading.Lock()
    running = most = 0

    def count(by: int) -> None:
        nonlocal running, most
        with lock:
            running += by
            most = max(most, running)

    @stage.app.task
    def in_thread() -> None:
        count(1)
        time.sleep(0)
        count(-1)

    @stage.app.task
    async def on_loop() -> None:
        count(1)
        await asyncio.sleep(0)
        count(-1)

    for _ in range(JOBS // 10):
        await in_thread.enqueue_many([{}] * 5)
        await on_loop.enqueue_many([{}] * 5)
    worker = await stage.burst(slots=4)

    assert most <= 4
    assert worker.stats.completed == JOBS


async def test_a_handler_that_is_left_behind_gives_its_slot_to_one_thread_only():
    stage = Stage()
    lock = threading.Lock()
    let_go = threading.Event()
    running = most = 0

    @stage.app.task(timeout=0.05, max_attempts=1)
    def stuck() -> None:
        let_go.wait(60)

    @stage.app.task
    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0)
        with lock:
            running -= 1

    async with stage.working(slots=3, grace=0.05) as worker:
        for _ in range(2):
            await work.enqueue_many([{}] * 300)
            await stuck.enqueue()
            await work.enqueue_many([{}] * 300)
        await until(lambda: worker.stats.completed == 1_200 and worker.stats.zombies == 2)
        let_go.set()
        await until(lambda: worker.stats.zombies == 0)
        await work.enqueue_many([{}] * 300)
        await until(lambda: worker.stats.completed == 1_500)
        assert worker._components is not None
        assert worker._components.executor.free == 3

    assert most <= 3


async def test_fewer_threads_than_slots_run_every_job():
    stage = Stage()
    ran: list[int] = []

    @stage.app.task
    def work(n: int) -> None:
        ran.append(n)

    await work.enqueue_many([{"n": n} for n in range(JOBS)])
    await stage.burst(slots=10, threads=1)

    assert sorted(ran) == list(range(JOBS))


async def test_a_long_handler_in_a_thread_does_not_hold_up_the_jobs_behind_it():
    stage = Stage()
    let_go = threading.Event()
    runs = 0

    @stage.app.task
    def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 500:
            let_go.wait(60)

    await work.enqueue_many([{}] * JOBS)
    async with stage.working(slots=4) as worker:
        await until(lambda: worker.stats.completed == JOBS - 1)
        assert worker.stats.running == 1
        let_go.set()
        await until(lambda: worker.stats.completed == JOBS)


async def test_a_stop_gives_back_the_jobs_that_no_thread_has_started():
    stage = Stage()
    let_go = threading.Event()
    started = 0

    @stage.app.task
    def work(ctx: Context) -> None:
        nonlocal started
        started += 1
        if started > 300:
            let_go.wait(60)

    jobs = await work.enqueue_many([{}] * JOBS)
    async with stage.working(slots=4) as worker:
        await until(lambda: started >= 304)
        stopping = asyncio.create_task(worker.stop(deadline=60))
        await until(lambda: worker.stats.unsettled == 0)
        let_go.set()
        await stopping

    states = [(await stage.job(job.id)).state for job in jobs]
    assert started == states.count(State.COMPLETED)
    assert states.count(State.WAITING) == JOBS - started
