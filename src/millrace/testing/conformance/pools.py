"""More tests of pools: draining one lane, skipping full lanes, and hooks that a drain must not cancel."""

from __future__ import annotations

import pytest

from millrace.domain.errors import InvalidInput, LanesInUse, QueueFull
from millrace.domain.hashing import fnv1a
from millrace.domain.request import LaneStatus
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    put,
    put_dead,
    retry,
    show,
    take,
    take_ids,
)


async def test_one_lane_is_drained_and_the_others_keep_their_jobs(store: Store, clock: VirtualClock) -> None:
    """Draining one lane cancels its waiting jobs; its running job and the other lanes are not affected."""
    await control(store, lanes=2)
    answers = await store.enqueue(specs(8))
    running = await take(store)

    assert await store.drain("default", lane=0) == 3

    left = [answer.id for answer in answers if answer.lane == 1]
    assert await store.lanes("default") == [
        LaneStatus(0, waiting=0, running=1, holder=running.seq),
        LaneStatus(1, waiting=4),
    ]
    await complete(store, running)
    assert await take_ids(store) == left[:1]


async def test_draining_a_lane_takes_whatever_waits_there(store: Store, clock: VirtualClock) -> None:
    """Draining a lane cancels all of its waiting jobs, also retrying, blocked and delayed ones."""
    await control(store, lanes=1)
    parent = await put(store, queue="other")
    aside = await put(store, retry_blocks=False)
    await retry(store, await take(store), delay=60)
    holder = await put(store)
    await retry(store, await take(store), delay=60)
    others = [await put(store, after=(parent.id,)), await put(store, delay=60), await put(store, priority=3)]

    assert [await store.drain("default", 2, lane=0) for _ in range(4)] == [2, 2, 1, 0]

    assert {(await show(store, spec)).reason for spec in (aside, holder, *others)} == {"drained"}
    assert await store.lanes("default") == [LaneStatus(0)]


async def test_only_lanes_that_exist_can_be_drained(store: Store, clock: VirtualClock) -> None:
    await control(store, lanes=2)
    spec = await put(store)
    for lane in (2, -1):
        with pytest.raises(InvalidInput, match=f"no lane {lane}"):
            await store.drain("default", lane=lane)
    with pytest.raises(InvalidInput, match="no lanes"):
        await store.drain("plain", lane=0)

    assert await take_ids(store) == [spec.id]


async def test_a_drain_leaves_what_tells_of_the_drained_queue(store: Store, clock: VirtualClock) -> None:
    """A drain does not cancel hook jobs, which report deaths and the empty queue."""
    await control(store, on_empty="notify")
    await put_dead(store, on_dead_letter="mourn")
    await store.enqueue(specs(5))

    assert [await store.drain("default", 3) for _ in range(3)] == [3, 2, 0]
    hooks = [await take(store, tasks=[task]) for task in ("mourn", "notify", "notify")]
    assert [job.spec.hook for job in hooks] == [True, True, True]  # empty after the death, and after the drain


async def test_a_hook_that_waits_does_not_hold_the_number_of_lanes(store: Store, clock: VirtualClock) -> None:
    """The number of lanes can be changed while hook jobs wait, because hooks are in no lane."""
    await control(store, lanes=2)
    await put(store, on_dead_letter="mourn")
    job = await take(store)
    with pytest.raises(LanesInUse) as refusal:
        await control(store, lanes=3)
    assert (refusal.value.lanes, refusal.value.wanted, refusal.value.live) == (2, 3, 1)
    await bury(store, job)

    assert (await control(store, lanes=3)).lanes == 3
    assert (await take(store, tasks=["mourn"])).lane is None


async def test_jobs_without_a_key_pass_over_full_lanes(store: Store, clock: VirtualClock) -> None:
    """Jobs without a partition key are put into lanes that are not full. If all lanes are full, QueueFull is raised."""
    await control(store, lanes=3, max_depth=2)
    key = next(name for name in map(str, range(99)) if fnv1a(name) % 3 == 1)
    await store.enqueue(specs(2, group=key))

    answers = await store.enqueue(specs(4))
    assert [answer.lane for answer in answers] == [0, 2, 0, 2]
    with pytest.raises(QueueFull) as refusal:
        await store.enqueue([a_spec()])
    assert (refusal.value.depth, refusal.value.max_depth) == (2, 2)
