"""Lanes: each lane of a pool runs its jobs one at a time, in order."""

from __future__ import annotations

from collections import Counter

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput, QueueFull
from millrace.domain.hashing import fnv1a
from millrace.domain.job import State
from millrace.domain.request import LaneStatus
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_spec, seconds, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    count,
    finish,
    found,
    put,
    put_completed,
    retry,
    show,
    take,
    take_ids,
)


async def test_a_partition_key_picks_its_lane_by_a_stable_hash(store: Store, clock: VirtualClock) -> None:
    """The lane of a partition key is its FNV-1a hash modulo the number of lanes, so it is the same in all processes."""
    await control(store, lanes=4)
    names = [f"user-{n}" for n in range(20)]
    answers = await store.enqueue([a_spec(group=name) for name in names])

    assert [answer.lane for answer in answers] == [fnv1a(name) % 4 for name in names]
    assert {answer.lane for answer in answers} == {0, 1, 2, 3}
    assert (fnv1a(""), fnv1a("a"), fnv1a("foobar")) == (0x811C9DC5, 0xE40C292C, 0xBF9CF968)


async def test_without_a_key_lanes_are_filled_evenly_also_across_producers(store: Store, clock: VirtualClock) -> None:
    """Jobs without a partition key are distributed evenly over the lanes, also across several calls."""
    await control(store, lanes=4)
    lanes: Counter[int | None] = Counter()
    for size in (1, 3, 2, 5, 1):  # several calls, as from several producers
        lanes.update(answer.lane for answer in await store.enqueue(specs(size)))

    assert sorted(lanes.values()) == [3, 3, 3, 3]


async def test_one_job_per_lane_runs_in_order(store: Store, clock: VirtualClock) -> None:
    """A claim returns at most one job of each lane, and the jobs of a lane come in the order of enqueueing."""
    await control(store, lanes=2)
    asked = specs(6)
    await store.enqueue(asked)
    ran = []
    while jobs := await store.claim(a_claim(10)):
        assert len(jobs) == 2 and len({job.lane for job in jobs}) == 2
        ran += [job.id for job in jobs]
        await store.settle([(job.lease, Change.completed()) for job in jobs])

    assert ran == [spec.id for spec in asked]


async def test_jobs_of_one_partition_key_run_in_order(store: Store, clock: VirtualClock) -> None:
    """Jobs with the same partition key run in the order of enqueueing."""
    await control(store, lanes=3)
    asked = [a_spec(group=f"user-{n % 5}") for n in range(30)]
    await store.enqueue(asked)
    ran: dict[str | None, list[str]] = {}
    while jobs := await store.claim(a_claim(10)):
        for job in jobs:
            ran.setdefault(job.spec.group, []).append(job.id)
            await complete(store, job)

    assert ran == {f"user-{n}": [spec.id for spec in asked if spec.group == f"user-{n}"] for n in range(5)}


async def test_a_lane_runs_higher_priorities_first(store: Store, clock: VirtualClock) -> None:
    """Jobs of a lane run by priority, highest first, and then by seq."""
    await control(store, lanes=1)
    low = await put(store)
    high = await put(store, priority=1)
    assert await take_ids(store) == [high.id]

    await complete(store, await show(store, high))
    assert await take_ids(store) == [low.id]


async def test_a_job_in_backoff_holds_its_lane(store: Store, clock: VirtualClock) -> None:
    """By default, no other job of the lane runs while one waits for its retry."""
    await control(store, lanes=1)
    first, second = [await put(store) for _ in range(2)]
    await retry(store, await take(store), delay=10)
    assert await take_ids(store) == []

    clock.advance(10)
    assert await take_ids(store) == [first.id]
    await complete(store, await show(store, first))
    assert await take_ids(store) == [second.id]


async def test_a_snoozed_job_keeps_its_place_in_its_lane(store: Store, clock: VirtualClock) -> None:
    await control(store, lanes=1)
    first, _ = [await put(store) for _ in range(2)]
    await finish(store, await take(store), Change.snooze(seconds(10)))
    assert await take_ids(store) == []

    clock.advance(10)
    assert await take_ids(store) == [first.id]


async def test_a_delayed_job_keeps_its_place_in_its_lane(store: Store, clock: VirtualClock) -> None:
    """Jobs that were enqueued after a delayed job of the same lane wait until it is due."""
    await control(store, lanes=1)
    delayed = await put(store, delay=10)
    await put(store)
    assert await take_ids(store) == []

    clock.advance(10)
    assert await take_ids(store) == [delayed.id]


