"""Settling: what each change writes to a job. A change takes effect only once, and only under the current lease.

A change can carry jobs: specs that the store enqueues in the same step.
"""

from __future__ import annotations

from millrace.domain.change import Change
from millrace.domain.job import Job, State
from millrace.domain.request import Receipt
from millrace.store.protocol import Store
from millrace.testing.builders import a_burial, a_claim, a_retry_change, a_spec, seconds, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    complete,
    count,
    finish,
    kinds,
    put,
    put_completed,
    retry,
    settle,
    show,
    take,
    take_ids,
)


async def test_a_failed_run_waits_out_its_backoff(store: Store, clock: VirtualClock) -> None:
    """A retry increments the failures, and the job is due again after its delay."""
    spec = await put(store)
    job = await take(store)
    clock.advance(3)
    await retry(store, job, delay=5)

    again = await show(store, spec)
    assert (again.state, again.failures, again.available_at) == (State.WAITING, 1, clock() + seconds(5))
    assert again.error is not None and again.error.message == "it broke"
    clock.advance(4.999)
    assert await take_ids(store) == []
    clock.advance(0.001)
    assert await take_ids(store) == [spec.id]


async def test_a_snooze_is_later_by_wish_and_uncounted(store: Store, clock: VirtualClock) -> None:
    """A snoozed job is due again after its delay, and the snooze does not count as a failure."""
    spec = await put(store)
    await finish(store, await take(store), Change.snooze(seconds(5)))

    job = await show(store, spec)
    assert (job.state, job.failures, job.snoozes, job.attempt) == (State.WAITING, 0, 1, 1)
    assert job.available_at == clock() + seconds(5)


async def test_a_release_gives_the_job_back_at_once_and_uncounted(store: Store, clock: VirtualClock) -> None:
    """A released job is ready again at once, and the release does not count as a failure."""
    spec = await put(store)
    await finish(store, await take(store), Change.release())

    job = await show(store, spec)
    assert (job.state, job.failures, job.releases) == (State.WAITING, 0, 1)
    assert (job.worker, job.lease_id, job.lease_until) == (None, None, None)
    assert await take_ids(store) == [spec.id]


async def test_a_released_job_keeps_its_place_in_the_order_of_claims(store: Store, clock: VirtualClock) -> None:
    """Jobs that became due while it was claimed do not overtake it."""
    first = await put(store)
    held = await take(store)
    clock.advance(1)
    second = await put(store)
    clock.advance(1)
    await finish(store, held, Change.release())

    assert (await show(store, first)).available_at == held.available_at
    assert await take_ids(store, 2) == [first.id, second.id]


async def test_a_burial_keeps_reason_error_and_history(store: Store, clock: VirtualClock) -> None:
    """A dead job has its reason, its last error and all its attempts."""
    spec = await put(store)
    await retry(store, await take(store))
    await finish(store, await take(store), a_burial("explicit_fail", "enough"))

    job = await show(store, spec)
    assert (job.state, job.reason, job.failures, job.finished_at) == (State.DEAD, "explicit_fail", 2, clock())
    assert job.error is not None and job.error.message == "enough"
    assert [(a.attempt, a.error.message if a.error else "") for a in job.attempts] == [(1, "it broke"), (2, "enough")]


async def test_every_end_of_a_run_clears_the_lease(store: Store, clock: VirtualClock) -> None:
    """Every kind of change removes worker, lease and cancellation request from the job."""
    changes = [Change.completed(), a_retry_change(9), Change.snooze(9), Change.release(9), a_burial(), Change.cancel()]
    for change in changes:
        spec = await put(store)
        await finish(store, await take(store), change)
        job = await show(store, spec)
        assert (job.worker, job.lease_id, job.lease_until, job.cancel_requested) == (None, None, None, False)


async def test_a_settled_run_cannot_be_settled_again(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    job = await take(store)
    receipts = await store.settle([(job.lease, Change.completed(b"1")), (job.lease, Change.completed(b"2"))])

    assert receipts == [Receipt.OK, Receipt.LOST]
    assert await settle(store, job, a_burial()) is Receipt.LOST
    assert (await show(store, spec)).result == b"1"
    assert await kinds(store, spec) == ["enqueued", "claimed", "completed"]


async def test_settle_answers_once_per_item_in_order(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(3))
    first, second, third = await store.claim(a_claim(3))
    await complete(store, second)

    receipts = await store.settle([(job.lease, Change.completed()) for job in (third, second, first)])

    assert receipts == [Receipt.OK, Receipt.LOST, Receipt.OK]
    assert (await count(store)).completed == 3


async def test_settling_nothing_answers_nothing(store: Store, clock: VirtualClock) -> None:
    assert await store.settle([]) == []
    assert await store.extend([]) == []


async def test_completed_and_dead_are_counted_apart(store: Store, clock: VirtualClock) -> None:
    """A queue counts completed and dead jobs separately."""
    for _ in range(3):
        await put_completed(store)
    await put(store)
    await finish(store, await take(store), a_burial())

    counts = await count(store)
    assert (counts.processed, counts.died, counts.completed, counts.dead) == (3, 1, 3, 1)


async def test_a_change_may_carry_jobs(store: Store, clock: VirtualClock) -> None:
    """A change enqueues the jobs that it carries in the same step. Here, the carried job depends on the completed
    job.
    """
    parent = await put(store)
    job = await take(store)
    child = a_spec(after=(parent.id,), queue="next")
    await finish(store, job, Change.completed(jobs=(child,)))

    assert await take_ids(store, queue="next") == [child.id]


async def test_a_job_names_the_jobs_that_its_runs_have_carried(store: Store, clock: VirtualClock) -> None:
    """A job keeps the ids of the latest 100 jobs that were enqueued with the ends of its runs, until it is replayed."""
    spec = await put(store)
    first, others = a_spec(queue="later"), specs(105, queue="later")
    snooze = Change(Change.snooze(0).verb, jobs=(first,))
    await finish(store, await take(store), snooze)
    assert (await show(store, spec)).carried == (first.id,)

    await finish(store, await take(store), Change.completed(jobs=tuple(others)))
    assert (await show(store, spec)).carried == tuple(other.id for other in others[-100:])
    assert (await show(store, first)).carried is None

    await store.replay([spec.id])
    assert (await show(store, spec)).carried is None


async def test_a_change_that_is_refused_carries_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store)
    job = await take(store)
    await complete(store, job)
    child = a_spec()

    assert await settle(store, job, Change.completed(jobs=(child,))) is Receipt.LOST
    assert await store.get([child.id]) == [None]


