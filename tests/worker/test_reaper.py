"""Jobs whose worker is gone come back: soon, however many, and not for ever."""

from __future__ import annotations

import asyncio

from millrace import RetryPolicy, Spec, State
from millrace.domain.event import Kind
from millrace.domain.request import Claim, WorkerInfo
from tests.worker.stage import Stage, virtual

AT_ONCE = RetryPolicy(initial=0, jitter=0)


async def die_with(stage: Stage, count: int = 1, lease: int = 5_000) -> None:
    """A worker claims jobs and is never heard of again."""
    await stage.store.claim(Claim(("default",), "dead-worker", count, None, lease))


@virtual
async def test_a_job_of_a_dead_worker_is_run_again_and_the_loss_is_counted(stage: Stage):  # L-06, R-32
    @stage.app.task(retry=AT_ONCE)
    async def work() -> str:
        return "done"

    heard: list[str] = []
    stage.app.on("stalled", lambda event: heard.append(event.job.id))
    job = await work.enqueue()
    await die_with(stage)
    begun = asyncio.get_running_loop().time()
    async with stage.working() as worker:
        done = await stage.until(job.id)

    assert (done.state, done.failures, done.stalls, done.attempt) == (State.COMPLETED, 1, 1, 2)
    assert asyncio.get_running_loop().time() - begun < 5 + 5 * 1.2 + 1  # lease + reap interval, as promised
    assert worker.stats.reaped == 1
    assert heard == [job.id]


# BL-01
@virtual
async def test_a_job_that_keeps_killing_its_worker_is_buried_whatever_its_budget(stage: Stage):
    @stage.app.task
    async def other() -> None: ...

    await stage.store.enqueue([Spec(id="poison", task="kills", retry=AT_ONCE, max_attempts=None, max_stalls=3)])
    async with stage.working():
        for _ in range(3):
            await die_with(stage)
            await stage.until("poison", "waiting", "dead")

    dead = await stage.job("poison")
    assert (dead.state, dead.reason, dead.stalls, dead.attempt) == (State.DEAD, "worker_lost", 3, 3)


@virtual
async def test_stalls_and_lost_workers_have_their_own_reasons(stage: Stage):
    @stage.app.task
    async def other() -> None: ...

    for job_id, worker_id in (("stalled", "alive"), ("lost", "gone")):
        await stage.store.enqueue([Spec(id=job_id, task="unknown", max_stalls=1)])
        await stage.store.claim(Claim(("default",), worker_id, 1, None, 1_000))
    await stage.store.beat(WorkerInfo("alive"), ttl=60_000)
    async with stage.working():
        stalled, lost = await stage.until("stalled"), await stage.until("lost")

    assert (stalled.state, stalled.reason) == (State.DEAD, "stalled")
    assert (lost.state, lost.reason) == (State.DEAD, "worker_lost")


@virtual
async def test_a_dead_letter_names_the_worker_that_was_lost_and_not_the_one_that_found_it(stage: Stage):
    @stage.app.task(retry=AT_ONCE, max_stalls=1)
    async def work() -> None: ...

    job = await work.enqueue()
    await die_with(stage)
    async with stage.working(name="innocent"):
        dead = await stage.until(job.id)

    assert (dead.state, dead.reason) == (State.DEAD, "worker_lost")
    assert dead.error is not None and "dead-worker" in dead.error.message
    [attempt] = dead.attempts
    assert attempt.worker == "dead-worker"
    assert attempt.duration is not None and attempt.duration > 5_000
    assert "innocent" not in {event.worker for event in await stage.store.history(job.id) if event.kind is Kind.BURIED}


@virtual
async def test_a_job_whose_task_nobody_knows_does_not_stay_running_for_ever(stage: Stage):  # BL-05
    @stage.app.task
    async def known() -> None: ...

    await stage.store.enqueue([Spec(id="stranger", task="unknown")])
    await die_with(stage)
    async with stage.working():
        waiting = await stage.until("stranger", "waiting", timeout=30)

    assert waiting.failures == 1


# BL-04
@virtual
async def test_thousands_of_lost_jobs_are_back_in_seconds(stage: Stage):
    @stage.app.task(retry=AT_ONCE)
    async def work() -> None: ...

    await work.enqueue_many([{}] * 3_000)
    await die_with(stage, 3_000, lease=1)
    begun = asyncio.get_running_loop().time()
    async with stage.working(slots=100) as worker:
        while worker.stats.completed < 3_000:
            await asyncio.sleep(0.1)

    assert asyncio.get_running_loop().time() - begun < 10
    assert worker.stats.reaped == 3_000


@virtual
async def test_a_busy_worker_reaps_too(stage: Stage):
    @stage.app.task(retry=AT_ONCE)
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    job = await work.enqueue(seconds=0)
    await die_with(stage)
    await work.enqueue_many([{"seconds": 60}] * 5)
    async with stage.working(slots=2) as worker:
        assert (await stage.until(job.id, "waiting", timeout=20)).stalls == 1
        await worker.stop(deadline=0)


@virtual
async def test_a_worker_never_reaps_what_it_runs_itself(stage: Stage):  # L-07
    """The lease runs out while the settle is on its way: nothing extends it, and the reaper looks again and again."""

    @stage.app.task(lease=1)
    async def work() -> str:
        stage.store.failing["extend"] = ConnectionError("away")
        stage.store.delays["settle"] = 3
        return "done"

    job = await work.enqueue()
    async with stage.working(reap_interval=0.05):
        await asyncio.sleep(2)
        late = await stage.job(job.id)
        assert late.state is State.RUNNING and late.lease_until is not None
        assert late.lease_until < stage.store._clock() - 500
        done = await stage.until(job.id)

    assert Kind.RECLAIMED not in await stage.kinds(job.id)
    assert (done.state, done.attempt, done.failures) == (State.COMPLETED, 1, 0)


@virtual
async def test_lost_jobs_of_a_queue_that_no_live_worker_serves_come_back(stage: Stage):
    """Any worker's reaper takes over expired leases of every queue; what becomes of the jobs travels with them."""

    @stage.app.task(queue="served")
    async def other() -> None: ...

    await stage.store.enqueue(
        [
            Spec(id="again", task="unknown", queue="left", retry=AT_ONCE),
            Spec(id="poison", task="unknown", queue="left", retry=AT_ONCE, max_stalls=1),
        ]
    )
    await stage.store.claim(Claim(("left",), "dead-worker", 2, None, 5_000))
    async with stage.working(queues=["served"]):
        waiting = await stage.until("again", "waiting", timeout=30)
        dead = await stage.until("poison", timeout=30)

    assert (waiting.failures, waiting.stalls) == (1, 1)
    assert (dead.state, dead.reason) == (State.DEAD, "worker_lost")


@virtual
async def test_what_time_brings_about_in_the_store_is_done_by_any_worker(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    job = await work.options(expires=10).enqueue()
    await stage.store.control("queue", "default", {"paused": True})
    async with stage.working(maintain_interval=5):
        dead = await stage.until(job.id, timeout=30)

    assert dead.reason == "ttl_expired"


@virtual
async def test_a_store_that_fails_does_not_end_the_reaper(stage: Stage):
    @stage.app.task(retry=AT_ONCE)
    async def work() -> None: ...

    job = await work.enqueue()
    await die_with(stage)
    stage.store.failing["reclaim"] = ConnectionError("away")
    async with stage.working() as worker:
        await asyncio.sleep(30)
        assert (await stage.job(job.id)).state is State.RUNNING
        del stage.store.failing["reclaim"]
        await stage.until(job.id)

    assert 3 < worker.stats.errors < 60
