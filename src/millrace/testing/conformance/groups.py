"""Groups: the jobs of a group (its members) run one at a time, in order."""

from __future__ import annotations

from millrace.domain.change import Change
from millrace.domain.job import State
from millrace.domain.request import Receipt
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_reclaim, a_retry_change, a_spec, seconds, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    finish,
    put,
    put_completed,
    retry,
    settle,
    show,
    take,
    take_ids,
)


async def test_one_job_of_a_group_runs_at_a_time(store: Store, clock: VirtualClock) -> None:
    first, second = [await put(store, group="g") for _ in range(2)]
    assert await take_ids(store) == [first.id]
    assert await take_ids(store) == []

    await complete(store, await show(store, first))
    assert await take_ids(store) == [second.id]


async def test_the_end_of_the_last_job_of_a_group_opens_no_other_group(store: Store, clock: VirtualClock) -> None:
    one, other = [await put(store, group=group) for group in ("one", "other")]
    await store.claim(a_claim(2))
    await complete(store, await show(store, one))
    after, second = [await put(store, group=group) for group in ("one", "other")]

    assert await take_ids(store) == [after.id]
    await complete(store, await show(store, other))
    assert await take_ids(store) == [second.id]


async def test_groups_do_not_hold_up_each_other_or_the_rest(store: Store, clock: VirtualClock) -> None:
    a1, a2, b1, free = [await put(store, group=group) for group in ("a", "a", "b", None)]

    assert await take_ids(store) == [a1.id, b1.id, free.id]
    assert (await show(store, a2)).state is State.WAITING


async def test_the_same_group_in_another_queue_is_another_group(store: Store, clock: VirtualClock) -> None:
    here, there = await put(store, queue="a", group="g"), await put(store, queue="b", group="g")

    assert await take_ids(store, queues=("a", "b")) == [here.id, there.id]


async def test_members_run_in_line_order(store: Store, clock: VirtualClock) -> None:
    """The members of a group run by priority, highest first, and then by seq."""
    asked = [await put(store, group="g", priority=p) for p in (0, 5, 0, 5)]
    ran = []
    for _ in asked:
        job = await take(store)
        ran.append(job.id)
        await complete(store, job)

    assert ran == [asked[n].id for n in (1, 3, 0, 2)]


async def test_a_better_member_goes_first_while_nobody_runs(store: Store, clock: VirtualClock) -> None:
    plain = await put(store, group="g")
    urgent = await put(store, group="g", priority=9)
    assert await take_ids(store) == [urgent.id]

    await put(store, group="g", priority=15)
    assert await take_ids(store) == []
    assert (await show(store, plain)).state is State.WAITING


async def test_a_member_in_backoff_holds_its_group(store: Store, clock: VirtualClock) -> None:
    """By default (retry_blocks=True), no other job of a group runs while one of its jobs waits for a retry."""
    first, second = [await put(store, group="g") for _ in range(2)]
    await retry(store, await take(store), delay=10)
    assert await take_ids(store) == []

    clock.advance(10)
    assert await take_ids(store) == [first.id]
    await complete(store, await show(store, first))
    assert await take_ids(store) == [second.id]


async def test_a_member_in_backoff_goes_before_better_ones(store: Store, clock: VirtualClock) -> None:
    first = await put(store, group="g")
    await retry(store, await take(store), delay=10)
    await put(store, group="g", priority=15)
    assert await take_ids(store) == []
    clock.advance(10)

    assert await take_ids(store) == [first.id]


async def test_a_member_may_let_its_group_go_on(store: Store, clock: VirtualClock) -> None:
    """With retry_blocks=False, other jobs of the group run while this job waits for its retry."""
    first = await put(store, group="g", retry_blocks=False)
    second = await put(store, group="g")
    await retry(store, await take(store), delay=10)
    assert await take_ids(store) == [second.id]

    clock.advance(10)
    assert await take_ids(store) == []
    await complete(store, await show(store, second))
    assert await take_ids(store) == [first.id]


async def test_a_snoozed_member_lets_its_group_go_on(store: Store, clock: VirtualClock) -> None:
    """Other jobs of a group run while one of its jobs is snoozed."""
    first, second = [await put(store, group="g") for _ in range(2)]
    await finish(store, await take(store), Change.snooze(seconds(10)))

    assert await take_ids(store) == [second.id]
    await complete(store, await show(store, second))
    clock.advance(10)
    assert await take_ids(store) == [first.id]


async def test_a_released_member_keeps_its_place(store: Store, clock: VirtualClock) -> None:
    first, _ = [await put(store, group="g") for _ in range(2)]
    await finish(store, await take(store), Change.release())

    assert await take_ids(store) == [first.id]


