"""Replaying a parent also replays the jobs that died because the parent had died or was cancelled."""

from __future__ import annotations

from millrace.domain.job import Spec, State
from millrace.domain.request import Deleted, Replayed
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    count,
    kinds,
    put,
    put_dead,
    show,
    take,
    take_ids,
)


async def a_dead_family(store: Store, **child: object) -> tuple[Spec, Spec, Spec]:
    """Create a dead parent, and a child and a grandchild that died because of it. Returns their specs."""
    parent = await put(store)
    middle = await put(store, after=(parent.id,), **child)
    last = await put(store, after=(middle.id,))
    await bury(store, await take(store))
    for job in (middle, last):
        assert (await show(store, job)).reason == "dependency_failed"
    return parent, middle, last


async def test_a_replayed_parent_brings_back_the_children_that_died_of_it(store: Store, clock: VirtualClock) -> None:
    """Replaying a dead parent also replays its children and grandchildren. Each of them waits again for its own
    parent.
    """
    parent, middle, last = await a_dead_family(store)
    assert await store.replay([parent.id]) == [Replayed.REPLAYED]

    jobs = [await show(store, spec) for spec in (parent, middle, last)]
    assert [job.state for job in jobs] == [State.WAITING] * 3
    assert [(job.blocked, job.replays, job.error, job.reason) for job in jobs[1:]] == [(1, 1, None, None)] * 2
    for spec in (parent, middle, last):
        assert await take_ids(store) == [spec.id]
        await complete(store, await show(store, spec))
    counts = await count(store)
    assert (counts.completed, counts.dead, counts.waiting, counts.blocked) == (3, 0, 0, 0)


async def test_the_history_says_that_a_child_came_back_with_its_parent(store: Store, clock: VirtualClock) -> None:
    parent, middle, _ = await a_dead_family(store)
    await store.replay([parent.id])

    last = (await store.history(middle.id))[-1]
    assert (last.kind.value, last.reason) == ("replayed", "parent_replayed")
    assert (await store.history(parent.id))[-1].reason is None


async def test_children_stay_dead_where_the_replay_says_so(store: Store, clock: VirtualClock) -> None:
    parent, middle, last = await a_dead_family(store)
    assert await store.replay([parent.id], children=False) == [Replayed.REPLAYED]

    assert [(await show(store, spec)).state for spec in (middle, last)] == [State.DEAD] * 2
    await complete(store, await take(store))
    assert [(await show(store, spec)).state for spec in (middle, last)] == [State.DEAD] * 2


