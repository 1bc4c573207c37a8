"""Leases: how they are extended, expire and are reclaimed, and how the fence refuses settles under old leases."""

from __future__ import annotations

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.job import Lease
from millrace.domain.request import Receipt
from millrace.store.protocol import Store
from millrace.testing.builders import (
    a_burial,
    a_claim,
    a_reclaim,
    a_retry,
    a_retry_change,
    an_extension,
    seconds,
    specs,
)
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import complete, finish, kinds, put, settle, show, take


async def test_a_worker_whose_lease_was_taken_over_cannot_settle(store: Store, clock: VirtualClock) -> None:
    """A settle under a reclaimed lease is LOST; a settle under the new lease succeeds."""
    await put(store)
    stalled = await take(store, lease=30)
    clock.advance(31)
    [rescued] = await store.reclaim(a_reclaim())

    assert await settle(store, stalled, Change.completed()) is Receipt.LOST
    assert await settle(store, rescued, Change.completed()) is Receipt.OK


@pytest.mark.parametrize(
    "change",
    [Change.completed(b"1"), a_retry_change(), Change.snooze(0), Change.release(), a_burial(), Change.cancel()],
    ids=lambda change: change.verb.value,
)
async def test_a_stale_lease_changes_nothing_whatever_it_says(
    store: Store, clock: VirtualClock, change: Change
) -> None:
    """No kind of change has an effect under a reclaimed lease: the record and the history stay the same."""
    spec = await put(store)
    stalled = await take(store, lease=30)
    clock.advance(31)
    await store.reclaim(a_reclaim())
    before, events = await show(store, spec), await kinds(store, spec)

    assert await settle(store, stalled, change) is Receipt.LOST
    assert (await show(store, spec), await kinds(store, spec)) == (before, events)


async def test_the_same_worker_twice_is_told_apart(store: Store, clock: VirtualClock) -> None:
    """If a worker claims a job again after losing its lease, a settle of the first run is LOST."""
    spec = await put(store, retry=a_retry(initial=0))
    first = await take(store, worker="A", lease=30)
    clock.advance(31)
    [rescued] = await store.reclaim(a_reclaim(worker="A"))
    await finish(store, rescued, a_retry_change())
    second = await take(store, worker="A")

    assert await settle(store, first, Change.completed(b"stale")) is Receipt.LOST
    await complete(store, second, b"fresh")
    assert (await show(store, spec)).result == b"fresh"


async def test_a_late_run_does_not_overwrite_the_result_of_the_next(store: Store, clock: VirtualClock) -> None:
    """If the first run ends after the second run has completed the job, the settle of the first run is refused."""
    spec = await put(store)
    slow = await take(store, lease=30)
    clock.advance(31)
    [rescued] = await store.reclaim(a_reclaim())
    await finish(store, rescued, a_retry_change())
    await complete(store, await take(store), b"second")

    assert await settle(store, slow, Change.completed(b"first")) is Receipt.LOST
    assert (await show(store, spec)).result == b"second"


async def test_a_lease_holds_through_its_last_millisecond(store: Store, clock: VirtualClock) -> None:
    """A lease can be reclaimed from one millisecond after its expiry time, and not at the expiry time itself."""
    await put(store)
    await take(store, lease=30)
    clock.advance(30)
    assert await store.reclaim(a_reclaim()) == []

    clock.advance(0.001)
    assert len(await store.reclaim(a_reclaim())) == 1


async def test_an_expired_lease_that_nobody_took_still_settles(store: Store, clock: VirtualClock) -> None:
    """A settle under an expired lease succeeds as long as the lease was not reclaimed."""
    await put(store)
    job = await take(store, lease=30)
    clock.advance(3600)

    await complete(store, job)


async def test_extending_counts_from_now(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, lease=30)
    job = await take(store)
    clock.advance(20)

    assert await store.extend([an_extension(job)]) == [Receipt.OK]
    assert (await show(store, spec)).lease_until == clock() + seconds(30)

    await store.extend([an_extension(job, by=90)])
    assert (await show(store, spec)).lease_until == clock() + seconds(90)


async def test_an_extended_job_is_not_taken_over(store: Store, clock: VirtualClock) -> None:
    """A lease that is extended in time is never reclaimed, however long the job runs."""
    await put(store)
    job = await take(store, lease=30)
    for _ in range(5):
        clock.advance(20)
        await store.extend([an_extension(job, by=30)])
        assert await store.reclaim(a_reclaim()) == []

    await complete(store, job)


async def test_extending_and_settling_go_together(store: Store, clock: VirtualClock) -> None:
    """A job can be settled under a lease that was extended."""
    await put(store)
    job = await take(store)
    await store.extend([an_extension(job, progress=b"50")])

    await complete(store, job)


async def test_extending_a_lost_lease_says_so(store: Store, clock: VirtualClock) -> None:
    """Extending a reclaimed lease returns LOST. This tells a worker to abort the run."""
    await store.enqueue(specs(2))
    kept, lost = await store.claim(a_claim(2, lease=30))
    clock.advance(20)
    await store.extend([an_extension(kept)])
    clock.advance(11)
    await store.reclaim(a_reclaim())

    assert await store.extend([an_extension(lost), an_extension(kept)]) == [Receipt.LOST, Receipt.OK]


