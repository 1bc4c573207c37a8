"""Settles: at once when alone, together when many, again when the store fails, and never for ever."""

from __future__ import annotations

import asyncio

from millrace import Context, PayloadInvalid, Spec, State, StoreError
from millrace.domain.change import Change
from millrace.domain.job import Lease
from millrace.domain.request import Receipt
from tests.worker.stage import Stage, WatchedStore, until, virtual


@virtual
async def test_a_lone_job_is_settled_without_delay(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    job = await work.enqueue()
    begun = asyncio.get_running_loop().time()
    async with stage.working():
        await stage.until(job.id)

    assert asyncio.get_running_loop().time() - begun < 0.01


@virtual
async def test_what_ends_while_a_settle_is_under_way_joins_the_next_one(stage: Stage):
    @stage.app.task
    async def work(n: int) -> None:
        await asyncio.sleep(n / 100)

    stage.store.delays["settle"] = 1.0
    await work.enqueue_many([{"n": n} for n in range(40)])
    await stage.burst(slots=40)

    assert stage.store.batches == [1, 39]


@virtual
async def test_slow_settles_do_not_keep_slots_busy_but_bound_what_is_claimed(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    stage.store.delays["settle"] = 10.0
    await work.enqueue_many([{}] * 100)
    async with stage.working(slots=5) as worker:
        await asyncio.sleep(5)
        assert worker.stats.running == 0
        assert worker.stats.unsettled == worker.stats.claimed == 10  # two per slot
        await until(lambda: worker.stats.completed == 100)


@virtual
async def test_a_failing_settle_is_repeated_until_the_store_answers(stage: Stage):
    runs = 0

    @stage.app.task(lease=30)
    async def work() -> int:
        nonlocal runs
        runs += 1
        return 1

    job = await work.enqueue()
    stage.store.failing["settle"] = StoreError("away")
    async with stage.working():
        await asyncio.sleep(20)
        del stage.store.failing["settle"]
        await stage.until(job.id)

    assert runs == 1
    assert 5 < stage.store.calls.count("settle") < 40


@virtual
async def test_a_settle_whose_answer_was_lost_is_asked_again_and_found_to_be_done(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    inner, lost_replies = WatchedStore.settle, 1

    async def settle(items):
        nonlocal lost_replies
        receipts = await inner(stage.store, items)
        if lost_replies:
            lost_replies -= 1
            raise ConnectionError("the reply was lost")
        return receipts

    stage.store.settle = settle  # type: ignore[method-assign]
    job = await work.enqueue()
    await stage.burst()

    assert (await stage.job(job.id)).state is State.COMPLETED


@virtual
async def test_a_settle_is_given_up_when_its_lease_is_long_over_and_the_job_runs_again(stage: Stage):
    runs = 0

    @stage.app.task(lease=5)
    async def work() -> None:
        nonlocal runs
        runs += 1

    job = await work.enqueue()
    stage.store.failing["settle"] = stage.store.failing["extend"] = StoreError("away")
    async with stage.working() as worker:
        await until(lambda: worker.stats.lost == 1, timeout=30)
        stage.store.failing.clear()
        done = await stage.until(job.id)

    assert (done.state, done.stalls, runs) == (State.COMPLETED, 1, 2)


@virtual
async def test_one_change_that_cannot_be_written_stops_no_other(stage: Stage):
    @stage.app.task(max_attempts=1)
    async def work(ctx: Context, n: int) -> None:
        if n == 7:
            ctx.carry(Spec(id="refused", task="work", payload=b"{}"))

    _refuse(stage, "refused", PayloadInvalid("no room for that"))
    jobs = await work.enqueue_many([{"n": n} for n in range(20)])
    worker = await stage.burst(slots=20)

    states = [(await stage.job(job.id)).state for job in jobs]
    assert states.count(State.COMPLETED) == 19
    dead = await stage.job(jobs[7].id)
    assert (dead.state, dead.reason) == (State.DEAD, "max_attempts_exceeded")
    assert dead.error is not None and dead.error.message == "no room for that"
    assert worker.stats.completed == 19


@virtual
async def test_one_change_that_breaks_the_driver_stops_no_other(stage: Stage):
    @stage.app.task(lease=10, max_attempts=1)
    async def work(ctx: Context, n: int) -> None:
        if n == 7:
            ctx.carry(Spec(id="breaks", task="work", payload=b"{}"))

    _refuse(stage, "breaks", ValueError("a NUL character in a text column"))
    jobs = await work.enqueue_many([{"n": n} for n in range(20)])
    async with stage.working(slots=20) as worker:
        await until(lambda: worker.stats.completed == 19)
        dead = await stage.until(jobs[7].id)  # given up here, then found by the reaper

    assert (dead.state, worker.stats.lost) == (State.DEAD, 1)


def _refuse(stage: Stage, child: str, error: Exception) -> None:
    inner = WatchedStore.settle

    async def settle(items: list[tuple[Lease, Change]]) -> list[Receipt]:
        if any(spec.id == child for _, change in items for spec in change.jobs):
            raise error
        return await inner(stage.store, items)

    stage.store.settle = settle  # type: ignore[method-assign, assignment]


@virtual
async def test_a_settle_that_hangs_is_asked_again(stage: Stage):
    @stage.app.task(lease=60)
    async def work() -> None: ...

    job = await work.enqueue()
    stage.store.delays["settle"] = 100_000
    async with stage.working():
        await asyncio.sleep(10)
        del stage.store.delays["settle"]
        assert (await stage.until(job.id)).attempt == 1


@virtual
async def test_a_job_stays_leased_while_its_settle_waits(stage: Stage):
    @stage.app.task(lease=10)
    async def work() -> None: ...

    job = await work.enqueue()
    stage.store.delays["settle"] = 18
    async with stage.working(name="slow"), stage.working(name="rival", reap_interval=1):
        done = await stage.until(job.id)

    assert (done.state, done.stalls) == (State.COMPLETED, 0)


@virtual
async def test_what_was_settled_too_late_is_told_as_lost_and_not_as_completed(stage: Stage):
    heard: list[str] = []
    for kind in ("completed", "lost"):
        stage.app.on(kind, lambda event: heard.append(event.kind))

    @stage.app.task
    async def work() -> None:
        await stage.store.obliterate("default")

    await work.enqueue()
    worker = await stage.burst()

    assert heard == ["lost"]
    assert (worker.stats.lost, worker.stats.completed) == (1, 0)
    assert worker.stats.unsettled == 0
