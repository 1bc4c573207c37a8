"""Claims: which jobs a worker gets, and under which lease."""

from __future__ import annotations

import asyncio

from millrace.domain.job import State
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, seconds, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import complete, count, put, retry, show, take, take_ids


async def test_a_claimed_job_runs_under_a_lease_of_its_worker(store: Store, clock: VirtualClock) -> None:
    """A claim sets the job to running, increments its attempt and gives it a lease for the claiming worker."""
    spec = await put(store, lease=45)
    job = await take(store, worker="w-1")

    assert (job.state, job.attempt, job.worker) == (State.RUNNING, 1, "w-1")
    assert (job.started_at, job.lease_until) == (clock(), clock() + seconds(45))
    assert job.lease.job == spec.id
    assert await show(store, spec) == job


async def test_each_job_of_a_claim_keeps_its_own_times(store: Store, clock: VirtualClock) -> None:
    """A claim of several jobs does not mix up when they were enqueued and when they were due."""
    start = clock()
    asked = [await put(store), await put(store, delay=10)]
    clock.advance(10)
    asked.append(await put(store))

    jobs = await store.claim(a_claim(3))

    assert [job.id for job in jobs] == [spec.id for spec in asked]
    assert [(job.enqueued_at, job.available_at) for job in jobs] == [
        (start, start),
        (start, clock()),
        (clock(), clock()),
    ]
    assert [await show(store, spec) for spec in asked] == jobs


async def test_the_claim_may_ask_for_another_lease(store: Store, clock: VirtualClock) -> None:
    """The lease duration in a claim overrides that of the job."""
    await put(store, lease=45)

    assert (await take(store, lease=10)).lease_until == clock() + seconds(10)


async def test_a_job_is_given_to_one_worker_only(store: Store, clock: VirtualClock) -> None:
    """A claimed job is not returned by another claim."""
    spec = await put(store)

    assert await take_ids(store, worker="one") == [spec.id]
    assert await take_ids(store, worker="two") == []


async def test_claims_side_by_side_share_the_jobs_out(store: Store, clock: VirtualClock) -> None:
    """Concurrent claims together return every job exactly once, each under its own lease."""
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
    """A claim skips jobs of other tasks; they stay ready for other workers."""
    unknown = await put(store, task="strange", priority=15)
    known = await put(store, task="known")

    assert await take_ids(store, tasks={"known", "other"}) == [known.id]
    assert (await count(store)).ready == 1
    assert await take_ids(store, tasks=None) == [unknown.id]


async def test_a_worker_that_knows_no_task_claims_nothing(store: Store, clock: VirtualClock) -> None:
    await put(store)

    assert await take_ids(store, tasks=()) == []


async def test_every_claim_draws_a_new_lease(store: Store, clock: VirtualClock) -> None:
    """The lease id is new at every claim, even for the same worker and job."""
    await put(store)
    leases = []
    for _ in range(3):
        job = await take(store, worker="same")
        leases.append(job.lease.id)
        await retry(store, job)

    assert len(set(leases)) == 3


async def test_attempt_counts_claims_and_the_fence_grows_with_it(store: Store, clock: VirtualClock) -> None:
    """Every claim increases the attempt and the fencing token."""
    await put(store)
    first = await take(store)
    await retry(store, first)
    second = await take(store)

    assert (first.attempt, second.attempt) == (1, 2)
    assert second.fence > first.fence


async def test_attempts_belong_to_the_job(store: Store, clock: VirtualClock) -> None:
    """Attempts and failures are counted for each job separately."""
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
    job.state, job.worker = State.DEAD, "another worker"

    assert (await show(store, spec)).state is State.RUNNING
    assert (await show(store, spec)).worker == "worker"


async def test_work_from_enqueue_to_completion(store: Store, clock: VirtualClock) -> None:
    """A job that is claimed and settled is completed, has its result, and no longer has a worker or a lease."""
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
    await put(store, payload=payload, serde="msgpack/json")  # serdes of the payload and of the result
    job = await take(store)

    assert (job.payload, job.spec.serde) == (payload, "msgpack/json")
