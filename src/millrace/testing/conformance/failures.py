"""Failures and their limits. As in a worker, `decide` turns the outcome of a run into the change to settle."""

from __future__ import annotations

import pytest

from millrace.domain.job import Job, Spec, State
from millrace.domain.outcome import Buried, Failure, Lost, Outcome, Raised, Released, Snoozed, TimedOut
from millrace.domain.rules.decide import decide
from millrace.store.protocol import Store
from millrace.testing.builders import a_failure, a_reclaim, a_retry, seconds
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import complete, count, finish, put, put_completed, show, take, take_ids


async def run(store: Store, clock: VirtualClock, spec: Spec, *outcomes: Outcome) -> Job:
    """Claim and settle a job once for each outcome. Before each run, move the clock to the job's due time. Return the
    record.
    """
    for outcome in outcomes:
        due = (await show(store, spec)).available_at
        clock.set(max(clock(), due))
        job = await take(store)
        await finish(store, job, decide(job, outcome, 0.5))
    return await show(store, spec)


async def test_by_default_a_job_has_one_run_and_three_retries(store: Store, clock: VirtualClock) -> None:
    """By default, the fourth failure buries the job."""
    spec = await put(store)
    before = await run(store, clock, spec, *[Raised(a_failure())] * 3)
    assert (before.state, before.failures) == (State.WAITING, 3)

    after = await run(store, clock, spec, Raised(a_failure("the last")))

    assert (after.state, after.reason, after.failures, after.attempt) == (State.DEAD, "max_attempts_exceeded", 4, 4)
    assert after.error is not None and after.error.message == "the last"
    assert await take_ids(store) == []


async def test_backoff_doubles_up_to_its_cap(store: Store, clock: VirtualClock) -> None:
    """With factor 2, the delay before each retry doubles until it reaches the maximum."""
    spec = await put(store, max_attempts=None, retry=a_retry(initial=10, factor=2, maximum=300))
    waits = []
    for _ in range(8):
        job = await run(store, clock, spec, Raised(a_failure()))
        waits.append((job.available_at - clock()) / 1000)

    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]


async def test_a_job_with_one_attempt_is_buried_by_its_first_failure(store: Store, clock: VirtualClock) -> None:
    """With max_attempts=1, a job is not retried."""
    spec = await put(store, max_attempts=1)
    job = await run(store, clock, spec, Raised(a_failure()))

    assert (job.state, job.attempt) == (State.DEAD, 1)


async def test_unlimited_attempts_go_on(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, max_attempts=None, retry=a_retry(initial=0))
    job = await run(store, clock, spec, *[Raised(a_failure())] * 20)

    assert (job.state, job.failures) == (State.WAITING, 20)


async def test_snoozes_and_releases_spend_nothing_of_the_budget(store: Store, clock: VirtualClock) -> None:
    """Snoozes and releases do not count as failures, so they do not use up `max_attempts`."""
    spec = await put(store, max_attempts=2)
    job = await run(store, clock, spec, Snoozed(seconds(1)), Released(), Snoozed(0), Raised(a_failure()), Released())
    assert (job.state, job.failures, job.attempt, job.snoozes, job.releases) == (State.WAITING, 1, 5, 2, 2)

    job = await run(store, clock, spec, Raised(a_failure()))
    assert (job.state, job.failures) == (State.DEAD, 2)


async def test_timeouts_are_retried_and_counted(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, max_attempts=2)
    job = await run(store, clock, spec, TimedOut(a_failure()))
    assert (job.state, job.failures) == (State.WAITING, 1)

    job = await run(store, clock, spec, TimedOut(a_failure()))
    assert (job.state, job.reason) == (State.DEAD, "timeout")


async def test_a_timeout_may_bury_at_once(store: Store, clock: VirtualClock) -> None:
    """With on_timeout="bury", the first timeout buries the job."""
    spec = await put(store, on_timeout="bury")
    job = await run(store, clock, spec, TimedOut(a_failure()))

    assert (job.state, job.reason) == (State.DEAD, "timeout")