async def test_extending_a_settled_job_says_lost(store: Store, clock: VirtualClock) -> None:
    await put(store)
    job = await take(store)
    await complete(store, job)

    assert await store.extend([an_extension(job)]) == [Receipt.LOST]


async def test_extending_is_no_event(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    job = await take(store)
    await store.extend([an_extension(job)] * 3)

    assert await kinds(store, spec) == ["enqueued", "claimed"]


async def test_progress_is_kept_while_the_job_runs(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    job = await take(store)
    await store.extend([an_extension(job, progress=b"50")])
    await store.extend([an_extension(job)])
    assert (await show(store, spec)).progress == b"50"

    await finish(store, job, a_retry_change())
    assert (await take(store)).progress is None


async def test_a_log_is_kept_with_the_job_in_every_state(store: Store, clock: VirtualClock) -> None:
    """An extension or a settle replaces the log; one without a log leaves it as it is."""
    spec = await put(store, max_attempts=3)
    job = await take(store)
    await store.extend([an_extension(job, log=b"1"), an_extension(job)])
    assert (await show(store, spec)).log == b"1"

    await finish(store, job, msgspec.structs.replace(a_retry_change(), log=b"12"))
    assert (await show(store, spec)).log == b"12"
    job = await take(store)
    assert job.log == b"12"
    await store.extend([an_extension(job, progress=b"50%", log=b"123")])
    await finish(store, job, a_retry_change())
    job = await take(store)
    assert job.log == b"123" and job.progress is None
    await finish(store, job, Change.completed(b"result", log=b"1234"))
    ended = await show(store, spec)
    assert (ended.state, ended.result, ended.log) == ("completed", b"result", b"1234")
    await store.replay([spec.id])
    assert (await take(store)).log == b"1234"


async def test_a_log_comes_with_progress_and_a_longer_lease(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    job = await take(store, lease=30)
    clock.advance(20)
    await store.extend([an_extension(job, by=30, progress=b"50%", log=b"1")])

    seen = await show(store, spec)
    assert (seen.lease_until, seen.progress, seen.log) == (clock() + seconds(30), b"50%", b"1")
    clock.advance(29)
    assert await store.reclaim(a_reclaim()) == []
    await store.extend([an_extension(job, by=30)])
    seen = await show(store, spec)
    assert (seen.lease_until, seen.progress, seen.log) == (clock() + seconds(30), b"50%", b"1")


async def test_a_log_survives_its_worker(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    job = await take(store)
    await store.extend([an_extension(job, log=b"seen")])
    clock.advance(60)

    [reclaimed] = await store.reclaim(a_reclaim())
    assert reclaimed.log == b"seen"
    await finish(store, reclaimed, a_retry_change())
    assert (await show(store, spec)).log == b"seen"


async def test_a_lost_lease_writes_no_log(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    stalled = await take(store)
    clock.advance(60)
    [reclaimed] = await store.reclaim(a_reclaim())
    late = Change.completed(b"", log=b"late")

    assert await store.extend([an_extension(stalled, log=b"late")]) == [Receipt.LOST]
    assert await store.settle([(stalled.lease, late)]) == [Receipt.LOST]
    assert (await show(store, spec)).log is None
    assert await store.extend([an_extension(reclaimed, log=b"mine"), an_extension(stalled, log=b"late")]) == [
        *(Receipt.OK, Receipt.LOST)
    ]
    assert (await show(store, spec)).log == b"mine"


async def test_logs_of_one_call_belong_to_their_jobs(store: Store, clock: VirtualClock) -> None:
    many = specs(6)
    await store.enqueue(many)
    jobs = await store.claim(a_claim(6))
    logs = [None if n % 3 == 0 else b"x" * n for n in range(6)]

    await store.extend([an_extension(job, log=log) for job, log in zip(jobs[:3], logs, strict=False)])
    changes = [Change.completed(b"r", log=log) for log in logs[3:]]
    await store.settle([(job.lease, change) for job, change in zip(jobs[3:], changes, strict=True)])
    assert [(await show(store, job)).log for job in jobs] == logs


async def test_a_new_job_with_the_id_of_an_old_one_has_no_log(store: Store, clock: VirtualClock) -> None:
    await put(store, id="again")
    await finish(store, await take(store), Change.completed(b"", log=b"old"))
    await store.delete(["again"])
    await put(store, id="again")

    job = await take(store)
    assert job.log is None
    await complete(store, job)
    assert (await show(store, job)).log is None


async def test_a_made_up_lease_settles_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store)
    job = await take(store)
    strange = [Lease(job.id, job.seq, "made up"), Lease(job.id, job.seq + 1, job.lease.id), Lease("x", 0, "")]

    assert await store.settle([(lease, Change.completed()) for lease in strange]) == [Receipt.LOST] * 3
    assert await store.extend([an_extension(lease) for lease in strange]) == [Receipt.LOST] * 3
    await complete(store, job)
