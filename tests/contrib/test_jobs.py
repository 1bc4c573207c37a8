"""The part of the integrations that needs no orchestrator: the same ids on a retry, waiting, and collecting."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from millrace import App, InvalidInput, Job, JobFailed, JobNotFound, ResultExpired
from millrace.contrib import jobs
from millrace.domain.job import State
from tests.narrowing import the


@pytest.fixture
async def app():
    async with App("memory://") as app:
        yield app


@pytest.fixture
def worker(app: App):
    """A worker whose app, unlike that of the caller, has the handlers."""
    workers = App(app.store)

    @workers.task(name="double", max_attempts=1)
    async def double(number: int) -> int:
        if number < 0:
            raise ValueError(f"{number} is negative")
        return 2 * number

    return workers.worker(burst=True)


async def submit(app: App, payload: jobs.Payload, **options: Any) -> list[str]:
    specs = jobs.job_specs(app, "double", payload, "step", {"max_attempts": 1, **options})
    return [answer.id for answer in await jobs.submit(app, specs)]


async def states(app: App, ids: list[str]) -> list[State]:
    return [the(job).state for job in await app.jobs.get(ids)]


def test_an_id_depends_on_every_part():
    ids = {jobs.derived_id(*parts) for parts in (("a", "b", -1), ("a", "b", 0), ("ab", "", -1), ("a", "b"))}

    assert len(ids) == 4
    assert jobs.derived_id("a", "b", -1) in ids


async def test_a_dict_is_one_job_and_a_list_is_many(app: App):
    assert await submit(app, {"number": 1}) == ["step"]
    assert await submit(app, [{"number": 1}, {"number": 2}]) == ["step-0", "step-1"]
    assert await submit(app, []) == []


async def test_a_retry_waits_for_the_jobs_of_the_try_before_it(app: App):
    ids = await submit(app, [{"number": 1}, {"number": 2}])
    again = await submit(app, [{"number": 1}, {"number": 2}])

    assert again == ids
    assert [counts.waiting for counts in await app.jobs.count()] == [2]


async def test_a_retry_enqueues_only_the_jobs_that_died(app: App, worker):
    ids = await submit(app, [{"number": 1}, {"number": -2}])
    await worker.run()
    assert await states(app, ids) == [State.COMPLETED, State.DEAD]

    assert await submit(app, [{"number": 1}, {"number": -2}]) == ids
    assert await states(app, ids) == [State.COMPLETED, State.WAITING]


async def test_if_another_job_holds_the_key_it_is_the_one_to_wait_for(app: App):
    [other] = await app.enqueue([*jobs.job_specs(app, "double", {"number": 1}, "other", {"key": "k"})])

    assert await submit(app, {"number": 1}, key="k") == [other.id]


async def test_the_wait_ends_when_all_jobs_have_finished(app: App, worker):
    ids = await submit(app, [{"number": number} for number in (1, -2, 3)])
    waiting = asyncio.ensure_future(jobs.wait_until_finished(app, ids))
    assert not await jobs.have_finished(app, ids)

    await worker.run()

    await asyncio.wait_for(waiting, 30)
    assert await jobs.have_finished(app, ids)


async def test_a_wait_for_many_jobs_reads_them_a_few_times(app: App, worker, monkeypatch):
    monkeypatch.setattr(jobs, "CHUNK", 100)
    ids = await submit(app, [{"number": number} for number in range(300)])
    read, get = [], app.store.get

    async def counting(ids: Sequence[str]) -> list[Job | None]:
        read.append(len(ids))
        return await get(ids)

    monkeypatch.setattr(app.store, "get", counting)
    waiting = asyncio.ensure_future(jobs.wait_until_finished(app, ids))
    await worker.run()
    await asyncio.wait_for(waiting, 30)

    assert 3 <= read.count(100) <= 3 * 11  # at worst, once for each job that ran beside the last one


async def test_the_results_are_in_the_order_of_the_payload(app: App, worker, monkeypatch):
    monkeypatch.setattr(jobs, "CHUNK", 2)
    ids = await submit(app, [{"number": number} for number in (5, 1, 3)])
    await worker.run()

    assert await jobs.collect(app, ids) == [10, 2, 6]
    assert await jobs.collect(app, ids, "ids") == ids


async def test_one_job_that_failed_raises_its_own_error(app: App, worker):
    ids = await submit(app, {"number": -1})
    await worker.run()

    with pytest.raises(JobFailed, match="ValueError: -1 is negative"):
        await jobs.collect(app, ids)


async def test_of_many_jobs_that_failed_the_error_shows_the_first(app: App, worker):
    ids = await submit(app, [{"number": 1 - number} for number in range(9)])
    await worker.run()

    with pytest.raises(jobs.JobsNotCompleted, match="7 of 9 jobs did not complete") as error:
        await jobs.collect(app, ids)
    assert "ValueError: -1 is negative" in str(error.value)
    assert str(error.value).endswith("and 2 more jobs")
    assert len(error.value.errors) == 7


async def test_a_result_that_is_no_longer_kept_is_an_error_only_if_results_are_wanted(app: App, worker):
    ids = await submit(app, {"number": 1}, keep_result=0)
    await worker.run()

    assert await jobs.collect(app, ids, "ids") == ids
    with pytest.raises(ResultExpired):
        await jobs.collect(app, ids)


async def test_a_job_that_was_deleted_does_not_block_the_wait(app: App, worker):
    ids = await submit(app, [{"number": 1}, {"number": 2}])
    await worker.run()
    await app.jobs.delete(ids)

    await asyncio.wait_for(jobs.wait_until_finished(app, ids), 30)
    with pytest.raises(jobs.JobsNotCompleted):
        await jobs.collect(app, ids)


async def test_a_job_that_does_not_exist_yet_has_not_finished(app: App, worker, monkeypatch):
    monkeypatch.setattr(jobs, "MISSING_POLL", 0)
    waiting = asyncio.ensure_future(jobs.wait_until_finished(app, ["step"], allow_missing=True))
    assert not await jobs.have_finished(app, ["step"])
    with pytest.raises(JobNotFound):
        await jobs.collect(app, ["step"])

    await submit(app, {"number": 1})
    await worker.run()

    await asyncio.wait_for(waiting, 30)
    assert await jobs.have_finished(app, ["step"])


async def test_a_cancel_stops_the_jobs_that_wait(app: App):
    ids = await submit(app, [{"number": 1}, {"number": 2}])

    await jobs.cancel(app, [*ids, "unknown"])

    assert await states(app, ids) == [State.CANCELLED, State.CANCELLED]


@pytest.mark.parametrize("payload", ["text", 7, [{"number": 1}, 2], None])
async def test_a_payload_of_another_shape_is_refused(app: App, payload):
    with pytest.raises(InvalidInput, match="dict of arguments"):
        jobs.job_specs(app, "double", payload, "step", {})


async def test_an_id_among_the_options_is_refused(app: App):
    with pytest.raises(InvalidInput, match="set job_id"):
        jobs.job_specs(app, "double", {}, "step", {"id": "mine"})
