"""`def` handlers run in threads: equals of `async def`, except that nobody can stop one."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

from millrace import Context, Snooze, State
from tests.worker.stage import Stage, until

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


async def test_a_plain_function_runs_beside_the_event_loop():
    stage = Stage()

    @stage.app.task
    def work(n: int) -> str:
        time.sleep(0.01)
        return f"{n} {threading.current_thread() is threading.main_thread()}"

    jobs = await work.enqueue_many([{"n": n} for n in range(20)])
    await stage.burst(slots=10)

    assert (await stage.job(jobs[3].id)).result == b'"3 False"'


async def test_a_plain_function_may_fail_snooze_and_time_out():
    stage = Stage()

    @stage.app.task(max_attempts=1)
    def fail() -> None:
        raise ValueError("no")

    @stage.app.task
    def later():
        raise Snooze(60)

    @stage.app.task(timeout=0.1, max_attempts=1)
    def slow(ctx: Context) -> None:
        ctx.cancelled.wait(10)

    failed, snoozed, late = await fail.enqueue(), await later.enqueue(), await slow.enqueue()
    await stage.burst()

    assert (await stage.job(failed.id)).reason == "max_attempts_exceeded"
    assert (await stage.job(snoozed.id)).snoozes == 1
    assert (await stage.job(late.id)).reason == "timeout"


async def test_a_thread_sees_the_context_variables_of_the_worker_and_keeps_its_own():
    stage = Stage()
    TENANT.set("acme")

    @stage.app.task
    def work() -> str:
        before = TENANT.get()
        TENANT.set("other")
        return before

    jobs = await work.enqueue_many([{}] * 5)
    await stage.burst(slots=1)

    assert {(await stage.job(job.id)).result for job in jobs} == {b'"acme"'}
    assert TENANT.get() == "acme"


async def test_a_thread_that_ignores_its_abort_is_counted_as_a_zombie_until_it_returns():
    stage = Stage()
    let_go = threading.Event()

    @stage.app.task(timeout=0.05, max_attempts=1)
    def stuck() -> None:
        let_go.wait(60)

    @stage.app.task
    def fine() -> None: ...

    job = await stuck.enqueue()
    async with stage.working(slots=1, threads=1, grace=0.05) as worker:
        dead = await stage.until(job.id)
        assert (dead.state, dead.reason) == (State.DEAD, "timeout")
        assert (worker.stats.zombies, worker.stats.abandoned) == (1, 1)
        await stage.until((await fine.enqueue()).id)  # another thread has taken its place
        assert worker._components is not None
        await stage.store.beat(worker._components.info(), 60_000)
        assert [record.info.zombies for record in await stage.store.workers()] == [1]  # operators see it
        let_go.set()
        await until(lambda: worker.stats.zombies == 0)


async def test_time_spent_waiting_for_a_thread_is_not_held_against_a_job():
    stage = Stage()
    begun, let_go = threading.Event(), threading.Event()

    @stage.app.task
    def holds_the_thread() -> None:
        begun.set()
        let_go.wait(60)

    @stage.app.task(timeout=2.0, max_attempts=1)
    def work() -> None: ...

    async with stage.working(slots=5, threads=1) as worker:
        await holds_the_thread.enqueue()
        await until(begun.is_set)
        jobs = await work.enqueue_many([{}] * 4)
        await until(lambda: worker.stats.running == 5)
        await asyncio.sleep(2.2)  # longer than they may run
        let_go.set()
        ends = [await stage.until(job.id) for job in jobs]

    assert [job.state for job in ends] == [State.COMPLETED] * 4


async def test_a_job_that_is_stopped_before_it_got_a_thread_never_starts():
    stage = Stage()
    started: list[int] = []

    @stage.app.task
    def work(ctx: Context, n: int) -> None:
        started.append(n)
        ctx.cancelled.wait(10)
        ctx.check()

    jobs = await work.enqueue_many([{"n": 0}, {"n": 1}])
    async with stage.working(slots=2, threads=1) as worker:
        await until(lambda: worker.stats.running == 2 and started)
        await worker.stop(deadline=0)

    await asyncio.sleep(0.05)
    assert started == [0]
    assert [(await stage.job(job.id)).releases for job in jobs] == [1, 1]


async def test_as_many_handlers_wait_for_each_other_as_there_are_slots():
    stage = Stage()
    together = threading.Barrier(10)

    @stage.app.task
    def work() -> None:
        together.wait(60)

    await work.enqueue_many([{}] * 200)
    worker = await stage.burst(slots=10)

    assert worker.stats.completed == 200


async def test_a_handler_that_blocks_delays_no_other_if_there_are_fewer_threads_than_slots():
    stage = Stage()
    begun, let_go = threading.Event(), threading.Event()

    @stage.app.task
    def holds_a_thread() -> None:
        begun.set()
        let_go.wait(60)

    @stage.app.task
    def work() -> None: ...

    async with stage.working(slots=10, threads=2) as worker:
        await holds_a_thread.enqueue()
        await until(begun.is_set)
        await work.enqueue_many([{}] * 200)
        await until(lambda: worker.stats.completed == 200)
        assert worker.stats.running == 1
        let_go.set()


async def test_a_job_that_waits_for_a_thread_starts_when_the_handler_in_that_thread_is_abandoned():
    stage = Stage()
    begun, let_go = threading.Event(), threading.Event()

    @stage.app.task(timeout=0.05, max_attempts=1)
    def stuck() -> None:
        begun.set()
        let_go.wait(60)

    @stage.app.task
    def work() -> None: ...

    async with stage.working(slots=2, threads=1, grace=0.05) as worker:
        await stuck.enqueue()
        await until(begun.is_set)
        await stage.until((await work.enqueue()).id)  # no other job comes that could start a thread
        assert worker.stats.zombies == 1
        let_go.set()
        await until(lambda: worker.stats.zombies == 0)
