"""Workers that end by themselves: after so many jobs, or when somebody says that this was all."""

from __future__ import annotations

import asyncio

import pytest

from millrace import InvalidInput, State
from tests.worker.stage import Stage, virtual


@virtual
async def test_a_worker_runs_so_many_jobs_and_stops_when_they_are_settled(stage: Stage):
    @stage.app.task
    async def work(n: int) -> None:
        await asyncio.sleep(1)

    answers = [await work.enqueue(n) for n in range(20)]
    worker = stage.worker(slots=3, max_jobs=7)
    await worker.run(handle_signals=False)

    states = [(await stage.job(answer.id)).state for answer in answers]
    assert states == [State.COMPLETED] * 7 + [State.WAITING] * 13
    assert worker.stats.claimed == 7


@virtual
async def test_its_share_of_jobs_bounds_batches_too(stage: Stage):
    sizes: list[int] = []

    @stage.app.batch_task(size=10)
    async def work(items: list[int]) -> None:
        sizes.append(len(items))

    for n in range(30):
        await work.enqueue(n)
    worker = stage.worker(slots=2, max_jobs=13)
    await worker.run(handle_signals=False)

    assert sum(sizes) == worker.stats.completed == 13


@virtual
async def test_a_job_that_fails_uses_up_its_share_like_any_other(stage: Stage):
    @stage.app.task(retry=["1s"])
    async def work() -> None:
        raise ValueError

    await work.enqueue()
    worker = stage.worker(max_jobs=2)
    await worker.run(handle_signals=False)

    assert (worker.stats.claimed, worker.stats.retried) == (2, 2)


@virtual
async def test_a_burst_asks_whether_that_was_all_and_goes_on_when_it_was_not(stage: Stage):
    asked: list[int] = []
    ran: list[int] = []

    @stage.app.task
    async def work(n: int) -> None:
        ran.append(n)

    async def is_all() -> bool:
        asked.append(len(ran))
        if len(asked) == 1:
            await work.options(delay=30).enqueue(2)
        if len(asked) == 2:
            raise ConnectionError("the store is away")
        return 2 in ran

    await work.enqueue(1)
    worker = stage.worker(burst=is_all)
    await worker.run(handle_signals=False)

    assert ran == [1, 2]
    assert asked[:2] == [1, 1] and asked[-1] == 2
    assert worker.stats.errors == 1


@virtual
async def test_a_burst_runs_a_job_that_became_due_while_it_asked_whether_that_was_all(stage: Stage):
    ran: list[int] = []

    @stage.app.task
    async def work(n: int) -> None:
        ran.append(n)

    async def is_all() -> bool:
        if ran == [1]:
            await work.enqueue(2)
        return True

    await work.enqueue(1)
    await stage.worker(burst=is_all).run(handle_signals=False)

    assert ran == [1, 2]


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
async def test_a_share_of_jobs_is_a_whole_number_from_one_up(number: object):
    with pytest.raises(InvalidInput, match="max_jobs must be a whole number from 1 up"):
        Stage().worker(max_jobs=number)
