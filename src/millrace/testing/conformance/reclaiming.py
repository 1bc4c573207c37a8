"""Reclaim: jobs whose lease has expired get a new lease, up to a limit in one call."""

from __future__ import annotations

import pytest

from millrace.domain.job import State
from millrace.domain.outcome import Lost
from millrace.domain.request import Receipt
from millrace.domain.rules.decide import decide
from millrace.store.protocol import Store
from millrace.testing.builders import (
    a_claim,
    a_failure,
    a_reclaim,
    a_retry,
    a_retry_change,
    a_worker,
    seconds,
    specs,
)
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import complete, count, finish, put, settle, show, take, take_ids


async def test_a_takeover_is_a_new_lease_and_no_new_attempt(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    held = await take(store, worker="lost", lease=30)
    clock.advance(31)
    [rescued] = await store.reclaim(a_reclaim(worker="reaper", lease=20))

    assert rescued.lease.id != held.lease.id
    assert (rescued.attempt, rescued.worker, rescued.state) == (1, "lost", State.RUNNING)
    assert rescued.lease_until == clock() + seconds(20)
    event = (await store.history(spec.id))[-1]
    assert (event.kind.value, event.worker, event.reason, event.lease) == (
        "reclaimed",
        "reaper",
        "lost",
        rescued.lease.id,
    )


async def test_a_reaper_that_dies_is_reaped(store: Store, clock: VirtualClock) -> None:
    await put(store)
    await take(store, lease=30)
    clock.advance(31)
    [first] = await store.reclaim(a_reclaim(worker="one", lease=10))
    assert await store.reclaim(a_reclaim(worker="two")) == []
    clock.advance(11)
    [second] = await store.reclaim(a_reclaim(worker="two"))

    assert await settle(store, first, a_retry_change()) is Receipt.LOST
    assert await settle(store, second, a_retry_change()) is Receipt.OK


@pytest.mark.parametrize(("worker_gone", "reason"), [(True, "worker_lost"), (False, "stalled")])
async def test_a_lost_attempt_is_its_workers_not_its_rescuers(
    store: Store, clock: VirtualClock, worker_gone: bool, reason: str
) -> None:
    """A lost attempt records the worker that lost the lease, not the reaper. Its duration is measured by the store's
    clock.
    """
    spec = await put(store, max_attempts=2, retry=a_retry(initial=1, factor=1))
    for worker, ran in (("frozen", 31), ("killed", 45)):
        await take(store, worker=worker, lease=30)
        clock.advance(ran)
        [lost] = await store.reclaim(a_reclaim(worker="rescuer"))
        await finish(store, lost, decide(lost, Lost(a_failure(), worker_gone), 0.5))
        clock.advance(2)

    job = await show(store, spec)
    assert (job.state, job.reason) == (State.DEAD, reason)
    assert [(one.worker, one.duration) for one in job.attempts] == [("frozen", 31_000), ("killed", 45_000)]
    ends = [event for event in await store.history(spec.id) if event.kind.value in ("retried", "buried")]
    assert [(event.worker, event.duration) for event in ends] == [("frozen", 31_000), ("killed", 45_000)]


async def test_a_reaper_that_dies_is_not_blamed_for_the_run(store: Store, clock: VirtualClock) -> None:
    """If a reaper dies after a reclaim, the lost attempt is still recorded for the worker that ran the job."""
    spec = await put(store)
    await store.beat(a_worker("frozen"), seconds(3600))
    await take(store, worker="frozen", lease=30)
    for reaper in ("first", "second"):
        clock.advance(31)
        [lost] = await store.reclaim(a_reclaim(worker=reaper, lease=30))
        assert (lost.worker, lost.lost_worker) == ("frozen", False)
    await finish(store, lost, decide(lost, Lost(a_failure()), 0.5))

    [attempt] = (await show(store, spec)).attempts
    assert (attempt.attempt, attempt.worker, attempt.duration) == (1, "frozen", 62_000)
    takeovers = [event for event in await store.history(spec.id) if event.kind.value == "reclaimed"]
    assert [(event.worker, event.reason) for event in takeovers] == [("first", "frozen"), ("second", "frozen")]


async def test_a_taken_over_job_tells_whether_its_worker_is_gone(store: Store, clock: VirtualClock) -> None:
    """`lost_worker` of a reclaimed job is True if the worker has stopped sending heartbeats, else False."""
    for name in ("beating", "silent", "left", "unknown"):
        await put(store, queue=name)
        await store.beat(a_worker(name), seconds(60 if name == "beating" else 10))
        await take(store, queue=name, worker=name, lease=30)
    await store.beat(a_worker("left"), 0)
    await store.beat(a_worker("unknown"), 0)
    clock.advance(31)

    lost_by_queue = {job.queue: job.lost_worker for job in await store.reclaim(a_reclaim())}

    assert lost_by_queue == {"beating": False, "silent": True, "left": True, "unknown": True}


async def test_reclaim_takes_the_longest_expired_first_and_no_more_than_asked(
    store: Store, clock: VirtualClock
) -> None:
    """Reclaim returns the jobs whose leases expired first, up to its limit."""
    await store.enqueue(specs(3))
    for lease in (30, 10, 20):
        await take(store, lease=lease)
    clock.advance(31)

    first = await store.reclaim(a_reclaim(2))
    rest = await store.reclaim(a_reclaim(2))

    assert [job.seq - first[0].seq for job in first] == [0, 1]
    assert [job.seq - first[0].seq for job in rest] == [-1]


async def test_reclaim_can_keep_to_tasks_and_queues(store: Store, clock: VirtualClock) -> None:
    """A reclaim that names queues or tasks returns only their jobs."""
    wanted = await put(store, queue="a", task="x")
    await put(store, queue="a", task="y")
    await put(store, queue="b", task="x")
    await take_ids(store, queues=("a", "b"), lease=30)
    clock.advance(31)

    taken = await store.reclaim(a_reclaim(queues=["a"], tasks=["x"]))

    assert [job.id for job in taken] == [wanted.id]
    assert len(await store.reclaim(a_reclaim(queues=["b"]))) == 1
    assert len(await store.reclaim(a_reclaim())) == 1


async def test_a_worker_does_not_reap_what_it_runs_itself(store: Store, clock: VirtualClock) -> None:
    """Leases that the request lists in `ignore` are not reclaimed."""
    await store.enqueue(specs(2))
    mine, other = await store.claim(a_claim(2, lease=30))
    clock.advance(31)

    assert [job.id for job in await store.reclaim(a_reclaim(ignore=[mine]))] == [other.id]


async def test_a_thousand_lost_leases_recover_in_a_few_calls(store: Store, clock: VirtualClock) -> None:
    """With a limit of 250, four calls reclaim 1,000 expired leases."""
    await store.enqueue(specs(1_000))
    await store.claim(a_claim(1_000, lease=30))
    clock.advance(31)

    rounds = 0
    while lost := await store.reclaim(a_reclaim(250)):
        rounds += 1
        receipts = await store.settle([(job.lease, a_retry_change()) for job in lost])
        assert set(receipts) == {Receipt.OK}

    assert rounds == 4
    assert (await count(store)).ready == 1_000


async def test_a_job_no_worker_knows_any_more_is_reclaimed_all_the_same(store: Store, clock: VirtualClock) -> None:
    """A reclaim with tasks=None returns jobs of all tasks, including tasks that no worker has."""
    await put(store, task="forgotten")
    await take(store, lease=30)
    clock.advance(31)

    assert [job.task for job in await store.reclaim(a_reclaim(tasks=None))] == ["forgotten"]


async def test_a_job_that_keeps_killing_its_worker_is_buried(store: Store, clock: VirtualClock) -> None:
    """A job that lost its lease `max_stalls` times is buried, even with unlimited attempts."""
    spec = await put(store, max_attempts=None, max_stalls=3, retry=a_retry(initial=1, factor=1))
    for _ in range(3):
        await take(store, lease=30)
        clock.advance(31)
        [lost] = await store.reclaim(a_reclaim())
        await finish(store, lost, decide(lost, Lost(a_failure(), worker_gone=True), 0.5))
        clock.advance(2)

    job = await show(store, spec)
    assert (job.state, job.reason, job.stalls, job.failures, job.attempt) == (State.DEAD, "worker_lost", 3, 3, 3)


async def test_nothing_lost_nothing_reclaimed(store: Store, clock: VirtualClock) -> None:
    await put(store)
    assert await store.reclaim(a_reclaim()) == []
    await complete(store, await take(store, lease=30))
    clock.advance(3600)

    assert await store.reclaim(a_reclaim()) == []


@pytest.mark.parametrize("delay", [0, 60])
async def test_a_reclaim_moves_group_members_that_are_due_into_their_lines(
    store: Store, clock: VirtualClock, delay: int
) -> None:
    """A reclaim does this even if no lease has expired, and whether or not other jobs are due."""
    await put(store, group="g", priority=5, delay=10)
    behind = await put(store, group="g", delay=delay)
    assert await store.position(behind.id) == 0

    clock.advance(10)
    assert await store.reclaim(a_reclaim()) == []
    assert await store.position(behind.id) == 1
