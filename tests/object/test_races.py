"""Many clients on one directory or one bucket: nothing between them but compare-and-swap.

Each client has a connection and an engine of its own, in this process or in one of its own. What tests/store says of
many at once on one store holds here too, so those sentences stand below with clients in place of tasks and threads.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import QueueFull
from millrace.domain.job import State
from millrace.domain.request import Cancelled, Query, Receipt
from millrace.store.connect import connect
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_spec, an_extension, specs
from millrace.testing.clock import START, VirtualClock
from millrace.testing.conformance.scenes import control, count, put, show, take_ids
from millrace.testing.invariants import assert_holds, gather
from tests.object.stores import Site, a_site
from tests.store import test_races as shared
from tests.store.test_races import held_by_one_at_a_time, nothing_is_lost

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 4
JOBS = 120
AT_NIGHT = pytest.param(16, 1_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])
PATIENCE = 90.0
OPTIONS = ObjectOptions(look_every=0, feed_delay=0, lock_patience=500)

Work = Callable[[Store, int], Awaitable[Any]]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=["directory", "s3"])
async def racing(request: pytest.FixtureRequest, clock: VirtualClock) -> AsyncIterator[Site]:
    """Afterwards the invariants hold, as somebody sees it who was not there."""
    async with a_site(request, request.param, clock, OPTIONS) as site:
        yield site
        evidence = await gather(await site.client(), since=START)
        if site.others_were_here:
            evidence.events = list({(event.seq, event.n): event for event in evidence.events}.values())
        assert_holds(evidence)


on_a_bucket_at_night = pytest.mark.parametrize(
    "racing", ["directory", pytest.param("s3", marks=[pytest.mark.nightly])], indirect=True
)


@pytest.fixture
async def store(racing: Site) -> ObjectStore:
    return await racing.client()


@pytest.fixture
def together(racing: Site) -> Callable[[Store, Sequence[Work]], Awaitable[list[Any]]]:
    """What tests/store does with tasks or threads on one store is done here by clients of one place."""

    async def in_clients(store: Store, works: Sequence[Work]) -> list[Any]:
        clients = await racing.clients(min(len(works), 2 * CLIENTS))
        parts = [work(clients[number % len(clients)], number) for number, work in enumerate(works)]
        return list(await asyncio.wait_for(asyncio.gather(*parts), PATIENCE))

    return in_clients


test_producers_workers_and_operators_do_not_lose_or_double_a_job = (
    shared.test_producers_workers_and_operators_do_not_lose_or_double_a_job
)
test_one_enqueue_asked_fifty_times_at_once_makes_one_job = (
    shared.test_one_enqueue_asked_fifty_times_at_once_makes_one_job
)
test_one_key_under_fifty_ids_at_once_makes_one_job = shared.test_one_key_under_fifty_ids_at_once_makes_one_job
test_a_job_is_either_cancelled_or_claimed = shared.test_a_job_is_either_cancelled_or_claimed
test_a_late_settle_and_the_reaper_cannot_both_have_the_job = (
    shared.test_a_late_settle_and_the_reaper_cannot_both_have_the_job
)
test_a_group_runs_one_at_a_time_whoever_asks = shared.test_a_group_runs_one_at_a_time_whoever_asks


# ── claims ────────────────────────────────────────────────────────────────────────────────────────


async def work_off(store: Store, number: int, size: int = 5) -> list[tuple[str, str]]:
    """Claim and complete until there is nothing; (job, lease) of every claim."""
    had = []
    idle = 0
    while idle < 3:
        jobs = await store.claim(a_claim(size, worker=f"w{number}"))
        idle = 0 if jobs else idle + 1
        had += [(job.id, job.lease.id) for job in jobs]
        receipts = await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
        assert set(receipts) <= {Receipt.OK}
    return had


@pytest.mark.parametrize(
    ("workers", "jobs"),
    [(CLIENTS, JOBS), pytest.param(16, 1_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])],
)
async def test_workers_that_race_for_jobs_run_each_once_under_one_lease(racing: Site, workers, jobs):
    """O-35, O-36: contention; and a worker seldom reaches for what another one has just taken."""
    asked = specs(jobs)
    clients = await racing.clients(workers)
    await clients[0].enqueue(asked)

    parts = await asyncio.gather(*(work_off(client, number) for number, client in enumerate(clients)))

    had = [claim for part in parts for claim in part]
    assert Counter(job for job, _ in had) == Counter(spec.id for spec in asked)
    assert len({lease for _, lease in had}) == jobs
    assert all(parts) or jobs < 1_000, "a worker went away with nothing"
    lost = sum(client.engine.tally["lost"] for client in clients)
    assert lost <= jobs, f"{lost} swaps were lost for {jobs} jobs"
    await nothing_is_lost(clients[0], [spec.id for spec in asked])


async def test_many_who_want_one_job_get_it_once(racing: Site):
    """O-35: contention on one task."""
    clients = await racing.clients(2 * CLIENTS)
    for _ in range(5):
        spec = await put(clients[0])

        claims = await asyncio.gather(*(client.claim(a_claim(worker=f"w{n}")) for n, client in enumerate(clients)))

        [job] = [job for part in claims for job in part]
        assert job.id == spec.id and job.attempt == 1
        assert (await show(clients[-1], spec)).lease_id == job.lease.id


async def test_of_many_settles_of_one_lease_one_is_the_end(racing: Site):
    """O-12, O-19: whoever comes second is told so, and changes nothing."""
    clients = await racing.clients(CLIENTS)
    await clients[0].enqueue(specs(10))
    held = await clients[0].claim(a_claim(10))

    for job in held:
        ends = [Change.completed(f"{n}".encode()) for n in range(CLIENTS)]
        receipts = await asyncio.gather(
            *(client.settle([(job.lease, end)]) for client, end in zip(clients, ends, strict=True))
        )
        said = [receipt for [receipt] in receipts]
        assert said.count(Receipt.OK) == 1 and set(said) == {Receipt.OK, Receipt.LOST}
        assert (await show(clients[1], job)).result == ends[said.index(Receipt.OK)].result

    held_by_one_at_a_time(await shared.all_events(clients[0]))


async def test_a_settle_and_an_extension_of_the_same_lease_do_not_lose_each_other(racing: Site):
    """BO-06: the object moved, but for a reason that leaves the lease alone."""
    holder, other = await racing.clients(2)
    await holder.enqueue(specs(10))
    held = await holder.claim(a_claim(10))

    for job in held:
        extended, settled = await asyncio.gather(
            other.extend([an_extension(job, by=60)]), holder.settle([(job.lease, Change.completed(b"7"))])
        )
        assert settled == [Receipt.OK]
        assert extended in ([Receipt.OK], [Receipt.LOST])
        found = await show(other, job)
        assert (found.state, found.result) == (State.COMPLETED, b"7")


# ── places that many want ─────────────────────────────────────────────────────────────────────────


async def test_one_id_from_many_producers_at_once_is_one_job(racing: Site):
    """O-16, BR-01: creating the object is the commit; the others are told that it is there."""
    clients = await racing.clients(2 * CLIENTS)

    for name in ("first", "second", "third"):
        answers = await asyncio.gather(
            *(client.enqueue([a_spec(id=name, token=f"{name}-{n}")]) for n, client in enumerate(clients))
        )
        assert Counter(answer.status for [answer] in answers) == {"queued": 1, "duplicate": len(clients) - 1}

    assert sorted(await take_ids(clients[0])) == ["first", "second", "third"]


async def test_a_batch_that_meets_one_of_its_jobs_elsewhere_happens_entirely_or_not_at_all(racing: Site):
    """Two calls with one key in common: one of them has it, and neither is torn."""
    clients = await racing.clients(CLIENTS)
    calls = [[a_spec(id=f"{n}-{k}", key="shared" if k == 3 else None) for k in range(8)] for n in range(CLIENTS)]

    answers = await asyncio.gather(*(client.enqueue(call) for client, call in zip(clients, calls, strict=True)))

    said = Counter(answer.status for part in answers for answer in part)
    assert said == {"queued": 7 * CLIENTS + 1, "duplicate": CLIENTS - 1}
    assert len(await take_ids(clients[0])) == 7 * CLIENTS + 1


async def test_a_lane_filled_by_many_is_worked_off_in_order_one_by_one(racing: Site):
    """W-02, W-04 across clients: the order of the numbers is the order of the runs."""
    clients = await racing.clients(CLIENTS)
    await control(clients[0], lanes=1)
    await asyncio.gather(*(fill(client, 6) for client in clients))
    ran: list[int] = []
    running = Counter[str]()

    async def work(client: ObjectStore, number: int) -> None:
        while len(ran) < 6 * CLIENTS:
            jobs = await client.claim(a_claim(4, worker=f"w{number}"))
            assert len(jobs) <= 1
            for job in jobs:
                running["now"] += 1
                assert running["now"] == 1, "two of one lane at the same time"
                ran.append(job.seq)
                await asyncio.sleep(0)
                running["now"] -= 1
                assert await client.settle([(job.lease, Change.completed())]) == [Receipt.OK]

    await asyncio.wait_for(asyncio.gather(*(work(client, n) for n, client in enumerate(clients))), PATIENCE)

    assert len(ran) == 6 * CLIENTS
    assert ran == sorted(ran)


async def fill(client: ObjectStore, number: int) -> None:
    for _ in range(number):
        await client.enqueue([a_spec()])


async def test_lanes_are_filled_evenly_by_many(racing: Site):
    """BW-15: the counter is the pool's, not the client's."""
    clients = await racing.clients(CLIENTS)
    await control(clients[0], lanes=4)

    await asyncio.gather(*(fill(client, 4) for client in clients))

    assert {status.lane: status.waiting for status in await clients[0].lanes("default")} == dict.fromkeys(range(4), 4)


async def test_a_queue_never_gets_deeper_than_it_may(racing: Site):
    clients = await racing.clients(CLIENTS)
    await control(clients[0], max_depth=10)

    async def push(client: ObjectStore) -> Counter[str]:
        said: Counter[str] = Counter()
        for _ in range(5):
            try:
                [answer] = await client.enqueue([a_spec()])
                said[answer.status] += 1
            except QueueFull:
                said["full"] += 1
        return said

    said = sum(await asyncio.gather(*map(push, clients)), Counter[str]())

    assert said == {"queued": 10, "full": 5 * CLIENTS - 10}
    assert (await count(clients[0])).waiting == 10


async def test_no_more_run_than_the_queue_allows_whoever_asks(racing: Site):
    """E-14, E-16, X3."""
    clients = await racing.clients(CLIENTS)
    await control(clients[0], max_running=3)
    await clients[0].enqueue(specs(40))
    running = Counter[str]()

    async def work(client: ObjectStore, number: int) -> None:
        while running["done"] < 40:
            jobs = await client.claim(a_claim(2, worker=f"w{number}"))
            running["now"] += len(jobs)
            running["most"] = max(running["most"], running["now"])
            await asyncio.sleep(0)
            running["now"] -= len(jobs)
            running["done"] += len(jobs)
            await client.settle([(job.lease, Change.completed()) for job in jobs])

    await asyncio.wait_for(asyncio.gather(*(work(client, n) for n, client in enumerate(clients))), PATIENCE)

    assert 1 <= running["most"] <= 3
    assert (await count(clients[0])).completed == 40
    assert_holds(await gather(clients[0], since=START, fixed_limits=True))


async def test_a_child_enqueued_while_its_parent_ends_is_not_left_waiting(racing: Site):
    """BE-04: whichever comes first, the child learns of the end."""
    ends, begins, looks = await racing.clients(3)
    parents = specs(25, queue="parents")
    await ends.enqueue(parents)
    jobs = {job.id: job for job in await ends.claim(a_claim(25, queue="parents"))}
    children = [a_spec(queue="children", after=(spec.id,)) for spec in parents]

    for parent, child in zip(parents, children, strict=True):
        settled, _ = await asyncio.gather(
            ends.settle([(jobs[parent.id].lease, Change.completed())]), begins.enqueue([child])
        )
        assert settled == [Receipt.OK]

    assert sorted(await take_ids(looks, queue="children")) == sorted(child.id for child in children)


# ── operators ─────────────────────────────────────────────────────────────────────────────────────


async def claim_for_ever(client: ObjectStore, number: int, taken: list[str], stop: asyncio.Event) -> None:
    while not stop.is_set():
        taken += [job.id for job in await client.claim(a_claim(2, worker=f"w{number}"))]
        await asyncio.sleep(0)


async def test_nothing_is_claimed_once_a_pause_was_acknowledged(racing: Site):
    """I15: what a claim had not yet got when the pause was answered, it gives back."""
    operator, *workers = await racing.clients(CLIENTS)
    await operator.enqueue(specs(400))
    taken: list[str] = []
    stop = asyncio.Event()
    crowd = [asyncio.create_task(claim_for_ever(client, n, taken, stop)) for n, client in enumerate(workers)]
    while len(taken) < 10:
        await asyncio.sleep(0.001)

    await control(operator, paused=True)
    running = await running_jobs(operator)
    claims = [await client.claim(a_claim(2)) for client in workers]
    stop.set()
    await asyncio.gather(*crowd)

    assert claims == [[]] * len(workers)
    assert set(taken) <= running
    assert sorted(taken) == sorted(await running_jobs(operator))


async def running_jobs(client: ObjectStore) -> set[str]:
    return {job.id for job in (await client.find(Query(state="running", limit=1_000))).jobs}


async def test_what_is_drained_was_not_claimed_and_what_was_claimed_is_not_drained(racing: Site):
    operator, *workers = await racing.clients(CLIENTS)
    asked = specs(150)
    await operator.enqueue(asked)
    taken: list[str] = []
    stop = asyncio.Event()
    crowd = [asyncio.create_task(claim_for_ever(client, n, taken, stop)) for n, client in enumerate(workers)]
    while len(taken) < 10:
        await asyncio.sleep(0.001)

    drained = 0
    while some := await operator.drain("default", 40):
        drained += some
    stop.set()
    await asyncio.gather(*crowd)

    states = Counter(job.state for job in await operator.get([spec.id for spec in asked]) if job is not None)
    assert states == {State.RUNNING: len(taken), State.CANCELLED: 150 - len(taken)}
    assert drained == 150 - len(taken) and len(set(taken)) == len(taken)


async def test_a_claim_and_a_cancel_of_one_job_have_one_winner(racing: Site):
    clients = await racing.clients(2)
    for _ in range(15):
        spec = await put(clients[0])

        [answer], claimed = await asyncio.gather(clients[0].cancel([spec.id]), clients[1].claim(a_claim()))

        assert (answer, [job.id for job in claimed]) in [(Cancelled.CANCELLED, []), (Cancelled.RUNNING, [spec.id])]


# ── processes ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("workers", "jobs"), [(3, JOBS), AT_NIGHT])
async def test_processes_that_race_for_jobs_run_each_once_under_one_lease(
    racing: Site, store: ObjectStore, workers, jobs
):
    """O-35, with nothing shared but the place."""
    asked = specs(jobs)
    await store.enqueue(asked)

    answers = await asyncio.to_thread(run_children, racing, ["work_off"] * workers)

    had = [tuple(claim) for part, _ in answers for claim in part]
    assert Counter(job for job, _ in had) == Counter(spec.id for spec in asked)
    assert len({lease for _, lease in had}) == jobs
    lost = sum(tally for _, tally in answers)
    assert lost <= jobs, f"{lost} swaps were lost for {jobs} jobs"
    found = await store.get([spec.id for spec in asked])
    assert {job.state for job in found if job is not None} == {State.COMPLETED} and None not in found


@on_a_bucket_at_night
async def test_processes_share_a_place_without_losing_or_doubling_a_job(racing: Site, store: ObjectStore):
    roles = ["produce", "produce", "consume", "consume", "meddle"]

    *produced, _, _, _ = await asyncio.to_thread(run_children, racing, roles)

    await nothing_is_lost(store, [job_id for part, _ in produced for job_id in part])


@on_a_bucket_at_night
async def test_one_key_in_many_processes_at_once_makes_one_job(racing: Site, store: ObjectStore):
    answers = await asyncio.to_thread(run_children, racing, ["same_key"] * 3)

    assert Counter(status for part, _ in answers for status in part)["queued"] == 1
    assert len((await store.find(Query())).jobs) == 1


def run_children(racing: Site, roles: Sequence[str]) -> list[Any]:
    """Each role in a process of its own, with the real clock, all let go at once; (answer, swaps lost) of each."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **racing.environment, "PYTHONPATH": path}
    racing.others_were_here = True
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.object.test_races", role, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for number, role in enumerate(roles)
    ]
    answers = []
    try:
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n", child.communicate()[1]
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        for child in children:
            out, err = child.communicate(timeout=600)
            assert child.returncode == 0, err
            answers.append(json.loads(out))
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()
    return answers


ROLES: dict[str, Work] = {
    "work_off": work_off,
    "produce": shared.produce,
    "consume": shared.consume,
    "meddle": shared.meddle,
    "same_key": shared.same_key,
}


async def in_this_process(role: str, number: int) -> Any:
    store = connect(os.environ["STORE_URL"])
    assert isinstance(store, ObjectStore)
    await store.connect()
    try:
        print("ready", flush=True)
        sys.stdin.readline()
        return await ROLES[role](store, number), store.engine.tally["lost"]
    finally:
        await store.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(in_this_process(sys.argv[1], int(sys.argv[2])))))
