"""Every request that an operation makes, cut off before and after it; then one sweep, and all is well (BO-01, BO-04).

A client dies at a request: it was not sent, or it was carried out and nobody heard. Time passes, a fresh client sweeps
once, and then: the invariants hold, nothing that was there is gone, the feed holds every event of every record once,
nothing is left to repair, and the whole backlog can be worked off.

Points that leave the store in the same state (all reads between two writes) are visited, and judged once.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.job import LIVE
from millrace.domain.request import Query
from millrace.store.object.engine.objects import opened
from millrace.store.object.engine.tables import ObjectTables
from millrace.store.object.engine.values import JobValue, decode
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_claim, a_reclaim, a_retry_change
from millrace.testing.clock import START, VirtualClock
from millrace.testing.invariants import assert_holds, gather
from proof.blob_faults import (
    BlobFault,
    BlobPlan,
    Crashed,
    FaultyBlobs,
    crash_points,
    no_faults,
    scripted_faults,
)
from proof.programs.crash_scenarios import Scenario, spec
from tests.narrowing import checked_cast
from tests.object.crash_scenes import MANY, SCENES

OPTIONS = ObjectOptions(look_every=0, feed_delay=0, lock_patience=1, listing_reuse=0, inline_limit=1_000)
QUEUES = ("default", "pool", "slow", "again", "another")
ROUNDS = 60
FOLLOWED = msgspec.structs.replace(OPTIONS, feed_delay=2_000)  # as a reader of a directory stays behind
processes = itertools.count()
FORGETS = ("obliterate", "maintain")
GOES_BY_INDEX = ("drain", "obliterate", "maintain")
TAKES_MORE = {"claim_from_a_line", "claim_under_a_limit", "claim_what_was_outside_its_line"}  # each time it is asked


@dataclass
class Scene:
    scenario: Scenario
    blobs: MemoryBlobs
    now: int
    leases: list
    jobs: frozenset[str]

    @property
    def name(self) -> str:
        return self.scenario.name

    def copy(self, clock: VirtualClock) -> MemoryBlobs:
        """The scene as it was, for one more try."""
        return copy(self.blobs, clock)


def copy(blobs: MemoryBlobs, clock: VirtualClock) -> MemoryBlobs:
    other = MemoryBlobs(clock=clock)
    other._keys = [*blobs._keys]
    other._lives = {key: [*life] for key, life in blobs._lives.items()}
    return other


async def open_store(driver, clock: VirtualClock, place: str, options: ObjectOptions = OPTIONS) -> ObjectStore:
    """Each time as a process of its own: with no number that another one, dead or alive, has taken."""
    store = ObjectStore(lambda: driver, clock=clock, options=options, place=f"{place} {next(processes)}")
    await store.connect()
    return store


async def set_scene(scenario: Scenario) -> Scene:
    clock = VirtualClock()
    blobs = MemoryBlobs(clock=clock)
    store = await open_store(blobs, clock, f"{scenario.name} scene")
    leases = await scenario.prepare(store, clock)
    jobs = frozenset(job.id for job in (await store.find(Query(archived=None, limit=1_000))).jobs)
    await store.close()
    return Scene(scenario, blobs, clock(), leases, jobs)


async def act(
    scene: Scene, blobs: MemoryBlobs, clock: VirtualClock, plan: BlobPlan, options: ObjectOptions = OPTIONS
) -> FaultyBlobs:
    faulty = FaultyBlobs(blobs)
    store = await open_store(faulty, clock, f"{scene.name} actor", options)
    faulty.calls, faulty.plan = 0, plan
    await scene.scenario.act(store, scene.leases)
    return faulty


@pytest.mark.parametrize("name", sorted(SCENES))
async def test_whatever_request_a_client_dies_at_one_sweep_puts_everything_right(name, record_property):
    await visit(SCENES[name], record_property)


@pytest.mark.nightly
async def test_that_holds_for_a_large_batch_too(record_property):
    await visit(MANY, record_property)


async def visit(scenario: Scenario, record_property: Callable[[str, object], None]) -> None:
    scene = await set_scene(scenario)
    clock = VirtualClock(scene.now)
    undisturbed = await act(scene, scene.copy(clock), clock, no_faults)
    visited = 0
    judged: set[int] = set()
    repairs: Counter[str] = Counter()
    for number, plan in enumerate(crash_points(undisturbed.calls)):
        clock = VirtualClock(scene.now)
        blobs = scene.copy(clock)
        with pytest.raises(Crashed):
            await act(scene, blobs, clock, plan)
        visited += 1
        if blobs._changes in judged:
            continue
        judged.add(blobs._changes)
        point = f"{scene.name}: crash {'after' if number % 2 else 'before'} request {number // 2 + 1}"
        try:
            repairs.update(await judge(scene, blobs, clock))
        except Exception as error:
            raise AssertionError(f"{point} of {undisturbed.calls}: {error}") from error
    assert visited == 2 * undisturbed.calls > 0
    assert len(judged) > 1, f"{scene.name} writes nothing, so nothing can be cut off"
    for what, figure in {"points": visited, "states": len(judged), "repairs": dict(repairs)}.items():
        record_property(what, figure)
    print(f"{scene.name}: {visited} points, {len(judged)} states, {dict(repairs)}")


@pytest.mark.parametrize("name", sorted(set(SCENES) - TAKES_MORE))
async def test_whoever_asks_again_at_once_gets_it_done_once(name):
    """Nobody sweeps first: the next client meets what the dead one left, and its half-done transactions. Only what
    goes by the index finds everything after a sweep."""
    scene = await set_scene(SCENES[name])
    clock = VirtualClock(scene.now)
    blobs = scene.copy(clock)
    undisturbed = await act(scene, blobs, clock, no_faults)
    wanted = await states(await open_store(blobs, clock, "undisturbed"))
    tried: set[int] = set()
    for number, plan in enumerate(crash_points(undisturbed.calls)):
        clock = VirtualClock(scene.now)
        blobs = scene.copy(clock)
        with pytest.raises(Crashed):
            await act(scene, blobs, clock, plan)
        if blobs._changes in tried:
            continue
        tried.add(blobs._changes)
        store = await open_store(blobs, clock, f"{scene.name} next")
        if name in GOES_BY_INDEX:
            clock.advance(11)
            await store.sweep(full=True)
            clock.advance(-11)
        await act(scene, blobs, clock, no_faults)
        clock.advance(11)
        await store.sweep(full=True)
        point = f"{scene.name}: crash {'after' if number % 2 else 'before'} request {number // 2 + 1}"
        assert await states(store) == wanted, f"{point}: asked again, it did not happen just once"
        await everything_is_well(store)


@pytest.mark.parametrize("name", sorted(set(SCENES) - set(FORGETS)))
async def test_whatever_request_a_client_dies_at_a_reader_hears_of_each_job_in_order(name):
    """A worker is at hand, and goes on with what the dead client left before any sweep; the reader follows the feed."""
    scene = await set_scene(SCENES[name])
    clock = VirtualClock(scene.now)
    undisturbed = await act(scene, scene.copy(clock), clock, no_faults, FOLLOWED)
    tried: set[int] = set()
    for number, plan in enumerate(crash_points(undisturbed.calls)):
        clock = VirtualClock(scene.now)
        blobs = scene.copy(clock)
        with pytest.raises(Crashed):
            await act(scene, blobs, clock, plan, FOLLOWED)
        if blobs._changes in tried:
            continue
        tried.add(blobs._changes)
        clock.advance((0.1, 1.0, 5.0, 30.0)[len(tried) % 4])
        heard = await followed(await open_store(blobs, clock, f"{scene.name} next", FOLLOWED), clock)
        point = f"{scene.name}: crash {'after' if number % 2 else 'before'} request {number // 2 + 1}"
        wrong = {job: numbers for job, numbers in heard.items() if numbers != [*range(1, len(numbers) + 1)]}
        assert not wrong, f"{point}: told out of order, or not at all: {wrong}"


async def followed(store: ObjectStore, clock: VirtualClock) -> dict[int, list[int]]:
    """What a reader hears while the backlog is worked off, and after a sweep: numbers of events, by job."""
    heard: defaultdict[int, list[int]] = defaultdict(list)
    cursor: str | None = None

    async def read() -> None:
        nonlocal cursor
        page = await store.events(cursor, 1_000)
        cursor = page.cursor
        for event in page.events:
            heard[event.seq].append(event.n)

    await let_go(store)
    for _ in range(6):  # what can be done before a sweep
        await work_on(store)
        clock.advance(0.7)
        await read()
    for _ in range(2):
        clock.advance(60)
        await store.sweep(full=True)
        await work_off(store, clock, read)
    clock.advance(60)
    await read()
    recorded_by_job: defaultdict[int, int] = defaultdict(int)
    for seq, n in await recorded(store):
        recorded_by_job[seq] = max(recorded_by_job[seq], n)
    assert {seq: len(numbers) for seq, numbers in heard.items()} == recorded_by_job, "events are missing, or told twice"
    return heard


@pytest.mark.parametrize(
    ("name", "part"), [("settle_many", 0.8), ("enqueue_a_bit_of_everything", 0.5), ("complete_what_many_wait_for", 0.6)]
)
async def test_a_sweep_that_dies_is_no_worse_than_any_other_client(name, part):
    scene = await set_scene(SCENES[name])
    clock = VirtualClock(scene.now)
    undisturbed = await act(scene, scene.copy(clock), clock, no_faults)
    crashed = scene.copy(clock)
    with pytest.raises(Crashed):
        await act(scene, crashed, clock, scripted_faults({int(undisturbed.calls * part): BlobFault.CRASH_AFTER}))
    clock.advance(20)
    calls = await swept(copy(crashed, clock), clock, no_faults)
    judged: set[int] = set()
    for plan in crash_points(calls):
        clock = VirtualClock(scene.now)
        clock.advance(20)
        blobs = copy(crashed, clock)
        with pytest.raises(Crashed):
            await swept(blobs, clock, plan)
        if blobs._changes not in judged:
            judged.add(blobs._changes)
            await judge(scene, blobs, clock)
    assert len(judged) > 1, "there was nothing to repair"


async def swept(blobs: MemoryBlobs, clock: VirtualClock, plan: BlobPlan) -> int:
    faulty = FaultyBlobs(blobs)
    store = await open_store(faulty, clock, "sweeper")
    faulty.calls, faulty.plan = 0, plan
    await store.sweep(full=True)
    return faulty.calls


async def states(store: ObjectStore) -> dict[str, tuple[object, ...]]:
    jobs = (await store.find(Query(archived=None, limit=1_000))).jobs
    return {job.id: (job.state, job.attempt, job.failures, job.generation, job.blocked, job.archived) for job in jobs}


async def judge(scene: Scene, blobs: MemoryBlobs, clock: VirtualClock) -> dict[str, int]:
    """One sweep by somebody else, after a while; what it had to do."""
    clock.advance(20)
    store = await open_store(blobs, clock, f"{scene.name} next")
    swept = await store.sweep(full=True)
    await everything_is_well(store)
    if scene.name not in FORGETS:
        found = await store.get(sorted(scene.jobs))
        assert None not in found, "a job is lost"
    again = await store.sweep(full=True)
    assert again.repairs == {}, f"a second sweep found {again.repairs} after {swept.repairs}"
    await let_go(store)
    await work_off(store, clock)
    await everything_is_well(store)
    await nothing_is_forgotten_with_time(store, clock)
    return swept.repairs


async def nothing_is_forgotten_with_time(store: ObjectStore, clock: VirtualClock) -> None:
    """What was to happen later happens: a trigger that a crash kept from being written is there again."""
    clock.advance(2 * 3600)
    while (await store.maintain()).more:
        pass
    late = [value.job.id for value in await records(store) if value.job is not None and value.job.result_until]
    assert late == [], "results that outlived their time"
    due = [schedule.name for schedule in (await store.due_schedules([], 10)).due]
    assert sorted(due) == [schedule.name for schedule in await store.schedules()], "a schedule that is not found"
    batches = await store.blobs.get_many(keys_below(store, "batches/"))
    assert not [blob for blob in batches if blob is not None and opened(blob.body).commits], "a manifest nobody needs"


async def everything_is_well(store: ObjectStore) -> None:
    evidence = await gather(store, since=START)
    assert_holds(evidence)
    told = Counter((event.seq, event.n) for event in evidence.events)
    assert set(told.values()) <= {1}, "an event was told twice"
    assert set(told) == await recorded(store), "the feed and the records differ"


def keys_below(store: ObjectStore, prefix: str) -> list[str]:
    return [key for key in checked_cast(MemoryBlobs, store.blobs.driver)._keys if key.startswith(prefix)]


async def records(store: ObjectStore) -> list[JobValue]:
    found = await store.engine.objects.read(keys_below(store, "tasks/"))
    return [decode(one.value, JobValue) for one in found if one.value is not None]


async def recorded(store: ObjectStore) -> set[tuple[int, int]]:
    values = await records(store)
    cut = await store.engine.answer(lambda ledger, now: checked_cast(ObjectTables, ledger.tables).trimmed())
    return {
        (filed.event.seq, filed.event.n)
        for value in values
        for filed in value.events
        if (filed.stamp, filed.place) > (cut.stamp, cut.place)
    }


async def let_go(store: ObjectStore) -> None:
    """What a scene has stopped or waits for on purpose."""
    if "pool" in {row.queue for row in await store.count()}:
        await store.control("queue", "pool", {"paused_lanes": []})
    await store.enqueue([spec("unheard-of")])


async def work_on(store: ObjectStore) -> int:
    """One turn of a worker; how many jobs it had."""
    lost = await store.reclaim(a_reclaim(lease=30))
    await store.settle([(job.lease, a_retry_change()) for job in lost])
    jobs = await store.claim(a_claim(20, queues=QUEUES, lease=10))
    assert len({job.id for job in jobs}) == len(jobs), "held twice"
    await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
    return len(lost) + len(jobs)


async def nothing_else() -> None: ...


async def work_off(
    store: ObjectStore, clock: VirtualClock, beside: Callable[[], Awaitable[None]] = nothing_else
) -> None:
    """Until nothing is left that waits or runs; a worker in good health does no more than this."""
    for _ in range(ROUNDS):
        await beside()
        if not await work_on(store):
            left = (await store.find(Query(archived=None, limit=1_000))).jobs
            if not [job for job in left if job.state in LIVE]:
                return
            clock.advance(15)
    raise AssertionError(f"never done: {[(job.id, job.state, job.blocked) for job in left if job.state in LIVE]}")
