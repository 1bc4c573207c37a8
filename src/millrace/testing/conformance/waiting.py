"""Wake-ups: a waiting call of a worker or of a watcher returns when there is something for it, and each new job wakes a
worker.

These tests run in real time. A wait lasts at most `PATIENCE` seconds, so a call that returns clearly earlier was woken.
A call that must not be woken waits for `SHORT` seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_retry_change, a_spec, seconds, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    finish,
    put,
    put_completed,
    put_running,
    retry,
    take,
)

PATIENCE = 60.0
SHORT = 0.05
DELAY = 0.1  # seconds until a job is due; then the clock is advanced


async def woken(waiting: Awaitable[object], action: Callable[[], Awaitable[object]]) -> bool:
    """Start the call `waiting`, then run `action`. Return whether the call returned before its timeout."""
    sleeper = asyncio.ensure_future(waiting)
    await asyncio.sleep(SHORT)
    assert not sleeper.done(), "it did not sleep at all"
    await action()
    begun = time.monotonic()
    await sleeper
    return time.monotonic() - begun < PATIENCE * 0.8


async def test_a_worker_sleeps_while_there_is_nothing(store: Store, clock: VirtualClock) -> None:
    begun = time.monotonic()
    await store.wait(["default"], None, SHORT)

    assert time.monotonic() - begun >= SHORT * 0.8


async def test_a_worker_does_not_sleep_over_a_job_that_is_there(store: Store, clock: VirtualClock) -> None:
    """A wait returns at once if a job can already be claimed, for example because it was enqueued after the last
    claim.
    """
    await put(store)
    begun = time.monotonic()
    await store.wait(["other", "default"], None, PATIENCE)

    assert time.monotonic() - begun < PATIENCE * 0.8


async def test_an_enqueue_wakes_a_worker(store: Store, clock: VirtualClock) -> None:
    """An enqueue ends the wait of an idle worker."""
    assert await woken(store.wait(["default"], None, PATIENCE), lambda: put(store))


async def test_a_batch_wakes_as_many_workers_as_it_has_jobs(store: Store, clock: VirtualClock) -> None:
    sleepers = [asyncio.ensure_future(store.wait(["default"], None, PATIENCE)) for _ in range(4)]
    await asyncio.sleep(SHORT)
    begun = time.monotonic()
    await store.enqueue(specs(4))
    await asyncio.gather(*sleepers)

    assert time.monotonic() - begun < PATIENCE * 0.8


async def test_two_jobs_one_after_the_other_wake_two_workers(store: Store, clock: VirtualClock) -> None:
    """Two enqueues wake two waiting workers."""
    sleepers = [asyncio.ensure_future(store.wait(["default"], None, PATIENCE)) for _ in range(2)]
    await asyncio.sleep(SHORT)
    begun = time.monotonic()
    await put(store)
    await put(store)
    await asyncio.gather(*sleepers)

    assert time.monotonic() - begun < PATIENCE * 0.8


async def test_the_next_due_job_ends_the_sleep(store: Store, clock: VirtualClock) -> None:
    """A wait ends when a delayed job becomes due."""
    await put(store, delay=0.1)
    begun = time.monotonic()
    await store.wait(["default"], None, PATIENCE)

    assert 0.05 <= time.monotonic() - begun < PATIENCE * 0.8


@pytest.mark.parametrize("spec", [{}, {"group": "g"}, {"key": "k"}], ids=["plain", "group", "key"])
@pytest.mark.parametrize("by", ["enqueue", "retry", "snooze"])
async def test_a_sleeper_is_woken_when_a_delayed_job_that_came_meanwhile_is_due(
    store: Store, clock: VirtualClock, by: str, spec: dict[str, Any]
) -> None:
    """A job that is delayed during a wait, by an enqueue, a retry or a snooze, ends the wait when it becomes due."""
    running = None if by == "enqueue" else await put_running(store, **spec)
    sleeper = asyncio.ensure_future(_until_taken(store))
    await asyncio.sleep(SHORT)
    assert not sleeper.done(), "it did not sleep at all"
    begun = time.monotonic()
    if running is None:
        await put(store, delay=DELAY, **spec)
    else:
        await finish(store, running, a_retry_change(DELAY) if by == "retry" else Change.snooze(seconds(DELAY)))
    await asyncio.sleep(DELAY)
    assert not sleeper.done(), "it was due before its time"
    clock.advance(DELAY)
    await sleeper

    assert time.monotonic() - begun < PATIENCE * 0.8


async def test_a_sleeper_of_a_limited_queue_is_woken_when_a_delayed_group_member_is_due(
    store: Store, clock: VirtualClock
) -> None:
    """A member that waits behind its group does not end the wait. A member of another group ends it when it is due."""
    await control(store, max_running=9)
    await store.enqueue(specs(2, group="g"))
    await take(store)
    await put(store, delay=DELAY, group="h")
    begun = time.monotonic()
    await store.wait(["default"], None, PATIENCE)

    assert DELAY * 0.5 <= time.monotonic() - begun < PATIENCE * 0.8


async def _until_taken(store: Store) -> None:
    """Alternate between claim and wait, like an idle worker, until a claim returns a job."""
    while not await store.claim(a_claim()):
        await store.wait(["default"], None, PATIENCE)


async def test_a_resume_wakes_a_worker(store: Store, clock: VirtualClock) -> None:
    await control(store, paused=True)
    await put(store)

    assert await woken(store.wait(["default"], None, PATIENCE), lambda: control(store, paused=False))


async def test_the_end_of_a_run_wakes_who_waits_for_room(store: Store, clock: VirtualClock) -> None:
    await control(store, max_running=1)
    await store.enqueue(specs(2))
    job = await take(store)

    assert await woken(store.wait(["default"], None, PATIENCE), lambda: complete(store, job))


async def test_the_end_of_a_run_wakes_who_waits_for_its_group(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(2, group="g"))
    job = await take(store)

    assert await woken(store.wait(["default"], None, PATIENCE), lambda: complete(store, job))


async def test_a_completion_wakes_who_waits_for_the_child(store: Store, clock: VirtualClock) -> None:
    parent = await put(store, queue="a")
    await put(store, queue="b", after=(parent.id,))
    job = await take(store, queue="a")

    assert await woken(store.wait(["b"], None, PATIENCE), lambda: complete(store, job))


async def test_a_released_or_replayed_job_wakes_a_worker(store: Store, clock: VirtualClock) -> None:
    spec = await put_completed(store)
    assert await woken(store.wait(["default"], None, PATIENCE), lambda: store.replay([spec.id]))
    job = await take(store)

    assert await woken(store.wait(["default"], None, PATIENCE), lambda: retry(store, job))


async def test_a_worker_sleeps_while_only_other_tasks_are_there(store: Store, clock: VirtualClock) -> None:
    await put(store, task="strange")
    begun = time.monotonic()
    await store.wait(["default"], frozenset({"known"}), SHORT)

    assert time.monotonic() - begun >= SHORT * 0.8


async def test_a_worker_sleeps_while_the_queue_is_full_up(store: Store, clock: VirtualClock) -> None:
    await control(store, max_running=1)
    await store.enqueue(specs(2))
    await take(store)
    begun = time.monotonic()
    await store.wait(["default"], None, SHORT)

    assert time.monotonic() - begun >= SHORT * 0.8


@pytest.mark.parametrize("tasks", [None, {"work"}], ids=["every task", "its task"])
async def test_a_worker_sleeps_while_the_task_is_full_up(
    store: Store, clock: VirtualClock, tasks: set[str] | None
) -> None:
    known = None if tasks is None else frozenset(tasks)
    await store.control("task", "work", {"max_running": 1})
    await store.enqueue(specs(2))
    await take(store)
    begun = time.monotonic()
    await store.wait(["default"], known, SHORT)

    assert time.monotonic() - begun >= SHORT * 0.8


async def test_a_sleeper_that_gives_up_takes_nobodys_wake_up(store: Store, clock: VirtualClock) -> None:
    """A cancelled wait does not use up the wake-up of another worker."""
    given_up = asyncio.ensure_future(store.wait(["default"], None, PATIENCE))
    staying = asyncio.ensure_future(store.wait(["default"], None, PATIENCE))
    await asyncio.sleep(SHORT)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    begun = time.monotonic()
    await put(store)
    await staying

    assert time.monotonic() - begun < PATIENCE * 0.8


@pytest.mark.parametrize("end", ["completed", "dead", "cancelled", "expired"])
async def test_a_watcher_is_woken_when_the_job_ends(store: Store, clock: VirtualClock, end: str) -> None:
    """Every way in which a job can end wakes a caller that watches the job."""
    spec = await put(store, expires=60)

    async def act() -> None:
        if end == "completed":
            await complete(store, await take(store))
        elif end == "dead":
            await bury(store, await take(store))
        elif end == "cancelled":
            await store.cancel([spec.id])
        else:
            clock.advance(61)
            await store.claim(a_claim())

    async with store.watch(spec.id) as watch:
        assert await woken(watch.wait(PATIENCE), act)


async def test_a_watcher_set_up_before_misses_nothing(store: Store, clock: VirtualClock) -> None:
    """If the job ends after the watch has begun but before `wait` is called, `wait` returns at once."""
    spec = a_spec()
    async with store.watch(spec.id) as watch:
        await store.enqueue([spec])
        await complete(store, await take(store))
        begun = time.monotonic()
        await watch.wait(PATIENCE)

        assert time.monotonic() - begun < PATIENCE * 0.8


async def test_a_watcher_sleeps_no_longer_than_asked(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    async with store.watch(spec.id) as watch:
        begun = time.monotonic()
        await watch.wait(SHORT)
        await watch.wait(SHORT)

    assert SHORT <= time.monotonic() - begun < PATIENCE * 0.8


async def test_many_watchers_of_one_job_are_all_woken(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    async with store.watch(spec.id) as one, store.watch(spec.id) as two:
        sleepers = [asyncio.ensure_future(watch.wait(PATIENCE)) for watch in (one, two)]
        await asyncio.sleep(SHORT)
        begun = time.monotonic()
        await complete(store, await take(store))
        await asyncio.gather(*sleepers)

    assert time.monotonic() - begun < PATIENCE * 0.8


async def test_a_watcher_is_not_woken_by_other_jobs(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, delay=60)
    async with store.watch(spec.id) as watch:
        await put_completed(store)
        begun = time.monotonic()
        await watch.wait(SHORT)

    assert time.monotonic() - begun >= SHORT * 0.8


async def test_polling_alone_is_correct(store: Store, clock: VirtualClock) -> None:
    """Claims find all jobs without any wait or wake-up."""
    asked = specs(3)
    await store.enqueue(asked)

    assert [job.id for _ in asked for job in await store.claim(a_claim())] == [spec.id for spec in asked]
