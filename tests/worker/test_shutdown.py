"""Stopping: nothing is lost, no attempt is spent, and it ends when it said it would."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from millrace import Context, State
from millrace.domain.event import Kind
from tests.worker.stage import Stage, until, virtual


def now() -> float:
    return asyncio.get_running_loop().time()


@virtual
async def test_a_graceful_stop_lets_running_jobs_end_and_claims_no_more(stage: Stage):
    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(10)

    jobs = await work.enqueue_many([{}] * 4)
    async with stage.working(slots=2) as worker:
        await until(lambda: worker.stats.running == 2)
        begun = now()
        await worker.stop()

    assert now() - begun == pytest.approx(10, abs=0.1)
    states = [(await stage.job(job.id)).state for job in jobs]
    assert states == [State.COMPLETED, State.COMPLETED, State.WAITING, State.WAITING]


@virtual
async def test_what_does_not_end_in_time_is_given_back_uncounted_and_at_once(stage: Stage):  # BL-08, R-32
    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(1_000)

    job = await work.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running == 1)
        begun = now()
        await worker.stop(deadline=25)

    assert now() - begun == pytest.approx(25, abs=0.1)
    released = await stage.job(job.id)
    assert (released.state, released.failures, released.releases) == (State.WAITING, 0, 1)
    assert released.available_at <= await stage.store.now()
    assert (await stage.kinds(job.id))[-1] is Kind.RELEASED
    assert worker.stats.released == 1


@virtual
async def test_an_error_that_follows_the_abort_spends_no_attempt(stage: Stage):
    @stage.app.task(max_attempts=1)
    async def work() -> None:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            raise RuntimeError("connection closed under me") from None

    job = await work.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running == 1)
        await worker.stop(deadline=1)

    assert (await stage.job(job.id)).state is State.WAITING


@virtual
async def test_a_handler_that_finishes_in_its_grace_has_finished(stage: Stage):
    @stage.app.task
    async def work() -> str:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            await asyncio.sleep(2)
            return "saved"
        return ""

    job = await work.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running == 1)
        await worker.stop(deadline=1)

    assert (await stage.job(job.id)).result == b'"saved"'


@virtual
async def test_a_handler_that_swallows_its_cancellation_is_abandoned_after_the_grace(stage: Stage):
    @stage.app.task
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                if now() > 200:
                    raise

    job = await stubborn.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running == 1)
        begun = now()
        await worker.stop(deadline=1)
        assert now() - begun == pytest.approx(4, abs=0.1)

    assert (await stage.job(job.id)).releases == 1
    assert (worker.stats.abandoned, worker.stats.zombies) == (1, 1)
    await asyncio.sleep(200)  # let the loop close without it


@virtual
async def test_a_second_stop_is_at_once(stage: Stage):
    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(1_000)

    job = await work.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running == 1)
        first = asyncio.create_task(worker.stop(deadline=600))
        await asyncio.sleep(5)
        begun = now()
        await worker.stop(deadline=0)
        await first
        assert now() - begun < 0.2

    assert (await stage.job(job.id)).releases == 1


@virtual
async def test_a_stop_during_the_grace_cuts_it_short(stage: Stage):
    @stage.app.task
    async def stubborn() -> None:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            await asyncio.sleep(50)

    await stubborn.enqueue()
    async with stage.working(grace=60) as worker:
        await until(lambda: worker.stats.running == 1)
        first = asyncio.create_task(worker.stop(deadline=1))
        await asyncio.sleep(5)
        begun = now()
        await worker.stop(deadline=0)
        await first
        assert now() - begun < 0.2
    await asyncio.sleep(100)


@virtual
async def test_a_claim_that_is_under_way_is_given_back(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    stage.store.delays["claim"] = 3
    jobs = await work.enqueue_many([{}] * 3)
    async with stage.working() as worker:
        await asyncio.sleep(1)
        await worker.stop()

    assert [(await stage.job(job.id)).releases for job in jobs] == [1, 1, 1]


@virtual
async def test_a_cancelled_worker_gives_back_what_it_has(stage: Stage):
    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(1_000)

    jobs = await work.enqueue_many([{}] * 3)
    worker = stage.worker()
    running = asyncio.create_task(worker.run(handle_signals=False))
    await until(lambda: worker.stats.running == 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert [(await stage.job(job.id)).releases for job in jobs] == [1, 1, 1]
    assert await stage.store.workers() == []


@virtual
async def test_a_worker_cancelled_within_its_claim_gives_back_what_the_claim_brings(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    stage.store.delays["claim"] = 0.04
    job = await work.enqueue()
    worker = stage.worker()
    running = asyncio.create_task(worker.run(handle_signals=False))
    await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (await stage.job(job.id)).releases == 1


@virtual
async def test_settles_are_flushed_and_the_heartbeat_stops_last(stage: Stage):
    @stage.app.task(lease=6)
    async def work() -> None:
        await asyncio.sleep(1)

    job = await work.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running == 1)
        stage.store.delays["settle"] = 4
        await worker.stop()

    assert (await stage.job(job.id)).state is State.COMPLETED
    calls = stage.store.calls
    after_settle = calls[calls.index("settle") :]
    assert "extend" in after_settle
    assert calls[-1] == "leave"


@virtual
async def test_a_store_that_is_away_does_not_keep_a_worker_from_stopping(stage: Stage):
    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(1)

    await work.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running == 1)
        for method in ("claim", "settle", "extend", "reclaim", "beat", "leave"):
            stage.store.failing[method] = ConnectionError("away")
        begun = now()
        await worker.stop(deadline=2)

    assert now() - begun < 2 + 3 + 5 + 2 + 1
    assert worker.stats.unsettled == 1


@virtual
async def test_a_worker_may_be_stopped_before_it_began(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    job = await work.enqueue()
    worker = stage.worker()
    await worker.stop()
    await worker.run(handle_signals=False)

    assert (await stage.job(job.id)).attempt == 0


async def test_a_thread_is_told_to_stop_and_its_job_given_back():
    stage = Stage()

    @stage.app.task
    def work(ctx: Context) -> None:
        while True:
            ctx.check()
            ctx.cancelled.wait(0.05)

    job = await work.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running == 1)
        await worker.stop(deadline=0.1)

    released = await stage.job(job.id)
    assert (released.state, released.releases, worker.stats.zombies) == (State.WAITING, 1, 0)


async def test_a_thread_that_ignores_the_stop_is_left_behind_and_its_job_given_back():
    stage = Stage()
    let_go = threading.Event()

    @stage.app.task
    def deaf() -> None:
        let_go.wait(30)

    job = await deaf.enqueue()
    async with stage.working(grace=0.1) as worker:
        await until(lambda: worker.stats.running == 1)
        await worker.stop(deadline=0.1)

    assert (await stage.job(job.id)).releases == 1
    assert worker.stats.zombies == 1
    let_go.set()


async def test_the_first_signal_stops_all_workers_of_the_process_and_the_second_at_once():
    stage = Stage()

    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(600)

    before = signal.getsignal(signal.SIGTERM)
    jobs = await work.enqueue_many([{}] * 2)
    workers = [stage.worker(slots=1, name=name) for name in ("one", "two")]
    running = asyncio.gather(*(worker.run() for worker in workers))
    await until(lambda: all(worker.stats.running for worker in workers))

    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.2)
    assert not running.done()
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(60):
        await running

    assert [(await stage.job(job.id)).releases for job in jobs] == [1, 1]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_process_whose_thread_never_returns_still_exits():
    program = """
        import asyncio, threading
        from millrace import App
        from millrace.store.memory import MemoryStore

        app = App(MemoryStore())

        @app.task
        def deaf() -> None:
            print("running", flush=True)
            threading.Event().wait()

        async def main() -> None:
            await deaf.enqueue()
            await app.worker(shutdown_deadline=0.1, grace=0.1).run()

        asyncio.run(main())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)

    assert (process.returncode, errors) == (0, "")


def test_a_process_whose_coroutine_ignores_its_cancellation_still_exits():
    """`asyncio.run` would wait for it; a worker that has stopped no longer lets it."""
    program = """
        import asyncio
        from millrace import App
        from millrace.store.memory import MemoryStore

        app = App(MemoryStore())

        @app.task
        async def deaf() -> None:
            print("running", flush=True)
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass

        async def main() -> None:
            await deaf.enqueue()
            await app.worker(shutdown_deadline=0.1, grace=0.1).run()

        asyncio.run(main())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)

    assert (process.returncode, errors) == (0, "")
