"""W-46: clock, storage and alarm are handed in, so that a test can hold them still or break them."""

from __future__ import annotations

import asyncio

import pytest

from millrace import App, StoreError
from millrace.domain.job import State
from millrace.store.memory import MemoryStore
from millrace.testing.clock import VirtualClock
from millrace.testing.faults import Fault, FaultyStore, scripted
from tests.narrowing import the
from tests.worker.stage import Stage, virtual


async def test_a_clock_that_is_handed_in_decides_what_is_due_and_no_other_does():
    clock = VirtualClock()
    app = App(MemoryStore(clock=clock))

    @app.task
    async def work() -> None: ...

    async with app:
        job = await work.options(delay=3600).enqueue()
        await app.worker(burst=True).run(handle_signals=False)
        assert the(await app.jobs.get(job.id)).state == "scheduled"

        clock.advance(3599.999)
        await app.worker(burst=True).run(handle_signals=False)
        assert the(await app.jobs.get(job.id)).state == "scheduled"

        clock.advance(0.001)
        await app.worker(burst=True).run(handle_signals=False)
        ended = the(await app.jobs.get(job.id))
    record = ended.record
    assert (record.state, record.enqueued_at, record.finished_at) == (State.COMPLETED, clock() - 3_600_000, clock())


async def test_a_storage_that_fails_is_told_to_the_caller_and_leaves_nothing():
    store = FaultyStore(MemoryStore(), scripted(("enqueue", 1, Fault.BEFORE)))
    app = App(store)

    @app.task
    async def work() -> None: ...

    async with app:
        with pytest.raises(StoreError, match="injected fault: enqueue"):
            await work.options(id="one").enqueue()
        assert await store.get(["one"]) == [None]

        again = await work.options(id="one").enqueue()
        await app.worker(burst=True).run(handle_signals=False)
        assert the(await app.jobs.get(again.id)).state == "completed"


@pytest.mark.parametrize("broken", ["claim", "settle", "reclaim", "beat"])
def test_a_worker_outlives_a_storage_that_fails_for_a_while(broken):
    @virtual
    async def story(stage: Stage) -> None:
        @stage.app.task
        async def work() -> None: ...

        job = await work.enqueue()
        stage.store.failing[broken] = StoreError("it went away")
        async with stage.working():
            await asyncio.sleep(20)
            stage.store.failing.clear()
            assert (await stage.until(job.id)).state == "completed"

    story()


@pytest.mark.parametrize("alarm", ["silent", "failing"])
def test_an_alarm_that_never_rings_or_fails_only_costs_time(alarm):
    @virtual
    async def story(stage: Stage) -> None:
        async def wait(queues: object, tasks: object, timeout: float) -> None:
            if alarm == "failing":
                raise StoreError("no alarm")
            await asyncio.sleep(timeout)

        stage.store.wait = wait  # type: ignore[method-assign]

        @stage.app.task
        async def work() -> None: ...

        async with stage.working():
            await asyncio.sleep(30)
            job = await work.enqueue()
            assert (await stage.until(job.id, timeout=60)).state == "completed"

    story()


@virtual
async def test_each_job_goes_to_the_handler_of_its_task_and_to_no_other(stage: Stage):
    ran: list[tuple[str, int]] = []

    def register(name: str) -> None:
        @stage.app.task(name=name)
        async def handler(number: int) -> None:
            ran.append((name, number))

    names = [f"task-{n}" for n in range(5)]
    for name in names:
        register(name)
    sent = [(names[number % 5], number) for number in range(25)]
    for name, number in sent:
        await stage.app.tasks[name].enqueue(number)
    await stage.burst(slots=3)

    assert sorted(ran) == sorted(sent)