async def test_each_delayed_job_of_a_lane_is_counted_once(store: Store, clock: VirtualClock) -> None:
    """Also the first of the lane, which is open, if the jobs differ in task and delay."""
    await control(store, lanes=1)
    await control(store, "other", lanes=1)
    for task, delay in (("a", 10), ("b", 20), ("a", 30)):
        await put(store, task=task, delay=delay)
    await put(store, queue="other", delay=20)
    counted = []
    for _ in range(4):
        counts = {each.queue: each for each in await store.count()}
        counted.append((counts["default"].scheduled, counts["other"].scheduled))
        clock.advance(10)

    assert counted == [(3, 1), (2, 1), (1, 0), (0, 0)]


async def test_with_retry_blocks_off_a_lane_goes_on(store: Store, clock: VirtualClock) -> None:
    await control(store, lanes=1)
    first = await put(store, retry_blocks=False)
    second = await put(store)
    await retry(store, await take(store), delay=10)

    assert await take_ids(store) == [second.id]
    await complete(store, await show(store, second))
    clock.advance(10)
    assert await take_ids(store) == [first.id]


async def test_an_enqueue_into_a_pool_answers_lane_position_and_depth(store: Store, clock: VirtualClock) -> None:
    """The answer contains the lane, the job's position in the lane, and the number of jobs that wait in the lane."""
    await control(store, lanes=1)
    answers = await store.enqueue(specs(3))
    assert [(a.lane, a.position, a.depth) for a in answers] == [(0, 0, 1), (0, 1, 2), (0, 2, 3)]

    await take(store)
    [behind] = await store.enqueue([a_spec()])
    [urgent] = await store.enqueue([a_spec(priority=9)])
    [second] = await store.enqueue([a_spec(priority=9)])
    assert (behind.position, behind.depth) == (3, 3)
    assert [(a.position, a.depth) for a in (urgent, second)] == [(1, 4), (2, 5)]


async def test_a_duplicate_in_a_pool_answers_the_lane_of_the_job_that_is_there(
    store: Store, clock: VirtualClock
) -> None:
    """The answer for a duplicate contains the lane of the existing job. This holds for a duplicate id and a duplicate
    key.
    """
    await control(store, lanes=4)
    [first] = await store.enqueue([a_spec(id="a", group="user-1", key="k")])
    [by_id] = await store.enqueue([a_spec(id="a", group="user-2")])
    [by_key] = await store.enqueue([a_spec(group="user-2", key="k")])
    await complete(store, await take(store), b"1")
    [done] = await store.enqueue([a_spec(id="a", group="user-2")])

    assert first.lane == fnv1a("user-1") % 4 != fnv1a("user-2") % 4
    assert [answer.status for answer in (by_id, by_key, done)] == ["duplicate", "duplicate", "completed"]
    assert [answer.lane for answer in (by_id, by_key, done)] == [first.lane] * 3


async def test_each_lane_has_its_own_depth(store: Store, clock: VirtualClock) -> None:
    """`max_depth` applies to each lane separately, and QueueFull names the full lane."""
    await control(store, lanes=2, max_depth=2)
    key = "user-1"
    await store.enqueue(specs(2, group=key))

    with pytest.raises(QueueFull) as refusal:
        await store.enqueue([a_spec(group=key)])

    assert (refusal.value.lane, refusal.value.depth, refusal.value.max_depth) == (fnv1a(key) % 2, 2, 2)
    other = next(name for name in map(str, range(99)) if fnv1a(name) % 2 != fnv1a(key) % 2)
    await store.enqueue(specs(2, group=other))


async def test_the_number_of_lanes_does_not_change_under_waiting_jobs(store: Store, clock: VirtualClock) -> None:
    """The number of lanes cannot be changed while jobs wait in the pool."""
    await control(store, lanes=2)
    await put(store)

    with pytest.raises(InvalidInput, match="Drain the queue, or let the jobs finish, before you change it"):
        await control(store, lanes=3)
    await store.drain("default")
    assert (await control(store, lanes=3)).lanes == 3


async def test_a_queue_with_live_jobs_does_not_become_a_pool(store: Store, clock: VirtualClock) -> None:
    await put(store)
    await take(store)

    with pytest.raises(InvalidInput, match="Drain the queue, or let the jobs finish, before you change it"):
        await control(store, lanes=2)