async def test_a_delayed_member_does_not_hold_its_group(store: Store, clock: VirtualClock) -> None:
    delayed = await put(store, group="g", delay=10)
    ready = await put(store, group="g")
    assert await take_ids(store) == [ready.id]
    clock.advance(10)
    assert await take_ids(store) == []

    await complete(store, await show(store, ready))
    assert await take_ids(store) == [delayed.id]


async def test_a_delayed_member_enters_in_line_order_once_it_is_due(store: Store, clock: VirtualClock) -> None:
    first = await put(store, group="g")
    delayed = await put(store, group="g", delay=10)
    third = await put(store, group="g")
    await take(store)
    clock.advance(10)
    await complete(store, await show(store, first))

    assert await take_ids(store) == [delayed.id]
    await complete(store, await show(store, delayed))
    assert await take_ids(store) == [third.id]


async def test_a_late_settle_does_not_free_the_group_held_by_the_new_run(store: Store, clock: VirtualClock) -> None:
    """A settle under an old lease is LOST. The group stays blocked, because the same job runs again under a new
    lease.
    """
    await store.enqueue(specs(2, group="g", lease=30))
    stalled = await take(store)
    clock.advance(31)
    [rescued] = await store.reclaim(a_reclaim())
    await finish(store, rescued, a_retry_change())
    again = await take(store)

    assert await settle(store, stalled, Change.completed()) is Receipt.LOST
    assert await take_ids(store) == []
    await complete(store, again)
    assert len(await take_ids(store)) == 1


async def test_a_group_goes_on_after_every_kind_of_end(store: Store, clock: VirtualClock) -> None:
    spec = [await put(store, group="g") for _ in range(5)]
    await bury(store, await take(store))
    assert await store.cancel([spec[1].id]) == ["cancelled"]
    await finish(store, await take(store), Change.cancel())
    await complete(store, await take(store))

    assert await take_ids(store) == [spec[4].id]


async def test_cancelling_the_holder_in_backoff_opens_the_group(store: Store, clock: VirtualClock) -> None:
    first, second = [await put(store, group="g") for _ in range(2)]
    await retry(store, await take(store), delay=100)
    await store.cancel([first.id])

    assert await take_ids(store) == [second.id]


async def test_a_blocked_member_does_not_hold_its_group(store: Store, clock: VirtualClock) -> None:
    parent = await put(store, queue="other")
    blocked = await put(store, group="g", after=(parent.id,))
    free = await put(store, group="g")
    assert await take_ids(store) == [free.id]
    await complete(store, await show(store, free))
    await complete(store, await take(store, queue="other"))

    assert await take_ids(store) == [blocked.id]


async def test_a_replayed_member_goes_back_into_its_line(store: Store, clock: VirtualClock) -> None:
    first = await put_completed(store, group="g")
    second = await put(store, group="g")
    await take(store)
    await store.replay([first.id])
    assert await take_ids(store) == []

    await complete(store, await show(store, second))
    assert await take_ids(store) == [first.id]


async def test_an_unknown_task_at_the_head_of_a_group_keeps_its_place(store: Store, clock: VirtualClock) -> None:
    strange = await put(store, group="g", task="strange")
    await put(store, group="g", task="known")

    assert await take_ids(store, tasks={"known"}) == []
    assert await take_ids(store, tasks={"strange"}) == [strange.id]


async def test_a_claim_costs_the_same_behind_a_busy_group(store: Store, clock: VirtualClock) -> None:
    """A claim skips the many waiting jobs of a busy group, and does not change their order."""
    await store.enqueue(specs(500, group="busy", priority=9))
    others = specs(3)
    await store.enqueue(others)
    held = await take(store)

    assert await take_ids(store) == [spec.id for spec in others]
    await complete(store, held)
    assert (await take(store)).seq == held.seq + 1


async def test_many_delayed_members_all_get_their_turn(store: Store, clock: VirtualClock) -> None:
    """Many delayed jobs of several groups become due at once. All of them run, even if one claim cannot handle them
    all.
    """
    await store.enqueue([a_spec(group=f"g-{n % 7}", delay=5) for n in range(350)])
    clock.advance(5)
    ran = 0
    for _ in range(400):
        jobs = await store.settle([(j.lease, Change.completed()) for j in await store.claim(a_claim(100))])
        ran += len(jobs)
        if ran == 350:
            break

    assert ran == 350


async def test_a_group_works_under_a_queue_limit(store: Store, clock: VirtualClock) -> None:
    """With max_running=2, a claim returns two jobs, of different groups."""
    await control(store, max_running=2)
    await store.enqueue([*specs(3, group="a"), *specs(3, group="b"), *specs(3, group="c")])

    taken = await store.claim(a_claim(100))

    assert len({job.spec.group for job in taken}) == len(taken) == 2
