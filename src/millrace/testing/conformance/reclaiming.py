"""Reclaim: taking over expired leases, many at a time (part 2: lost lease, reaping; L-06, L-07, BL-04)."""

from __future__ import annotations

from millrace.domain.decide import decide
from millrace.domain.job import State
from millrace.domain.outcome import Lost
from millrace.domain.request import Receipt
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
    """L-06, R-20, O-22; part 1, reclaim."""
    spec = await put(store)
    held = await take(store, worker="lost", lease=30)
    clock.advance(31)
    [rescued] = await store.reclaim(a_reclaim(worker="reaper", lease=20))

    assert rescued.lease.id != held.lease.id
    assert (rescued.attempt, rescued.worker, rescued.state) == (1, "reaper", State.RUNNING)
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


async def test_a_taken_over_job_tells_whether_its_worker_is_gone(store: Store, clock: VirtualClock) -> None:
    """Part 1, reasons: `stalled` while its worker still beat, `worker_lost` when it was gone too."""
    for name in ("beating", "silent", "left", "unknown"):
        await put(store, queue=name)
        await store.beat(a_worker(name), seconds(60 if name == "beating" else 10))
        await take(store, queue=name, worker=name, lease=30)
    await store.leave("left")
    await store.leave("unknown")
    clock.advance(31)

    told = {job.queue: job.lost_worker for job in await store.reclaim(a_reclaim())}

    assert told == {"beating": False, "silent": True, "left": True, "unknown": True}


async def test_reclaim_takes_the_longest_expired_first_and_no_more_than_asked(
    store: Store, clock: VirtualClock
) -> None:
    """L-06, L-07: the oldest; bounded."""
    await store.enqueue(specs(3))
    for lease in (30, 10, 20):
        await take(store, lease=lease)
    clock.advance(31)

    first = await store.reclaim(a_reclaim(2))
    rest = await store.reclaim(a_reclaim(2))

    assert [job.seq - first[0].seq for job in first] == [0, 1]
    assert [job.seq - first[0].seq for job in rest] == [-1]


async def test_reclaim_can_keep_to_tasks_and_queues(store: Store, clock: VirtualClock) -> None:
    """L-06: whose type the worker handles."""
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
    """L-07: ignored ids."""
    await store.enqueue(specs(2))
    mine, other = await store.claim(a_claim(2, lease=30))
    clock.advance(31)

    assert [job.id for job in await store.reclaim(a_reclaim(ignore=[mine]))] == [other.id]


async def test_a_thousand_lost_leases_recover_in_a_few_calls(store: Store, clock: VirtualClock) -> None:
    """BL-04: not one per loop."""
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
    """BL-05: the monitor reclaims for all tasks."""
    await put(store, task="forgotten")
    await take(store, lease=30)
    clock.advance(31)

    assert [job.task for job in await store.reclaim(a_reclaim(tasks=None))] == ["forgotten"]


async def test_a_job_that_keeps_killing_its_worker_is_buried(store: Store, clock: VirtualClock) -> None:
    """BL-01, BR-09; part 2, lost lease: stalls = max_stalls, whatever the budget."""
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
