"""Leases are kept while a job may run, and no longer; a run that lost its lease is told so."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from millrace import Context, RetryPolicy, State
from millrace.domain.event import Kind
from millrace.domain.outcome import Failure, Lost
from millrace.domain.request import Reclaim
from millrace.domain.rules.decide import decide
from millrace.testing.clock import VirtualClock
from millrace.worker.heartbeat import ThreadHeartbeat
from tests.worker.stage import Stage, until, virtual


@virtual
async def test_a_job_that_outlives_its_lease_many_times_is_run_once(stage: Stage):  # BR-08
    @stage.app.task(lease=3)
    async def long() -> str:
        await asyncio.sleep(100)
        return "done"

    job = await long.enqueue()
    rival = stage.worker(tasks=["long"], name="rival", reap_interval=1)
    async with stage.working(name="holder"), rival:
        done = await stage.until(job.id)

    assert await stage.kinds(job.id) == [Kind.ENQUEUED, Kind.CLAIMED, Kind.COMPLETED]
    assert done.state is State.COMPLETED
    assert 80 < stage.store.calls.count("extend") < 160  # at a third of the lease


@virtual
async def test_a_worker_may_set_the_lease_of_jobs_whose_task_says_none(stage: Stage):
    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(100)

    job = await work.enqueue()
    async with stage.working(lease="2s") as worker:
        await asyncio.sleep(10)
        running = await stage.job(job.id)
        assert running.lease_until is not None
        assert running.lease_until - await stage.store.now() <= 2_000
        await worker.stop(deadline=0)


@virtual
async def test_a_lease_shorter_than_the_others_hurries_the_heartbeat(stage: Stage):
    @stage.app.task(lease=300)
    async def slow() -> None:
        await asyncio.sleep(40)

    first = await slow.enqueue()
    async with stage.working(name="a"):
        await asyncio.sleep(5)  # asleep for a hundred seconds
        second = await slow.options(lease=1).enqueue()
        for job in (first, second):
            assert (await stage.until(job.id)).stalls == 0


@virtual
async def test_a_run_whose_lease_was_taken_over_is_aborted_and_writes_nothing(stage: Stage):  # L-06, BL-10
    ended: list[str] = []

    @stage.app.task(lease=3)
    async def work() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError as error:
            ended.append(str(error))
            raise

    lost: list[str] = []
    stage.app.on("lost", lambda event: lost.append(event.job.id))
    job = await work.enqueue()
    async with stage.working(reap_interval=1_000) as worker:
        await until(lambda: worker.stats.running)
        await _expire(stage, job.id)
        [taken] = await stage.store.reclaim(Reclaim("rival"))
        await until(lambda: ended, timeout=2)

        assert "taken over" in ended[0]
        assert lost == [job.id]
        assert (await stage.job(job.id)).lease_id == taken.lease_id
        assert worker.stats.lost == 1


async def _expire(stage: Stage, job_id: str) -> None:
    """As if this worker had been frozen past its lease, without its knowing."""
    tables = stage.store._tables
    record = tables.by_id(job_id)
    assert record is not None
    record.lease_until = 0
    tables.update(record)


@virtual
async def test_when_the_store_is_silent_handlers_are_aborted_before_their_leases_end(stage: Stage):
    aborted_at: list[float] = []
    clock = asyncio.get_running_loop().time

    @stage.app.task(lease=30)
    async def work() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            aborted_at.append(clock())

    job = await work.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running)
        stage.store.failing["extend"] = ConnectionError("cut off")
        lease_until = (await stage.job(job.id)).lease_until or 0
        begun, now = clock(), await stage.store.now()
        await until(lambda: aborted_at)

    assert 20 < aborted_at[0] - begun < (lease_until - now) / 1000


@virtual
async def test_when_the_store_hangs_handlers_are_aborted_before_their_leases_end(stage: Stage):
    aborted_at: list[float] = []
    clock = asyncio.get_running_loop().time

    @stage.app.task(lease=30)
    async def work() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            aborted_at.append(clock())

    await work.enqueue()
    begun = clock()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running)
        stage.store.delays["extend"] = 10_000
        await until(lambda: aborted_at)

    assert 20 < aborted_at[0] - begun < 30


@virtual
async def test_a_short_silence_harms_nothing(stage: Stage):
    @stage.app.task(lease=30)
    async def work() -> None:
        await asyncio.sleep(100)

    job = await work.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running)
        for _ in range(3):
            stage.store.failing["extend"] = ConnectionError("cut off")
            await asyncio.sleep(14)
            del stage.store.failing["extend"]
            await asyncio.sleep(14)
        assert (await stage.until(job.id)).state is State.COMPLETED


@virtual
async def test_a_running_job_that_is_cancelled_is_aborted_at_the_next_beat(stage: Stage):
    @stage.app.task(lease=3)
    async def work() -> None:
        await asyncio.sleep(1_000)

    job = await work.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running)
        await stage.store.cancel([job.id], running="request")
        cancelled = await stage.until(job.id, timeout=3)

        assert (cancelled.state, cancelled.failures) == (State.CANCELLED, 0)
        await until(lambda: worker.stats.cancelled == 1)


@virtual
async def test_a_cancelled_job_that_finishes_first_has_finished(stage: Stage):
    @stage.app.task(lease=3)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            return "was nearly done"
        return ""

    job = await stubborn.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running)
        await stage.store.cancel([job.id], running="request")

        assert (await stage.until(job.id)).state is State.COMPLETED


@virtual
async def test_an_error_after_a_cancel_does_not_bring_the_job_back(stage: Stage):
    @stage.app.task(lease=3)
    async def work() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            raise ValueError("could not tidy up")

    job = await work.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running)
        await stage.store.cancel([job.id], running="request")

        assert (await stage.until(job.id)).state is State.CANCELLED


@virtual
async def test_the_worker_record_says_what_runs_and_ends_with_the_worker(stage: Stage):  # O-15
    @stage.app.task(lease=3)
    async def work() -> None:
        await asyncio.sleep(10)

    job = await work.enqueue()
    async with stage.working(name="w1", slots=4, version="1.2"):
        await asyncio.sleep(5)
        [record] = await stage.store.workers()
        info = record.info
        assert (info.id, info.slots, info.version, info.queues, info.tasks) == ("w1", 4, "1.2", ("default",), ("work",))
        assert info.running == (job.id,)
        assert record.alive

    assert await stage.store.workers() == []


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease_until_its_timeout():  # BL-03
    """The store's clock goes on from one heartbeat to the next, so no lease is lost because a thread is slow."""
    clock = VirtualClock()
    stage = Stage(clock)

    @stage.app.task(lease=30, timeout=600)
    async def rude() -> str:
        for _ in range(12):  # four leases long
            before = stage.store.calls.count("extend")
            clock.advance(10)
            while stage.store.calls.count("extend") == before:
                time.sleep(0.005)
        return "done"

    job = await rude.enqueue()
    with _rival(stage):
        await stage.burst(heartbeat=ThreadHeartbeat, beat_interval=0.02)

    assert (await stage.job(job.id)).state is State.COMPLETED
    assert await stage.kinds(job.id) == [Kind.ENQUEUED, Kind.CLAIMED, Kind.COMPLETED]