async def test_a_paused_lane_stands_still_alone(store: Store, clock: VirtualClock) -> None:
    """If one lane is paused, the other lanes continue."""
    await control(store, lanes=2, paused_lanes=[0])
    answers = await store.enqueue(specs(4))
    here = [answer.id for answer in answers if answer.lane == 1]
    assert await take_ids(store) == here[:1]

    await control(store, paused_lanes=[])
    assert len(await take_ids(store)) == 1


async def test_a_lane_paused_while_its_job_runs_lets_it_finish(store: Store, clock: VirtualClock) -> None:
    await control(store, lanes=1)
    await store.enqueue(specs(2))
    job = await take(store)
    await control(store, paused_lanes=[0])
    await complete(store, job)
    assert await take_ids(store) == []

    await control(store, paused_lanes=[])
    assert len(await take_ids(store)) == 1


async def test_only_lanes_that_exist_can_be_paused(store: Store, clock: VirtualClock) -> None:
    await control(store, lanes=2)

    with pytest.raises(InvalidInput, match="lane 2"):
        await control(store, paused_lanes=[2])


async def test_lanes_tell_what_waits_runs_and_is_done(store: Store, clock: VirtualClock) -> None:
    """`Store.lanes` returns the numbers of waiting, running, completed and dead jobs of each lane."""
    await control(store, lanes=2, paused_lanes=[1])
    await store.enqueue(specs(8))
    await complete(store, await take(store))
    await bury(store, await take(store))
    running = await take(store)

    assert await store.lanes("default") == [
        LaneStatus(0, waiting=1, running=1, holder=running.seq, processed=1, died=1),
        LaneStatus(1, waiting=4, paused=True),
    ]


async def test_a_job_in_backoff_is_shown_as_the_holder_of_its_lane(store: Store, clock: VirtualClock) -> None:
    await control(store, lanes=1)
    await store.enqueue(specs(2))
    job = await take(store)
    await retry(store, job, delay=10)

    assert await store.lanes("default") == [LaneStatus(0, waiting=2, holder=job.seq)]


async def test_a_plain_queue_has_no_lanes(store: Store, clock: VirtualClock) -> None:
    await put(store)

    assert await store.lanes("default") == []


async def test_the_job_knows_its_lane(store: Store, clock: VirtualClock) -> None:
    """The record of a claimed job contains its lane."""
    await control(store, lanes=3)
    await store.enqueue(specs(3))

    assert sorted(str(job.lane) for job in await store.claim(a_claim(3))) == ["0", "1", "2"]


async def test_a_drain_during_a_run_leaves_the_lane_in_order(store: Store, clock: VirtualClock) -> None:
    """After a drain, the running job can still be completed. Then the lane runs jobs that are enqueued later."""
    await control(store, lanes=1)
    await store.enqueue(specs(3))
    job = await take(store)
    assert await store.drain("default") == 2
    later = await put(store)
    assert await take_ids(store) == []
    await complete(store, job)

    assert await take_ids(store) == [later.id]
    assert (await store.lanes("default"))[0].processed == 1


async def test_nothing_is_left_of_a_finished_job_in_its_lane(store: Store, clock: VirtualClock) -> None:
    """A lane has no waiting or running jobs after all its jobs have been completed and pruned."""
    await control(store, lanes=1, keep_completed=0)
    for _ in range(5):
        await put_completed(store)

    assert await found(store, archived=None) == []
    assert await store.lanes("default") == [LaneStatus(0, processed=5)]


async def test_a_replayed_job_runs_in_a_lane_of_the_pool_as_it_is_now(store: Store, clock: VirtualClock) -> None:
    """If the pool has fewer lanes than before, a replayed job uses the same lane as new jobs with its partition key."""
    await control(store, lanes=8)
    key = next(name for name in map(str, range(99)) if fnv1a(name) % 8 >= 2)
    old = await put_completed(store, group=key)
    await control(store, lanes=2)
    new = await put(store, group=key)
    await store.replay([old.id])

    assert await take_ids(store) == [old.id]
    assert sum(lane.waiting + lane.running for lane in await store.lanes("default")) == 2
    await complete(store, await show(store, old))
    assert await take_ids(store) == [new.id]


async def test_a_pool_of_a_thousand_jobs_loses_none(store: Store, clock: VirtualClock) -> None:
    """All of 1,000 jobs in a pool are claimed and completed."""
    await control(store, lanes=10)
    await store.enqueue(specs(1_000))
    done = 0
    while jobs := await store.claim(a_claim(100)):
        done += len(await store.settle([(job.lease, Change.completed()) for job in jobs]))

    assert done == (await count(store)).completed == 1_000
    assert {(await show(store, job)).state for job in (await found(store))[:3]} == {State.COMPLETED}
