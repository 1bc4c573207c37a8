"""Which waiting worker is woken: one that can run the job, even if others have waited longer.

Workers in these tests wait for a minute. If the wrong one is woken, the test exceeds `DEADLINE` and fails. In a store
that polls more often than `DEADLINE`, this fault does not show.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from millrace.domain.change import Change
from millrace.domain.request import Extension, Receipt
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import complete, control, put, retry, settle, take

DEADLINE = 45.0
NEVER = 60.0
SHORT = 0.1

Wanted = tuple[Sequence[str], frozenset[str] | None]
A, B = frozenset({"a"}), frozenset({"b"})


@asynccontextmanager
async def asleep(store: Store, *wanted: Wanted) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Start one waiting call for each pair of queues and tasks, in order. Yield the asyncio tasks of these calls."""
    sleepers: list[asyncio.Task[None]] = []
    for queues, tasks in wanted:
        sleepers.append(asyncio.create_task(store.wait(queues, tasks, NEVER)))
        await asyncio.sleep(SHORT)
    assert not any(sleeper.done() for sleeper in sleepers), "it did not sleep at all"
    try:
        yield sleepers
    finally:
        for sleeper in sleepers:
            sleeper.cancel()
        await asyncio.gather(*sleepers, return_exceptions=True)


async def woke(sleeper: asyncio.Task[None]) -> bool:
    done, _ = await asyncio.wait([sleeper], timeout=DEADLINE)
    return bool(done)


async def test_a_hint_goes_to_a_sleeper_that_knows_the_task(store: Store, clock: VirtualClock) -> None:
    """A new job wakes a worker that has its task, even if a worker with other tasks has waited longer."""
    async with asleep(store, (["default"], B), (["default"], A), (["default"], B)) as (_, knows, _also_not):
        await put(store, task="a")

        assert await woke(knows)


async def test_each_job_of_a_batch_wakes_a_sleeper_that_knows_its_task(store: Store, clock: VirtualClock) -> None:
    wanted = [(["default"], tasks) for tasks in (B, A, B, A)]
    async with asleep(store, *wanted) as sleepers:
        await store.enqueue([spec for task in ("a", "b") for spec in specs(2, task=task)])

        assert [await woke(sleeper) for sleeper in sleepers] == [True] * 4


async def test_a_group_enqueued_in_one_call_wakes_a_sleeper_that_knows_its_first_member(
    store: Store, clock: VirtualClock
) -> None:
    known, members = [
        [a_spec(task="b", group=group), a_spec(task="a", group=group, priority=1), a_spec(task="b", group=group)]
        for group in "gh"
    ]
    await store.enqueue(known)  # the store knows these tasks from here on
    await store.cancel([spec.id for spec in known])
    async with asleep(store, (["default"], B), (["default"], A)) as (_, knows):
        await store.enqueue(members)

        assert await woke(knows)


async def test_a_sleeper_that_knows_every_task_is_woken_too(store: Store, clock: VirtualClock) -> None:
    async with asleep(store, (["default"], B), (["other", "default"], None)) as (_, knows):
        await put(store, task="a")

        assert await woke(knows)


async def test_a_retry_wakes_a_sleeper_that_knows_the_task(store: Store, clock: VirtualClock) -> None:
    await put(store, task="a")
    job = await take(store)
    async with asleep(store, (["default"], B), (["default"], A)) as (_, knows):
        await retry(store, job)

        assert await woke(knows)


async def test_a_resume_wakes_a_sleeper_that_knows_what_waits(store: Store, clock: VirtualClock) -> None:
    await control(store, paused=True)
    await put(store, task="a")
    async with asleep(store, (["default"], B), (["default"], A)) as (_, knows):
        await control(store, paused=False)

        assert await woke(knows)


