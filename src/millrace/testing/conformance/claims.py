"""Claims: what a worker is given, and under what (part 1: claim; part 2: unknown task)."""

from __future__ import annotations

import asyncio

from millrace.domain.job import State
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, seconds, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import complete, count, put, retry, show, take, take_ids


async def test_a_claimed_job_runs_under_a_lease_of_its_worker(store: Store, clock: VirtualClock) -> None:
    """Part 1: attempt+1, new lease → running; O-18."""
    spec = await put(store, lease=45)
    job = await take(store, worker="w-1")

    assert (job.state, job.attempt, job.worker) == (State.RUNNING, 1, "w-1")
    assert (job.started_at, job.lease_until) == (clock(), clock() + seconds(45))
    assert job.lease.job == spec.id
    assert await show(store, spec) == job


async def test_the_claim_may_ask_for_another_lease(store: Store, clock: VirtualClock) -> None:
    """Part 2, timeout and lease: overridable per worker."""
    await put(store, lease=45)

    assert (await take(store, lease=10)).lease_until == clock() + seconds(10)


async def test_a_job_is_given_to_one_worker_only(store: Store, clock: VirtualClock) -> None:
    """L-02, O-35: no double dispatch."""
    spec = await put(store)

    assert await take_ids(store, worker="one") == [spec.id]
    assert await take_ids(store, worker="two") == []


async def test_claims_side_by_side_share_the_jobs_out(store: Store, clock: VirtualClock) -> None:
    """L-02: contention on the same jobs."""
    asked = specs(60)
    await store.enqueue(asked)

    shares = await asyncio.gather(*(store.claim(a_claim(7, worker=f"w-{n}")) for n in range(12)))

    taken = [job.id for share in shares for job in share]
    assert sorted(taken) == sorted(spec.id for spec in asked)
    assert len({job.lease.id for share in shares for job in share}) == 60


async def test_a_claim_takes_no_more_than_its_limit(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(5))

    assert len(await take_ids(store, 3)) == 3
    assert len(await take_ids(store, 3)) == 2
    assert await take_ids(store, 3) == []
    assert (await count(store)).running == 5


async def test_a_claim_of_none_takes_none(store: Store, clock: VirtualClock) -> None:
    await put(store)

    assert await store.claim(a_claim(0)) == []
    assert (await count(store)).waiting == 1


async def test_a_claim_on_an_unknown_queue_takes_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store)

    assert await take_ids(store, queue="elsewhere") == []
    assert await take_ids(store, queues=()) == []


async def test_a_worker_claims_only_tasks_it_knows(store: Store, clock: VirtualClock) -> None:
    """Part 2, unknown task; BO-18, BL-05: the job stays ready and is shown as such."""
    unknown = await put(store, task="strange", priority=15)
    known = await put(store, task="known")

    assert await take_ids(store, tasks={"known", "other"}) == [known.id]
    assert (await count(store)).ready == 1
    assert await take_ids(store, tasks=None) == [unknown.id]


async def test_a_worker_that_knows_no_task_claims_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store)

    assert await take_ids(store, tasks=()) == []


async def test_every_claim_draws_a_new_lease(store: Store, clock: VirtualClock) -> None:
    """BL-02: the lease is per claim, not per worker."""
    await put(store)
    leases = []
    for _ in range(3):
        job = await take(store, worker="same")
        leases.append(job.lease.id)
        await retry(store, job)

    assert len(set(leases)) == 3


async def test_attempt_counts_claims_and_the_fence_grows_with_it(store: Store, clock: VirtualClock) -> None:
    """X1, BO-12: the fencing token for a handler's own side effects."""
    await put(store)
    first = await take(store)
    await retry(store, first)
    second = await take(store)

    assert (first.attempt, second.attempt) == (1, 2)
    assert second.fence > first.fence


async def test_attempts_belong_to_the_job(store: Store, clock: VirtualClock) -> None:
    """BW-09: the next job does not inherit them."""
    await put(store, max_attempts=9)
    await put(store)
    for _ in range(3):
        await retry(store, await take(store), delay=0)
        clock.advance(1)
    counted = {job.id: (job.attempt, job.failures) for job in await store.claim(a_claim(2))}

    assert sorted(counted.values()) in ([(2, 1), (3, 2)], [(1, 0), (4, 3)])


async def test_what_a_claim_hands_out_is_the_callers_own_copy(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    job = await take(store)
    job.state, job.worker = State.DEAD, "somebody else"

    assert (await show(store, spec)).state is State.RUNNING
    assert (await show(store, spec)).worker == "worker"


async def test_work_from_enqueue_to_completion(store: Store, clock: VirtualClock) -> None:
    """O-35, R-29: process and return the result."""
    spec = await put(store, payload=b"[1, 2]")
    job = await take(store)
    clock.advance(2)
    await complete(store, job, b"3")

    done = await show(store, spec)
    assert (done.state, done.result, done.finished_at) == (State.COMPLETED, b"3", clock())
    assert (done.worker, done.lease_id, done.lease_until) == (None, None, None)
    assert await take_ids(store) == []


async def test_the_payload_comes_back_byte_for_byte(store: Store, clock: VirtualClock) -> None:
    payload = bytes(range(256)) * 16
    await put(store, payload=payload, serde="msgpack")
    job = await take(store)

    assert (job.payload, job.spec.serde) == (payload, "msgpack")
