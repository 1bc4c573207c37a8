"""A worker with short jobs claims more of them than it has free slots. The others wait in the worker, briefly."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from millrace import Context, Event, State, Task
from millrace.domain.errors import StoreError
from millrace.domain.job import Job
from millrace.domain.request import Claim
from millrace.store.protocol import Target
from millrace.testing.builders import a_spec
from millrace.worker.ahead import ENOUGH, LONGEST_WAIT, MOST, may_wait
from proof.simulation.loop import VirtualLoop
from tests.narrowing import checked_cast
from tests.worker.stage import Stage, until, virtual

SLOTS = 10
FIRST = 4 * ENOUGH  # short jobs, after which a worker claims ahead


def limits(stage: Stage) -> list[int]:
    return [claim.limit for claim in stage.store.claims]


def a_short_task(stage: Stage, seconds: float = 0.001, **options: Any) -> Task[..., Any]:
    @stage.app.task(name="short", **options)
    async def short() -> None:
        await asyncio.sleep(seconds)

    return short


async def events(stage: Stage, kind: str) -> list[Event]:
    page = await stage.store.events(None, 100_000)
    return [event for event in page.events if event.kind == kind]


# ── when it claims ahead ──────────────────────────────────────────────────────────────────────


@virtual
async def test_after_enough_short_jobs_a_claim_takes_more_than_the_free_slots(stage: Stage):
    await a_short_task(stage).enqueue_many([{}] * 2_000)
    worker = await stage.burst(slots=SLOTS)

    assert limits(stage)[: ENOUGH // SLOTS] == [SLOTS] * (ENOUGH // SLOTS)
    assert SLOTS < max(limits(stage)) <= SLOTS + MOST
    assert len(limits(stage)) < 60
    assert (worker.stats.completed, worker.stats.released) == (2_000, 0)


@virtual
async def test_a_claim_waits_for_the_end_of_a_settle_rather_than_take_few_jobs(stage: Stage):
    """A claim of few jobs costs as much as one of many."""
    await a_short_task(stage, 0.0001).enqueue_many([{}] * (15 * MOST))
    stage.store.delays["settle"] = 0.01  # longer than the jobs of a claim take to run
    worker = await stage.burst(slots=SLOTS)

    ahead = [limit for limit in limits(stage) if limit > SLOTS]
    assert len(ahead) > 10
    assert min(ahead) >= MOST // 2
    assert worker.stats.completed == 15 * MOST


@virtual
async def test_no_more_handlers_run_than_there_are_slots(stage: Stage):
    running = most = 0

    @stage.app.task
    async def short() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    await short.enqueue_many([{}] * 2_000)
    seen: list[int] = []
    async with stage.working(slots=SLOTS) as worker:
        while worker.stats.completed < 2_000:
            seen.append(worker.stats.running)
            await asyncio.sleep(0.0005)

    assert max(limits(stage)) > SLOTS
    assert (most, max(seen)) == (SLOTS, SLOTS)


@virtual
async def test_jobs_start_in_the_order_of_their_claims(stage: Stage):
    order: list[int] = []

    @stage.app.task
    async def short(n: int) -> None:
        order.append(n)
        await asyncio.sleep(0.001)

    await short.enqueue_many([{"n": n} for n in range(1_000)])
    await stage.burst(slots=SLOTS)

    assert max(limits(stage)) > SLOTS
    assert order == list(range(1_000))


@virtual
async def test_long_jobs_are_claimed_only_for_free_slots(stage: Stage):
    await a_short_task(stage, seconds=1.0).enqueue_many([{}] * 500)
    await stage.burst(slots=SLOTS)

    assert set(limits(stage)) == {SLOTS}


@virtual
async def test_a_worker_with_many_slots_claims_ahead_too(stage: Stage):
    await a_short_task(stage).enqueue_many([{}] * 5_000)
    await stage.burst(slots=MOST)

    assert MOST < max(limits(stage)) <= 2 * MOST


@virtual
async def test_no_more_jobs_are_claimed_than_the_worker_may_run(stage: Stage):
    await a_short_task(stage).enqueue_many([{}] * 2_000)
    worker = stage.worker(slots=SLOTS, max_jobs=777)
    await worker.run(handle_signals=False)

    assert (worker.stats.claimed, worker.stats.completed) == (777, 777)


@virtual
async def test_a_batch_task_is_claimed_only_for_free_slots(stage: Stage):
    @stage.app.batch_task(size=5)
    async def batched(items: list[int]) -> None: ...

    await batched.enqueue_many([{"item": n} for n in range(1_000)])
    await stage.burst(slots=SLOTS)

    assert max(limits(stage)) <= SLOTS


# ── jobs that must not wait in a worker ───────────────────────────────────────────────────────


@virtual
async def test_jobs_of_groups_are_claimed_only_for_free_slots(stage: Stage):
    short = a_short_task(stage)
    for n in range(500):
        await short.options(group=f"group {n}").enqueue()
    await stage.burst(slots=SLOTS)

    assert max(limits(stage)) == SLOTS


@virtual
async def test_a_job_of_a_group_that_was_claimed_ahead_is_given_back_at_once(stage: Stage):
    short = a_short_task(stage, seconds=0.01)
    await short.enqueue_many([{}] * 300)
    job = await short.options(group="a").enqueue()
    await short.enqueue_many([{}] * 300)
    await stage.burst(slots=SLOTS)

    history = {event.kind.value: event.at for event in await stage.store.history(job.id) if event.attempt == 1}
    assert history["released"] - history["claimed"] < 10
    assert (await stage.job(job.id)).state is State.COMPLETED


@pytest.mark.parametrize("limit", [{"max_running": 15}, {"rate": 1_000_000}, {"fair_share": 0.5}])
def test_a_queue_with_limits_is_claimed_only_for_free_slots(limit: dict[str, Any]):
    @virtual
    async def story(stage: Stage) -> None:
        await stage.app.queue("default").set(**limit)
        await a_short_task(stage).enqueue_many([{}] * 600)
        await stage.burst(slots=SLOTS)

        assert max(limits(stage)) == SLOTS

    story()


@virtual
async def test_a_task_with_limits_is_claimed_only_for_free_slots(stage: Stage):
    short = a_short_task(stage)
    await stage.app.limit(short, max_running=50)
    await short.enqueue_many([{}] * 600)
    await stage.burst(slots=SLOTS)

    assert max(limits(stage)) == SLOTS


@virtual
async def test_a_limit_that_is_set_later_ends_the_claims_ahead_within_seconds(stage: Stage):
    await a_short_task(stage, seconds=0.01).enqueue_many([{}] * 20_000)
    async with stage.working(slots=SLOTS):
        await until(lambda: max(limits(stage), default=0) > SLOTS)
        await stage.app.queue("default").limits(max_running=100)
        await asyncio.sleep(6)
        stage.store.claims.clear()
        await asyncio.sleep(1)

        assert max(limits(stage)) <= SLOTS


@virtual
async def test_a_limit_of_a_task_that_is_no_longer_claimed_does_not_matter(stage: Stage):
    limited = stage.app.task(name="limited")(a_short_task(stage, seconds=0.01).handler)
    await stage.app.limit(limited, max_running=50)
    await limited.enqueue_many([{}] * 600)
    async with stage.working(slots=SLOTS) as worker:
        await until(lambda: worker.stats.completed == 600)
        assert max(limits(stage)) == SLOTS
        await stage.app.tasks["short"].enqueue_many([{}] * 15_000)
        await until(lambda: worker.stats.completed == 15_600)

    assert max(limits(stage)) > SLOTS


@virtual
async def test_a_store_that_does_not_answer_for_its_settings_stops_the_claims_ahead(stage: Stage):
    async def failing(target: Target, name: str, changes: Mapping[str, Any]) -> Any:
        raise StoreError("away")

    stage.store.control = failing  # type: ignore[method-assign]
    await a_short_task(stage).enqueue_many([{}] * 600)
    worker = await stage.burst(slots=SLOTS)

    assert max(limits(stage)) == SLOTS
    assert (worker.stats.completed, worker.stats.errors) == (600, 1)


@virtual
async def test_a_job_whose_only_attempt_would_be_lost_with_the_worker_does_not_wait_in_it(stage: Stage):
    await a_short_task(stage, max_attempts=1).enqueue_many([{}] * 600)
    await stage.burst(slots=SLOTS)

    assert max(limits(stage)) == SLOTS


@virtual
async def test_no_job_waits_behind_one_that_may_have_killed_a_worker(stage: Stage):
    waiting: list[int] = []

    @stage.app.task
    async def suspect() -> None:
        await asyncio.sleep(0)
        waiting.append((await stage.store.count())[0].running)

    short = a_short_task(stage)
    job = await suspect.options(priority=5).enqueue()
    [held] = await stage.store.claim(Claim(("default",), "gone", lease=1))
    await asyncio.sleep(0.01)
    async with stage.working(slots=SLOTS, poll_max=0.1) as worker:
        await until(lambda: worker.stats.reaped == 1)
        stored = stage.store._ledger.tables.by_id(job.id)
        assert stored is not None and stored.stalls == 1 and held.id == job.id
        for _ in range(200):
            if (await stage.job(job.id)).state is State.COMPLETED:
                break
            await short.enqueue_many([{}] * 300)
            await asyncio.sleep(0.02)

    assert max(limits(stage)) > SLOTS
    assert waiting and max(waiting) <= SLOTS


# ── jobs that wait longer than expected ───────────────────────────────────────────────────────


async def filled(stage: Stage, hold: asyncio.Event, **options: Any) -> Any:
    """A worker that holds waiting jobs: it learnt that jobs are short, and then all slots are held."""
    learnt = 0

    @stage.app.task
    async def turning_slow() -> None:
        nonlocal learnt
        learnt += 1
        if learnt <= FIRST:
            await asyncio.sleep(0.001)
        else:
            await hold.wait()

    await turning_slow.options(**options).enqueue_many([{}] * 1_000)
    worker = stage.worker(slots=SLOTS)
    await worker.__aenter__()
    await until(lambda: learnt >= FIRST + SLOTS)
    return worker


async def running(stage: Stage) -> int:
    return (await stage.store.count())[0].running


@virtual
async def test_waiting_jobs_are_given_back_when_the_slots_are_held_for_long(stage: Stage):
    hold = asyncio.Event()
    worker = await filled(stage, hold)
    assert await running(stage) > SLOTS

    await asyncio.sleep(LONGEST_WAIT * 1.1)
    assert await running(stage) == SLOTS
    given_back = [event.at for event in await events(stage, "released")]
    assert given_back and worker.stats.released == len(given_back)

    await asyncio.sleep(60)
    assert len(await events(stage, "released")) == len(given_back)  # it does not claim them ahead again
    hold.set()
    await until(lambda: worker.stats.completed == 1_000)
    await worker.stop()


@virtual
async def test_waiting_jobs_of_a_claim_that_returned_fewer_than_it_asked_for_are_given_back_too(stage: Stage):
    @stage.app.task
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    await work.enqueue_many([{"seconds": 0.001}] * 2 * ENOUGH)
    slow = await work.enqueue_many([{"seconds": 600.0}] * 3 * SLOTS)
    async with stage.working(slots=SLOTS) as worker:
        await until(lambda: worker.stats.completed == 2 * ENOUGH)
        await asyncio.sleep(LONGEST_WAIT * 2)
        states = [(await stage.job(job.id)).state for job in slow]

        assert (states.count(State.RUNNING), states.count(State.WAITING)) == (SLOTS, 2 * SLOTS)
        assert worker.stats.released > 0
        await worker.stop(deadline=0)


@virtual
async def test_jobs_that_are_given_back_have_not_failed_and_have_no_duration(stage: Stage):
    hold = asyncio.Event()
    worker = await filled(stage, hold)
    await asyncio.sleep(1)
    released = await events(stage, "released")
    hold.set()
    await until(lambda: worker.stats.completed == 1_000)
    await worker.stop()

    assert released and all(event.duration is None and event.failures == 0 for event in released)


@virtual
async def test_a_short_lease_shortens_the_wait(stage: Stage):
    hold = asyncio.Event()
    worker = await filled(stage, hold, lease=0.5)
    assert await running(stage) > SLOTS

    await asyncio.sleep(0.05 * 1.2)
    assert await running(stage) == SLOTS
    hold.set()
    await worker.stop(deadline=0)


@virtual
async def test_jobs_given_back_do_not_count_towards_max_jobs(stage: Stage):
    runs = 0

    @stage.app.task
    async def turning_slow() -> None:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0.001 if runs <= FIRST else 1.0)

    await turning_slow.enqueue_many([{}] * 1_000)
    worker = stage.worker(slots=SLOTS, max_jobs=400)
    await worker.run(handle_signals=False)

    assert worker.stats.released > 0
    assert (runs, worker.stats.completed) == (400, 400)


@virtual
async def test_jobs_are_not_given_back_because_the_event_loop_was_late(stage: Stage):
    await a_short_task(stage).enqueue_many([{}] * 3_000)
    async with stage.working(slots=SLOTS) as worker:
        await until(lambda: worker._components is not None and worker._components.executor.waiting)
        checked_cast(VirtualLoop, asyncio.get_running_loop())._at += 1.0
        await until(lambda: worker.stats.completed == 3_000)

    assert worker.stats.released == 0


# ── stop, cancel, lease ───────────────────────────────────────────────────────────────────────


@virtual
async def test_a_stop_gives_waiting_jobs_back_at_once(stage: Stage):
    hold = asyncio.Event()
    worker = await filled(stage, hold)
    stopping = asyncio.create_task(worker.stop(deadline=10))
    await asyncio.sleep(0.01)

    assert await running(stage) == SLOTS
    hold.set()
    await stopping
    states = [(await stage.store.count())[0].running, worker.stats.completed + (await stage.store.count())[0].ready]
    assert states == [0, 1_000]


@virtual
async def test_a_waiting_job_that_is_cancelled_never_runs(stage: Stage):
    ran: list[str] = []
    hold = asyncio.Event()

    @stage.app.task
    async def turning_slow(ctx: Context) -> None:
        ran.append(ctx.job.id)
        if len(ran) <= FIRST:
            await asyncio.sleep(0.001)
        else:
            await hold.wait()

    await turning_slow.enqueue_many([{}] * 1_000)
    async with stage.working(slots=SLOTS) as worker:
        await until(lambda: len(ran) >= FIRST + SLOTS)
        held = [job.id async for job in stage.app.jobs.find(state="running", limit=1_000)]
        [waiting, *_] = [job_id for job_id in held if job_id not in ran]
        await stage.app.jobs.cancel(waiting, running="request")
        await stage.until(waiting, "cancelled", timeout=LONGEST_WAIT * 0.9)
        hold.set()
        await until(lambda: worker.stats.completed == 999)

    assert waiting not in ran
    assert await stage.kinds(waiting) == ["enqueued", "claimed", "cancelled"]


@virtual
async def test_the_timeout_of_a_job_starts_with_its_handler(stage: Stage):
    """Each job runs for 0.15 s, some after a wait; a timeout that included the wait would end those."""
    runs = 0

    @stage.app.task(timeout=0.2)
    async def work() -> None:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0.001 if runs <= FIRST else 0.15)

    await work.enqueue_many([{}] * 400)
    worker = await stage.burst(slots=SLOTS)

    assert max(limits(stage)) > SLOTS
    assert (worker.stats.completed, worker.stats.retried) == (400, 0)
    durations = [event.duration or 0 for event in await events(stage, "completed")]
    long = [duration for duration in durations if duration > 100]
    assert long and max(long) <= 160


@virtual
async def test_the_leases_of_waiting_jobs_are_extended(stage: Stage):
    hold = asyncio.Event()
    worker = await filled(stage, hold)
    held = [job async for job in stage.app.jobs.find(state="running", limit=1_000)]
    before = min(job.lease_until for job in held if job.lease_until is not None)
    await asyncio.sleep(0.01)
    worker._components.heartbeat.hurry()
    await asyncio.sleep(0.01)

    after = [job.lease_until async for job in stage.app.jobs.find(state="running", limit=1_000)]
    assert len(after) == len(held) > SLOTS
    assert min(until for until in after if until is not None) > before
    hold.set()
    await worker.stop()


# ── several workers ───────────────────────────────────────────────────────────────────────────


@virtual
async def test_no_worker_keeps_jobs_from_another_that_is_idle(stage: Stage):
    """Both workers learnt that jobs are short. Then come long ones, as many as both have slots for."""
    started: list[float] = []
    short = a_short_task(stage)
    clock = asyncio.get_running_loop().time

    @stage.app.task
    async def long() -> None:
        started.append(clock())
        await asyncio.sleep(60)

    await short.enqueue_many([{}] * 5_000)
    async with stage.working(slots=SLOTS) as one, stage.working(slots=SLOTS) as other:
        await until(lambda: one.stats.completed + other.stats.completed == 5_000)
        assert min(one.stats.completed, other.stats.completed) > 1_000
        began = clock()
        await long.enqueue_many([{}] * 2 * SLOTS)
        await until(lambda: len(started) == 2 * SLOTS)

    assert max(started) - began < LONGEST_WAIT + 0.1


@virtual
async def test_two_workers_share_the_jobs_evenly(stage: Stage):
    await a_short_task(stage, seconds=0.02).enqueue_many([{}] * 3_000)
    clock = asyncio.get_running_loop().time
    began = clock()
    async with stage.working(slots=SLOTS) as one, stage.working(slots=SLOTS) as other:
        await until(lambda: one.stats.completed + other.stats.completed == 3_000)

    assert clock() - began < 3_000 * 0.02 / (2 * SLOTS) + 2 * LONGEST_WAIT


@virtual
async def test_a_busy_worker_leaves_the_wake_up_of_a_new_job_to_an_idle_one(stage: Stage):
    hold = asyncio.Event()
    busy = await filled(stage, hold)
    await asyncio.sleep(LONGEST_WAIT * 2)
    clock = asyncio.get_running_loop().time
    started: list[float] = []

    @stage.app.task(queue="default")
    async def urgent() -> None:
        started.append(clock())

    async with stage.working(slots=1, tasks=["urgent"], poll_min=60, poll_max=60):
        await asyncio.sleep(1)
        began = clock()
        await urgent.enqueue()
        await until(lambda: started)

    assert started[0] - began < 0.5
    hold.set()
    await busy.stop()


@virtual
async def test_the_list_of_workers_names_only_jobs_whose_handler_runs(stage: Stage):
    hold = asyncio.Event()
    worker = await filled(stage, hold)
    assert await running(stage) > SLOTS

    assert len(worker._components.info().running) == SLOTS
    hold.set()
    await worker.stop()


@pytest.mark.parametrize(
    ("options", "fields", "may"),
    [
        ({}, {}, True),
        ({}, {"stalls": 1}, False),
        ({}, {"lane": 0}, False),
        ({"group": "g"}, {}, False),
        ({"max_attempts": 1}, {}, False),
        ({"max_attempts": 2}, {}, True),
        ({"max_attempts": 2}, {"failures": 1}, False),
        ({"max_stalls": 1}, {}, False),
    ],
)
def test_a_job_may_wait_only_if_no_other_job_and_no_last_attempt_could_suffer(
    options: dict[str, Any], fields: dict[str, Any], may: bool
):
    job = Job(a_spec(**options), 1, 1, State.RUNNING, 0, 0, **fields)

    assert may_wait(job) is may