async def test_a_lost_lease_is_a_failure_with_backoff(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, retry=a_retry(initial=7))
    await take(store, lease=30)
    clock.advance(31)
    [lost] = await store.reclaim(a_reclaim())
    await finish(store, lost, decide(lost, Lost(a_failure("lease lost")), 0.5))

    job = await show(store, spec)
    assert (job.state, job.failures, job.stalls) == (State.WAITING, 1, 1)
    assert job.available_at == clock() + seconds(7)
    assert job.error is not None and job.error.message == "lease lost"


@pytest.mark.parametrize(("gone", "reason"), [(True, "worker_lost"), (False, "stalled")])
async def test_lost_leases_use_up_the_budget(store: Store, clock: VirtualClock, gone: bool, reason: str) -> None:
    """A lost lease counts as a failure. If the job has no attempts left, it is buried with a reason and an error."""
    spec = await put(store, max_attempts=1)
    await take(store, lease=30)
    clock.advance(31)
    [lost] = await store.reclaim(a_reclaim())
    await finish(store, lost, decide(lost, Lost(a_failure("gone"), worker_gone=gone), 0.5))

    job = await show(store, spec)
    assert (job.state, job.reason, job.stalls) == (State.DEAD, reason, 1)
    assert job.error is not None and job.error.message == "gone"


async def test_a_handler_may_say_when_to_come_back(store: Store, clock: VirtualClock) -> None:
    """A handler that raises `Retry(after=…)` sets the delay before the retry."""
    spec = await put(store)
    job = await run(store, clock, spec, Raised(a_failure(), after=seconds(120)))

    assert (job.failures, job.available_at) == (1, clock() + seconds(120))


@pytest.mark.parametrize("reason", ["explicit_fail", "payload_invalid", "unknown_task"])
async def test_a_burial_is_final_whatever_budget_is_left(store: Store, clock: VirtualClock, reason: str) -> None:
    """A buried job is not retried, even if `max_attempts` would allow it."""
    spec = await put(store, max_attempts=9)
    job = await run(store, clock, spec, Buried(a_failure(), reason))

    assert (job.state, job.reason) == (State.DEAD, reason)


async def test_a_custom_curve_travels_with_the_job(store: Store, clock: VirtualClock) -> None:
    """A job can have a list of retry delays. After the end of the list, its last delay is repeated."""
    spec = await put(store, max_attempts=None, retry=a_retry(delays=[3, 1, 5]))
    waits = []
    for _ in range(4):
        job = await run(store, clock, spec, Raised(a_failure()))
        waits.append((job.available_at - clock()) / 1000)

    assert waits == [3, 1, 5, 5]


async def test_the_attempt_history_keeps_the_first_and_the_last(store: Store, clock: VirtualClock) -> None:
    """A job keeps 50 attempts: the first, and the latest 49."""
    spec = await put(store, max_attempts=None, retry=a_retry(initial=0))
    job = await run(store, clock, spec, *[Raised(a_failure(f"no. {n}")) for n in range(60)])

    assert len(job.attempts) == 50
    assert [a.attempt for a in job.attempts] == [1, *range(12, 61)]


async def test_an_error_survives_as_text(store: Store, clock: VirtualClock) -> None:
    """The store keeps type, message and traceback of an error unchanged, in the job and in its history."""
    error = Failure("ValueError", 'bad "value": ünïcode €\n', "Traceback …\n  line 1")
    spec = await put(store)
    job = await run(store, clock, spec, Raised(error))

    assert job.error == error
    assert (await store.history(spec.id))[-1].error == error


async def test_after_a_dead_letter_the_queue_goes_on(store: Store, clock: VirtualClock) -> None:
    """A dead job does not block the other jobs of its queue."""
    spec = await put(store, max_attempts=1)
    await run(store, clock, spec, Raised(a_failure()))
    await put_completed(store)

    assert (await count(store)).completed == (await count(store)).dead == 1


async def test_others_pass_a_job_in_backoff(store: Store, clock: VirtualClock) -> None:
    """In a queue without groups and lanes, other jobs run while one waits for its retry."""
    spec = await put(store)
    other = await put(store)
    await run(store, clock, spec, Raised(a_failure()))

    job = await take(store)
    assert job.id == other.id
    await complete(store, job)