async def test_a_child_comes_back_although_another_was_deleted(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    deleted, kept = [await put(store, after=(parent.id,)) for _ in range(2)]
    await bury(store, await take(store))
    assert await store.delete([deleted.id]) == [Deleted.DELETED]
    await store.replay([parent.id])

    assert (await show(store, kept)).state is State.WAITING


async def test_children_of_a_cancelled_parent_come_back_with_it(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    child = await put(store, after=(parent.id,))
    await store.cancel([parent.id])
    assert (await show(store, child)).state is State.DEAD
    await store.replay([parent.id])

    assert await take_ids(store) == [parent.id]
    assert (await show(store, child)).blocked == 1


async def test_a_child_that_came_too_late_comes_back_too(store: Store, clock: VirtualClock) -> None:
    """A child that was enqueued after its parent's death, and died at once, is replayed with the parent."""
    parent = await put_dead(store)
    child = await put(store, after=(parent.id,))
    assert (await show(store, child)).reason == "dependency_failed"
    await store.replay([parent.id])

    assert await take_ids(store) == [parent.id]
    await complete(store, await show(store, parent))
    assert await take_ids(store) == [child.id]


async def test_a_child_that_died_of_something_else_stays_dead(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    expired = await put(store, after=(parent.id,), expires=10)
    cancelled = await put(store, after=(parent.id,))
    await store.cancel([cancelled.id])
    clock.advance(10)
    await store.maintain()
    await bury(store, await take(store))
    await store.replay([parent.id])

    assert (await show(store, expired)).reason == "ttl_expired"
    assert (await show(store, cancelled)).state is State.CANCELLED


async def test_a_child_of_two_failed_parents_comes_back_with_the_second(store: Store, clock: VirtualClock) -> None:
    """A child of two dead parents stays dead when the first parent is replayed, and is replayed with the second one."""
    first, second = await put(store), await put(store)
    child = await put(store, after=(first.id, second.id))
    await bury(store, await take(store))
    await bury(store, await take(store))

    assert await store.replay([first.id]) == [Replayed.REPLAYED]
    assert (await show(store, child)).state is State.DEAD
    await complete(store, await take(store))
    assert await store.replay([second.id]) == [Replayed.REPLAYED]
    assert (await show(store, child)).blocked == 1
    await complete(store, await take(store))
    assert await take_ids(store) == [child.id]


async def test_a_child_of_a_failed_parent_and_a_live_one_waits_for_both(store: Store, clock: VirtualClock) -> None:
    failed, live = await put(store), await put(store, delay=60)
    child = await put(store, after=(failed.id, live.id))
    await bury(store, await take(store))
    await store.replay([failed.id])

    assert (await show(store, child)).blocked == 2


async def test_a_child_comes_back_to_wait_for_a_parent_that_was_never_enqueued(
    store: Store, clock: VirtualClock
) -> None:
    parent = await put(store)
    child = await put(store, after=(parent.id, "to-come"), allow_missing=True)
    await bury(store, await take(store))
    await store.replay([parent.id])
    assert (await show(store, child)).blocked == 2
    await complete(store, await take(store))
    assert await take_ids(store) == []

    await put(store, id="to-come")
    await complete(store, await take(store))
    assert await take_ids(store) == [child.id]


async def test_a_job_replayed_by_itself_does_not_wait_for_a_parent_that_was_never_enqueued(
    store: Store, clock: VirtualClock
) -> None:
    parent = await put(store)
    child = await put(store, after=(parent.id, "to-come"), allow_missing=True)
    await bury(store, await take(store))
    await store.replay([child.id])

    assert await take_ids(store) == [child.id]


async def test_a_child_comes_back_without_waiting_for_a_completed_parent_whose_record_is_deleted(
    store: Store, clock: VirtualClock
) -> None:
    first, second = await put(store), await put(store)
    child = await put(store, after=(first.id, second.id))
    await complete(store, await take(store))
    await bury(store, await take(store))
    await store.delete([first.id])
    await store.replay([second.id])

    assert (await show(store, child)).blocked == 1


async def test_parent_and_child_replayed_in_one_call_are_both_replayed(store: Store, clock: VirtualClock) -> None:
    """If one call names a parent and its children, the answer for each is REPLAYED, and each is replayed once."""
    parent, middle, last = await a_dead_family(store)

    assert await store.replay([parent.id, middle.id, last.id, last.id]) == [
        Replayed.REPLAYED,
        Replayed.REPLAYED,
        Replayed.REPLAYED,
        Replayed.WAITING,
    ]
    assert (await kinds(store, middle)).count("replayed") == 1


async def test_a_child_whose_key_is_taken_stays_dead(store: Store, clock: VirtualClock) -> None:
    """A child whose key is owned by another job is not replayed, and neither are its own children."""
    parent, middle, last = await a_dead_family(store, key="k")
    owner = await put(store, key="k", delay=60)
    assert await store.replay([parent.id]) == [Replayed.REPLAYED]

    assert [(await show(store, spec)).state for spec in (middle, last)] == [State.DEAD] * 2
    assert (await show(store, owner)).state is State.WAITING


async def test_a_child_that_was_deleted_does_not_come_back(store: Store, clock: VirtualClock) -> None:
    parent, middle, last = await a_dead_family(store)
    await store.delete([middle.id])
    await store.replay([parent.id])

    assert await store.get([middle.id]) == [None]
    assert (await show(store, last)).state is State.DEAD


async def test_a_parent_that_dies_again_takes_its_children_along_again(store: Store, clock: VirtualClock) -> None:
    parent, middle, last = await a_dead_family(store)
    for _ in range(2):
        await store.replay([parent.id])
        await bury(store, await take(store))
        assert [(await show(store, spec)).reason for spec in (middle, last)] == ["dependency_failed"] * 2
    await store.replay([parent.id])

    assert (await show(store, last)).replays == 3


async def test_an_auto_retried_parent_brings_its_children_back(store: Store, clock: VirtualClock) -> None:
    await control(store, auto_retries=1, auto_retry_delay=60)
    parent, middle, last = await a_dead_family(store)
    assert (await show(store, middle)).next_retry_at is None
    clock.advance(60)
    await store.maintain()

    assert await take_ids(store) == [parent.id]
    assert [(await show(store, spec)).blocked for spec in (middle, last)] == [1, 1]


async def test_hundreds_of_children_come_back_with_their_parent(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    children = [a_spec(after=(parent.id,)) for _ in range(250)]
    await store.enqueue(children)
    await bury(store, await take(store))
    assert (await count(store)).dead == 251
    await store.replay([parent.id])

    counts = await count(store)
    assert (counts.dead, counts.waiting, counts.blocked) == (0, 251, 250)
    await complete(store, await take(store))
    assert len(await store.claim(a_claim(300))) == 250


async def test_a_replayed_job_does_not_wait_for_a_parent_that_waits_for_it(store: Store, clock: VirtualClock) -> None:
    """The parent's id was enqueued again, and waits for the child through another job."""
    await store.enqueue([a_spec(id="parent"), a_spec(id="child", after=("parent",))])
    await store.cancel(["parent"])
    await store.enqueue([a_spec(id="between", after=("child",), on_dependency="wait")])
    await store.enqueue([a_spec(id="parent", after=("between",))])
    await store.replay(["child"])

    assert await take_ids(store) == ["child"]
