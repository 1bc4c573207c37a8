"""On a store with `small_claims`, many slots are filled in halves: the next claim goes out before the jobs of the last
begin. The jobs have no second attempt, so none of them waits for a slot."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence

from millrace import Job, State
from millrace.domain.request import Claim
from tests.worker.stage import Stage, until, virtual

SLOTS = 400
HALF = SLOTS // 2


def apart(story: Callable[[Stage], Awaitable[None]]) -> Callable[[], None]:
    """Play a test with a store for which small claims are better."""

    @functools.wraps(story)
    async def told(stage: Stage) -> None:
        stage.store.small_claims = True
        await story(stage)

    return virtual(told)


@apart
async def test_the_next_claim_is_sent_before_the_jobs_of_the_last_begin(stage: Stage):
    @stage.app.task(max_attempts=1)
    async def quick() -> None:
        stage.store.calls.append("run")

    await quick.enqueue_many([{}] * (3 * SLOTS))
    await stage.burst(slots=SLOTS)

    calls = stage.store.calls
    claims = [at for at, name in enumerate(calls) if name == "claim"]
    assert [claim.limit for claim in stage.store.claims[:4]] == [HALF] * 4
    assert "run" not in calls[claims[0] : claims[1]]
    assert calls.count("run") == 3 * SLOTS


@apart
async def test_no_more_run_than_there_are_slots(stage: Stage):
    running = most = 0

    @stage.app.task(max_attempts=1)
    async def slow() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    await slow.enqueue_many([{}] * 1_000)
    stage.store.delays["claim"] = 0.3
    worker = await stage.burst(slots=SLOTS)

    assert most == SLOTS
    assert worker.stats.completed == 1_000


@apart
async def test_no_more_are_claimed_than_the_worker_may_run(stage: Stage):
    @stage.app.task(max_attempts=1)
    async def quick() -> None:
        pass

    await quick.enqueue_many([{}] * (3 * SLOTS))
    worker = stage.worker(slots=SLOTS, max_jobs=SLOTS + 50)
    await worker.run(handle_signals=False)

    assert (worker.stats.claimed, worker.stats.completed) == (SLOTS + 50, SLOTS + 50)


@apart
async def test_a_burst_goes_on_if_a_claim_ahead_found_all_groups_held(stage: Stage):
    """The claim is answered late, when the jobs that held the groups have ended and the next ones are open."""
    claim = stage.store.claim

    async def answered_late(request: Claim) -> list[Job]:
        jobs = await claim(request)
        await asyncio.sleep(1)
        return jobs

    stage.store.claim = answered_late  # type: ignore[method-assign]

    @stage.app.task(max_attempts=1)
    async def quick() -> None:
        pass

    for group in range(100):
        await quick.options(group=str(group)).enqueue_many([{}] * 3)
    worker = await stage.burst(slots=SLOTS)

    assert worker.stats.completed == 300


@apart
async def test_what_was_claimed_ahead_is_given_back_by_a_stop(stage: Stage):
    @stage.app.task(max_attempts=1)
    async def work() -> None:
        await asyncio.sleep(10)

    jobs = await work.enqueue_many([{}] * (3 * SLOTS))
    stage.store.delays["claim"] = 0.5
    async with stage.working(slots=SLOTS) as worker:
        await until(lambda: worker.stats.running == HALF)
        await worker.stop()

    states = [(await stage.job(job.id)).state for job in jobs]
    assert states.count(State.COMPLETED) == HALF
    assert states.count(State.WAITING) == len(jobs) - HALF


@virtual
async def test_a_store_in_this_process_is_asked_for_all_at_once(stage: Stage):
    @stage.app.task(max_attempts=1)
    async def quick() -> None:
        pass

    await quick.enqueue_many([{}] * (3 * SLOTS))
    await stage.burst(slots=SLOTS)

    assert [claim.limit for claim in stage.store.claims[:3]] == [SLOTS] * 3


@apart
async def test_few_slots_are_filled_by_one_claim(stage: Stage):
    @stage.app.task(max_attempts=1)
    async def quick() -> None:
        pass

    await quick.enqueue_many([{}] * 60)
    await stage.burst(slots=20)

    assert [claim.limit for claim in stage.store.claims[:3]] == [20, 20, 20]


@virtual
async def test_a_job_that_ends_at_once_is_settled_before_its_worker_says_that_it_waits(stage: Stage):
    wait = stage.store.wait

    async def noted(queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        stage.store.calls.append("wait")
        await wait(queues, tasks, timeout)

    stage.store.wait = noted  # type: ignore[method-assign]

    @stage.app.task(max_attempts=1)
    async def quick() -> None:
        pass

    async with stage.working(slots=2):
        await until(lambda: "wait" in stage.store.calls)
        stage.store.calls.clear()
        job = await quick.enqueue()
        await stage.until(job.id)
        await until(lambda: "wait" in stage.store.calls)

    calls = [name for name in stage.store.calls if name in ("claim", "settle", "wait")]
    assert calls[:3] == ["claim", "settle", "wait"]
