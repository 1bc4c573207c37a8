"""Cancelling: a waiting job is cancelled at once and never starts; a running job can be requested to stop."""

from __future__ import annotations

import pytest

from millrace.domain.change import Change
from millrace.domain.job import State
from millrace.domain.request import Cancelled, Receipt
from millrace.store.protocol import Store
from millrace.testing.builders import a_burial, a_reclaim, a_retry_change, an_extension, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    count,
    finish,
    kinds,
    put,
    put_cancelled,
    put_completed,
    put_dead,
    retry,
    settle,
    show,
    take,
    take_ids,
)


async def test_a_cancelled_job_never_starts(store: Store, clock: VirtualClock) -> None:
    """A waiting job becomes cancelled, and no claim returns it."""
    spec = await put(store)
    assert await store.cancel([spec.id]) == [Cancelled.CANCELLED]

    assert await take_ids(store) == []
    job = await show(store, spec)
    assert (job.state, job.finished_at, job.attempt) == (State.CANCELLED, clock(), 0)
    assert await kinds(store, spec) == ["enqueued", "cancelled"]


async def test_a_job_in_backoff_can_be_cancelled(store: Store, clock: VirtualClock) -> None:
    """A job that waits for its retry becomes cancelled and does not run again."""
    spec = await put(store)
    await retry(store, await take(store), delay=5)
    assert await store.cancel([spec.id]) == [Cancelled.CANCELLED]
    clock.advance(6)

    assert await take_ids(store) == []


async def test_a_running_job_refuses_to_be_cancelled(store: Store, clock: VirtualClock) -> None:
    """By default, cancelling a running job returns RUNNING and leaves its run alone."""
    await put(store)
    job = await take(store)
    assert await store.cancel([job.id]) == [Cancelled.RUNNING]

    assert await store.extend([an_extension(job)]) == [Receipt.OK]
    await complete(store, job)


async def test_every_state_gives_its_answer(store: Store, clock: VirtualClock) -> None:
    """The answer to a cancel depends on the state of the job, or says that there is no such job."""
    done, dead, gone = await put_completed(store), await put_dead(store), await put_cancelled(store)
    running = await put(store)
    await take(store)
    waiting = await put(store)

    answers = await store.cancel([waiting.id, running.id, done.id, dead.id, gone.id, "nobody"])

    assert [answer.value for answer in answers] == [
        "cancelled",
        "running",
        "completed",
        "dead",
        "cancelled",
        "not_found",
    ]


async def test_cancelling_twice_is_one_event(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)

    assert await store.cancel([spec.id, spec.id]) == [Cancelled.CANCELLED] * 2
    assert await kinds(store, spec) == ["enqueued", "cancelled"]


async def test_a_request_reaches_the_worker_with_its_next_extension(store: Store, clock: VirtualClock) -> None:
    """After a cancel with running="request", the next extend returns CANCELLING."""
    await put(store)
    job = await take(store)
    assert await store.cancel([job.id], "request") == [Cancelled.REQUESTED]

    assert await store.extend([an_extension(job)]) == [Receipt.CANCELLING]
    assert (await show(store, job)).cancel_requested
    assert await settle(store, job, Change.cancel()) is Receipt.CANCELLING
    cancelled = await show(store, job)
    assert (cancelled.state, cancelled.reason, cancelled.cancel_requested) == (State.CANCELLED, "requested", False)


@pytest.mark.parametrize("change", [a_retry_change(), Change.snooze(0), Change.release()], ids=lambda c: c.verb.value)
async def test_a_job_that_is_to_be_cancelled_does_not_go_back_to_waiting(
    store: Store, clock: VirtualClock, change: Change
) -> None:
    spec = await put(store)
    job = await take(store)
    await store.cancel([job.id], "request")

    assert await settle(store, job, change) is Receipt.CANCELLING
    assert (await show(store, spec)).state is State.CANCELLED
    assert await take_ids(store) == []
    assert await kinds(store, spec) == ["enqueued", "claimed", "cancelled"]


async def test_a_run_that_ends_before_the_request_reaches_it_counts(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(2))
    first, second = await take(store), await take(store)
    await store.cancel([first.id, second.id], "request")

    assert await settle(store, first, Change.completed(b"1")) is Receipt.OK
    assert await settle(store, second, a_burial()) is Receipt.OK
    assert [(await show(store, job)).state for job in (first, second)] == [State.COMPLETED, State.DEAD]


async def test_a_request_survives_the_loss_of_the_worker(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    await take(store, lease=30)
    await store.cancel([spec.id], "request")
    clock.advance(31)
    [lost] = await store.reclaim(a_reclaim())

    assert await settle(store, lost, a_retry_change(stalled=1)) is Receipt.CANCELLING
    assert (await show(store, spec)).state is State.CANCELLED


async def test_a_request_ends_with_the_run(store: Store, clock: VirtualClock) -> None:
    """A cancellation requested for an earlier run does not apply to the job after it was replayed."""
    spec = await put(store)
    job = await take(store)
    await store.cancel([job.id], "request")
    await bury(store, job)
    await store.replay([spec.id])

    assert await store.extend([an_extension(await take(store))]) == [Receipt.OK]


async def test_cancelling_a_waiting_job_is_at_once_also_on_request(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)

    assert await store.cancel([spec.id], "request") == [Cancelled.CANCELLED]


async def test_counts_tell_of_cancelled_jobs(store: Store, clock: VirtualClock) -> None:
    asked = specs(3)
    await store.enqueue(asked)
    await store.cancel([spec.id for spec in asked[:2]])

    counts = await count(store)
    assert (counts.waiting, counts.cancelled, counts.processed, counts.died) == (1, 2, 0, 0)


async def test_a_worker_may_settle_as_cancelled_by_itself(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    await finish(store, await take(store), Change.cancel())

    assert (await show(store, spec)).state is State.CANCELLED
