"""Delays and expiry of jobs, measured by the store's clock."""

from __future__ import annotations

from millrace.domain.job import State, word
from millrace.domain.request import Cancelled
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    complete,
    control,
    count,
    kinds,
    put,
    retry,
    show,
    take,
    take_ids,
)


async def test_a_delayed_job_is_claimed_at_its_time_and_not_before(store: Store, clock: VirtualClock) -> None:
    """A delayed job can be claimed from the millisecond at which its delay ends."""
    spec = await put(store, delay=10)
    assert await take_ids(store) == []

    clock.advance(9.999)
    assert await take_ids(store) == []

    clock.advance(0.001)
    assert await take_ids(store) == [spec.id]


async def test_a_delayed_job_lets_others_pass(store: Store, clock: VirtualClock) -> None:
    await put(store, delay=10, priority=15)
    ready = await put(store)

    assert await take_ids(store) == [ready.id]


async def test_a_claim_over_tasks_takes_none_that_is_not_due(store: Store, clock: VirtualClock) -> None:
    await store.enqueue([a_spec(task=task, delay=10) for task in ("one", "two")])
    assert await take_ids(store, 2) == []

    clock.advance(10)
    assert len(await take_ids(store, 2)) == 2


async def test_the_store_clock_says_what_time_it_is(store: Store, clock: VirtualClock) -> None:
    """`Store.now` returns the time of the injected clock."""
    assert await store.now() == clock()
    clock.advance(5)
    assert await store.now() == clock()


async def test_a_clock_that_jumps_back_loses_no_job(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    clock.advance(-3600)
    assert await take_ids(store) == []

    clock.advance(3600)
    assert await take_ids(store) == [spec.id]


async def test_a_waiting_job_dies_when_its_time_to_live_is_over(store: Store, clock: VirtualClock) -> None:
    """A waiting job whose time to live (`expires`) is over becomes dead with the reason `ttl_expired`."""
    spec = await put(store, expires=60)
    clock.advance(60)
    assert await take_ids(store) == []

    job = await show(store, spec)
    assert (job.state, job.reason, job.failures, job.attempt) == (State.DEAD, "ttl_expired", 0, 0)
    assert job.finished_at == clock()
    assert await kinds(store, spec) == ["enqueued", "buried"]


async def test_a_job_is_claimed_until_its_time_to_live_is_over(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, expires=60)
    clock.advance(59.999)

    assert await take_ids(store) == [spec.id]


async def test_upkeep_buries_expired_jobs_where_nobody_claims(store: Store, clock: VirtualClock) -> None:
    await store.enqueue([*specs(3, expires=5), a_spec(expires=50), a_spec()])
    clock.advance(6)

    assert (await store.maintain()).expired == 3
    assert (await count(store)).dead == 3
    assert (await count(store)).waiting == 2


async def test_upkeep_works_in_bounded_rounds_and_says_when_there_is_more(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(5, expires=5))
    clock.advance(6)

    first, second, third = [await store.maintain(limit=2) for _ in range(3)]

    assert [(done.expired, done.more) for done in (first, second, third)] == [(2, True), (2, True), (1, False)]


async def test_a_running_job_does_not_expire(store: Store, clock: VirtualClock) -> None:
    """Upkeep does not look at its expiry again, so that a round with a low limit is not full."""
    await put(store, expires=10, lease=60)
    job = await take(store)
    clock.advance(11)
    done = await store.maintain(limit=1)

    assert (done.expired, done.more) == (0, False)
    await complete(store, job)


async def test_a_retrying_job_expires_while_it_waits(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, expires=10)
    await retry(store, await take(store), delay=20)
    clock.advance(10)
    await store.maintain()

    assert (await show(store, spec)).reason == "ttl_expired"


async def test_many_expired_jobs_are_never_claimed(store: Store, clock: VirtualClock) -> None:
    """No expired job is claimed, even if there are more of them than one claim can bury."""
    await store.enqueue(specs(250, expires=5))
    live = await put(store)
    clock.advance(6)

    taken: list[str] = []
    for _ in range(5):
        taken += await take_ids(store)

    assert taken == [live.id]
    assert (await count(store)).dead == 250


async def test_many_expired_jobs_do_not_keep_another_task_from_its_claim(store: Store, clock: VirtualClock) -> None:
    """One claim buries a part of them only, and skips the others."""
    await store.enqueue(specs(250, task="stale", expires=5))
    clock.advance(6)
    fresh = await put(store, task="fresh")

    assert await take_ids(store, 10) == [fresh.id]


async def test_an_expired_job_frees_its_group(store: Store, clock: VirtualClock) -> None:
    await put(store, group="g", expires=5)
    second = await put(store, group="g")
    clock.advance(5)

    assert await take_ids(store) == [second.id]


async def test_the_words_follow_the_clock(store: Store, clock: VirtualClock) -> None:
    """The displayed states scheduled, ready and retrying depend on the current time."""
    spec = await put(store, delay=10)
    await put(store)
    seen = [word(await show(store, spec), clock())]
    clock.advance(10)
    seen.append(word(await show(store, spec), clock()))
    await complete(store, await take(store))
    await retry(store, await take(store), delay=10)
    seen.append(word(await show(store, spec), clock()))

    assert seen == ["scheduled", "ready", "retrying"]


async def test_a_scheduled_job_can_be_cancelled(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, delay=10)

    assert await store.cancel([spec.id]) == [Cancelled.CANCELLED]
    clock.advance(11)
    assert await take_ids(store) == []


async def test_a_paused_queue_still_lets_jobs_expire(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, expires=5)
    await control(store, paused=True)
    clock.advance(6)
    await store.maintain()

    assert (await show(store, spec)).state is State.DEAD


async def test_a_job_without_a_delay_says_so_beside_one_that_has_one(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(2))  # a later call may take a shorter way
    now, later = a_spec(), a_spec(delay=60)
    await store.enqueue([now, later])

    assert [event.delay for spec in (now, later) for event in await store.history(spec.id)] == [None, 60_000]