async def test_a_handler_that_blocks_the_event_loop_past_its_timeout_loses_its_lease():
    stage = Stage()

    @stage.app.task(lease=0.3, timeout=0.3, retry=RetryPolicy(initial=60_000))
    async def rude() -> str:
        assert taken_over.wait(60)
        return "too late"

    job = await rude.enqueue()
    with _rival(stage) as taken_over:
        worker = await stage.burst(heartbeat=ThreadHeartbeat, grace=0.2)

    assert (await stage.kinds(job.id))[:4] == [Kind.ENQUEUED, Kind.CLAIMED, Kind.RECLAIMED, Kind.RETRIED]
    assert (await stage.job(job.id)).result is None
    assert worker.stats.lost == 1


async def test_a_thread_hears_of_its_lost_lease_though_the_event_loop_is_blocked():
    stage = Stage()
    heard = threading.Event()

    @stage.app.task(lease=0.3)
    def polite(ctx: Context) -> None:
        ctx.cancelled.wait(600)
        heard.set()

    job = await polite.enqueue()
    async with stage.working(heartbeat=ThreadHeartbeat) as worker:
        await until(lambda: worker.stats.running)
        await stage.store.cancel([job.id], running="request")
        assert heard.wait(60)  # this very loop stands still meanwhile


async def test_the_heartbeat_thread_ends_with_its_worker():
    stage = Stage()

    @stage.app.task
    async def work() -> None: ...

    await work.enqueue()
    await stage.burst(heartbeat=ThreadHeartbeat)

    await until(lambda: not any(thread.name == "millrace-heartbeat" for thread in threading.enumerate()), timeout=60)


async def test_the_heartbeat_uses_a_way_of_its_own_to_the_store():
    stage = Stage()
    beside = Stage().store
    beside._tables, beside._ledger = stage.store._tables, stage.store._ledger
    opened: list[str] = []

    async def note(what: str) -> None:
        opened.append(f"{what} in {threading.current_thread().name}")

    beside.connect = lambda: note("open")  # type: ignore[method-assign]
    beside.close = lambda: note("close")  # type: ignore[method-assign]
    stage.store.for_loop = lambda: beside  # type: ignore[method-assign]

    @stage.app.task
    async def work() -> None:
        await until(lambda: {"extend", "beat"} <= set(beside.calls), timeout=60)

    await work.enqueue()
    await stage.burst(heartbeat=ThreadHeartbeat, beat_interval=0.02)

    assert "extend" in beside.calls and "beat" in beside.calls
    assert "extend" not in stage.store.calls
    assert opened == ["open in millrace-heartbeat", "close in millrace-heartbeat"]


async def test_a_heartbeat_that_cannot_connect_is_reported_and_tries_again():
    stage = Stage()
    tries = 0

    def refuse() -> object:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionError("refused")
        return stage.store

    stage.store.for_loop = refuse  # type: ignore[method-assign, assignment]

    @stage.app.task
    async def work() -> None: ...

    async with stage.working(heartbeat=ThreadHeartbeat) as worker:
        await until(lambda: "beat" in stage.store.calls, timeout=60)
        assert worker.stats.errors == 2


@contextmanager
def _rival(stage: Stage) -> Iterator[threading.Event]:
    """Another worker's reaper, in a thread of its own, that takes whatever it can, and then sets the event."""
    stop, taken_over = threading.Event(), threading.Event()

    async def reap() -> None:
        while not stop.is_set():
            for job in await stage.store.reclaim(Reclaim("rival")):
                await stage.store.settle([(job.lease, decide(job, Lost(Failure("Lost")), chance=0.5))])
                taken_over.set()
            await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(reap()))
    thread.start()
    try:
        yield taken_over
    finally:
        stop.set()
        thread.join()
