"""When a worker asks for work: at once when told, patiently when there is none, fairly over its queues."""

from __future__ import annotations

import asyncio

import pytest

from millrace.worker.backoff import Backoff, spread
from millrace.worker.dispatcher import ALONE_EVERY, Rotation
from tests.worker.stage import Stage, virtual


def test_a_poll_doubles_up_to_its_most_and_starts_over_after_a_success():
    poll = Backoff(0.1, 5.0, chance=lambda: 1.0)

    assert [round(poll.next(), 1) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    poll.reset()
    assert poll.next() == pytest.approx(0.1)


# BL-07
def test_polls_and_timers_are_spread_so_that_no_two_workers_stay_in_step():
    assert Backoff(0.1, 5.0, chance=lambda: 0.0).next() == pytest.approx(0.05)
    assert spread(10, lambda: 0.0) == pytest.approx(8)
    assert spread(10, lambda: 1.0) == pytest.approx(12)


def test_every_eighth_claim_asks_one_queue_alone_each_in_its_turn():  # BL-09
    rotation = Rotation(("a", "b", "c"))

    asked = [rotation.next() for _ in range(ALONE_EVERY * 4)]

    assert [queues for queues in asked if len(queues) == 1] == [("b",), ("c",), ("a",), ("b",)]
    assert asked.count(("a", "b", "c")) == ALONE_EVERY * 4 - 4


@virtual
async def test_a_queue_is_served_although_another_has_always_something_better(stage: Stage):  # BL-09
    @stage.app.task(queue="loud", priority=9)
    async def shout() -> None:
        await asyncio.sleep(1)

    @stage.app.task(queue="quiet")
    async def whisper() -> None: ...

    await shout.enqueue_many([{}] * 1_000)
    job = await whisper.enqueue()
    async with stage.working(slots=1) as worker:
        await stage.until(job.id)
        assert worker.stats.completed < 3 * ALONE_EVERY
        await worker.stop(deadline=0)


@virtual
async def test_an_idle_worker_polls_less_and_less(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    async with stage.working(poll_min=0.1, poll_max=5.0):
        await asyncio.sleep(60)

        assert 10 < len(stage.store.claims) < 40


@virtual
async def test_after_a_job_the_poll_is_eager_again(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    stage.store.wait = _deaf(stage)  # type: ignore[method-assign]
    async with stage.working(poll_min=0.1, poll_max=5.0):
        await asyncio.sleep(60)
        first = await work.enqueue()
        await stage.until(first.id)
        again = await work.enqueue()
        enqueued = asyncio.get_running_loop().time()
        await stage.until(again.id)

        assert asyncio.get_running_loop().time() - enqueued < 0.3


def _deaf(stage: Stage):
    """A store that never notifies: polling alone is correct."""

    async def wait(queues: object, tasks: object, timeout: float) -> None:
        await asyncio.sleep(timeout)

    return wait


@virtual
async def test_a_notification_ends_the_wait_at_once(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    async with stage.working(poll_min=50.0, poll_max=50.0):
        await asyncio.sleep(1)
        enqueued = asyncio.get_running_loop().time()
        job = await work.enqueue()
        await stage.until(job.id)

        assert asyncio.get_running_loop().time() - enqueued < 0.1


@virtual
async def test_a_job_that_comes_between_a_claim_and_the_wait_is_not_slept_over(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    came: list[str] = []

    async def meanwhile() -> None:
        if len(stage.store.claims) == 3:
            came.append((await work.enqueue()).id)

    stage.store.after_claim = meanwhile
    async with stage.working(poll_min=50.0, poll_max=50.0, reap_interval=1_000):
        await asyncio.sleep(200)
        [job_id] = came
        history = await stage.store.history(job_id)

    assert history[1].at - history[0].at < 100


@virtual
async def test_a_scheduled_job_starts_when_it_is_due_not_at_the_next_poll(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    job = await work.options(delay=17).enqueue()
    async with stage.working(poll_min=50.0, poll_max=50.0):
        await stage.until(job.id)
        history = await stage.store.history(job.id)

    assert history[1].at - history[0].at == pytest.approx(17_000, abs=100)


@virtual
async def test_a_wait_that_returns_at_once_for_nothing_does_not_make_the_worker_spin(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    async def hasty(queues: object, tasks: object, timeout: float) -> None:
        return None

    stage.store.wait = hasty  # type: ignore[method-assign]
    async with stage.working():
        await asyncio.sleep(10)

        assert len(stage.store.claims) < 1_500


@virtual
async def test_a_wait_that_fails_leaves_the_poll(stage: Stage):
    @stage.app.task
    async def work() -> None: ...

    async def broken(queues: object, tasks: object, timeout: float) -> None:
        raise ConnectionError("gone")

    stage.store.wait = broken  # type: ignore[method-assign]
    async with stage.working():
        await asyncio.sleep(5)
        job = await work.enqueue()
        await stage.until(job.id, timeout=5)