async def test_room_in_a_queue_wakes_a_sleeper_that_knows_what_waits(store: Store, clock: VirtualClock) -> None:
    await control(store, max_running=1)
    await put(store, task="b")
    job = await take(store)
    await put(store, task="a")
    async with asleep(store, (["default"], B), (["default"], A)) as (_, knows):
        await complete(store, job)

        assert await woke(knows)


async def test_room_under_the_limit_of_a_task_wakes_a_sleeper_of_another_queue(
    store: Store, clock: VirtualClock
) -> None:
    """When a run ends, its task is below `max_running` again. This wakes a worker even if the next job is in another
    queue.
    """
    await store.control("task", "a", {"max_running": 1})
    await put(store, task="a", queue="here")
    job = await take(store, queue="here")
    await put(store, task="a", queue="there")
    async with asleep(store, (["here"], A), (["empty"], A), (["there"], A)) as (*_, there):
        await complete(store, job)

        assert await woke(there)


async def test_a_wider_limit_of_a_task_wakes_who_waits_for_it(store: Store, clock: VirtualClock) -> None:
    await store.control("task", "a", {"max_running": 1})
    await put(store, task="a", queue="here")
    await take(store, queue="here")
    await put(store, task="a", queue="there")
    async with asleep(store, (["here"], A), (["there"], B), (["there"], A)) as (*_, there):
        await store.control("task", "a", {"max_running": 2})

        assert await woke(there)


async def test_a_higher_rate_wakes_who_waits_for_it(store: Store, clock: VirtualClock) -> None:
    await control(store, rate=1 / 3600, burst=1)
    await store.enqueue(specs(2, task="a"))
    await take(store)
    async with asleep(store, (["default"], B), (["default"], A)) as (_, knows):
        await control(store, rate=None)

        assert await woke(knows)


async def test_a_delayed_job_is_not_slept_over_by_who_fell_asleep_before_it_came(
    store: Store, clock: VirtualClock
) -> None:
    """A wait ends when a delayed job becomes due, even if that job was enqueued after the wait began."""
    async with asleep(store, (["default"], B), (["default"], A)) as (_, knows):
        await put(store, task="a", delay=1)

        assert await woke(knows)


async def test_who_holds_a_job_hears_that_it_is_to_be_cancelled(store: Store, clock: VirtualClock) -> None:
    """A cancel request wakes the worker that runs the job, so it need not wait for its next regular extend."""
    spec = await put(store)
    job = await take(store, worker="holder")
    hearing = await _hearing(store)

    await store.cancel([spec.id], "request")

    assert await asyncio.wait_for(hearing, DEADLINE)
    assert await store.extend([Extension(job.lease)]) == [Receipt.CANCELLING]
    await settle(store, job, Change.completed())


async def test_who_holds_a_job_hears_that_its_queue_is_obliterated(store: Store, clock: VirtualClock) -> None:
    await put(store)
    job = await take(store, worker="holder")
    hearing = await _hearing(store)

    await store.obliterate("default")

    assert await asyncio.wait_for(hearing, DEADLINE)
    assert await store.extend([Extension(job.lease)]) == [Receipt.LOST]


async def test_who_holds_a_job_sleeps_while_nothing_is_cancelled(store: Store, clock: VirtualClock) -> None:
    await put(store)
    await take(store, worker="holder")
    (await _hearing(store)).cancel()

    assert not await store.wait_for_cancel("holder", SHORT)
    assert not await store.wait_for_cancel("nobody", SHORT)


async def _hearing(store: Store) -> asyncio.Task[bool]:
    """Return an asyncio task that waits for a cancellation of a job of the worker `holder`.

    The first `wait_for_cancel` may return at once, because the store does not know which cancellations the worker has
    missed. Its result is ignored.
    """
    await store.wait_for_cancel("holder", SHORT)
    hearing = asyncio.create_task(store.wait_for_cancel("holder", NEVER))
    await asyncio.sleep(5 * SHORT)
    assert not hearing.done()
    return hearing