async def test_carried_jobs_are_taken_by_a_full_queue(store: Store, clock: VirtualClock) -> None:
    """A settle succeeds even if the queue of the carried jobs is full."""
    await store.control("queue", "default", {"max_depth": 1})
    await put(store)
    job = await take(store)
    await put(store)
    await finish(store, job, Change.completed(jobs=tuple(specs(2))))

    assert (await count(store)).waiting == 3


async def test_a_job_may_carry_its_successor_under_its_own_key(store: Store, clock: VirtualClock) -> None:
    """The change that ends a job can carry a job with the same key, because the end of the job frees the key in the
    same step.
    """
    await put(store, key="sync")
    job = await take(store)
    successor = a_spec(key="sync")
    await finish(store, job, Change.completed(jobs=(successor,)))

    assert await take_ids(store) == [successor.id]


async def test_a_dying_job_may_carry_its_own_next_generation(store: Store, clock: VirtualClock) -> None:
    """The change that buries a job can carry a new job with the same id."""
    spec = await put(store)
    job = await take(store)
    await finish(store, job, Change(a_burial().verb, reason="explicit_fail", failed=1, jobs=(a_spec(id=spec.id),)))

    again = await take(store)
    assert (again.id, again.generation, again.attempt) == (spec.id, 2, 1)
    counts = await count(store)
    assert (counts.running, counts.dead, counts.died) == (1, 0, 1)


async def test_a_retried_job_that_carries_its_replacement_is_replaced(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, key="sync")
    job = await take(store)
    other = a_spec(key="sync", on_hit="replace")
    change = a_retry_change(5)
    await finish(store, job, Change(change.verb, change.delay, failed=1, jobs=(other,)))

    assert (await show(store, spec)).state is State.CANCELLED
    assert await take_ids(store) == [other.id]
    assert (await count(store)).waiting == 0


async def test_a_carried_job_hit_by_its_key_does_not_stop_the_settle(store: Store, clock: VirtualClock) -> None:
    owner = await put(store, key="k", queue="other")
    await put(store)
    job = await take(store)
    await finish(store, job, Change.completed(jobs=(a_spec(key="k", queue="other", on_hit="raise"),)))

    assert await take_ids(store, queue="other") == [owner.id]


async def test_the_duration_of_a_run_is_kept(store: Store, clock: VirtualClock) -> None:
    """Each attempt records its number, duration, worker and time."""
    spec = await put(store)
    job = await take(store, worker="w")
    change = a_retry_change()
    await finish(store, job, Change(change.verb, error=change.error, failed=1, duration=1234))

    [attempt] = (await show(store, spec)).attempts
    assert (attempt.attempt, attempt.duration, attempt.worker, attempt.at) == (1, 1234, "w", clock())
    assert (await store.history(spec.id))[-1].duration == 1234


async def test_each_job_of_a_settle_keeps_its_own_times_and_worker(store: Store, clock: VirtualClock) -> None:
    """A settle of several jobs does not mix up when they were enqueued, due and started, and who ran them."""
    await store.enqueue([a_spec(), a_spec(delay=10)])
    clock.advance(10)
    await put(store)
    jobs = [await take(store, worker="one")]
    clock.advance(1)
    jobs += [await take(store, worker="one"), await take(store, worker="two")]

    await store.settle([(job.lease, Change.completed()) for job in jobs])

    ended = [await show(store, job) for job in jobs]
    assert [times_of(job) for job in ended] == [times_of(job) for job in jobs]
    assert [(await store.history(job.id))[-1].worker for job in jobs] == ["one", "one", "two"]


def times_of(job: Job) -> tuple[int, int, int | None]:
    return job.enqueued_at, job.available_at, job.started_at


async def test_completing_forgets_the_error_of_earlier_attempts(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    await retry(store, await take(store))
    await complete(store, await take(store), b"1")

    job = await show(store, spec)
    assert (job.error, job.reason, job.failures, len(job.attempts)) == (None, None, 1, 1)


async def test_a_result_is_kept_for_its_time(store: Store, clock: VirtualClock) -> None:
    """By default, a result expires after one hour."""
    spec = await put_completed(store, result=b"42")
    clock.advance(3599)
    assert (await show(store, spec)).result == b"42"

    clock.advance(1)
    job = await show(store, spec)
    assert (job.state, job.result, job.result_expired) == (State.COMPLETED, None, True)


async def test_a_result_may_be_kept_as_long_as_its_record(store: Store, clock: VirtualClock) -> None:
    spec = await put_completed(store, result=b"42", keep_result=None)
    clock.advance(23 * 3600)
    await store.maintain()

    assert (await show(store, spec)).result == b"42"


async def test_a_result_nobody_wants_is_not_kept(store: Store, clock: VirtualClock) -> None:
    spec = await put_completed(store, result=b"42", keep_result=0)

    job = await show(store, spec)
    assert (job.result, job.result_expired) == (None, True)
