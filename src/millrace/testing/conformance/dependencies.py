"""Dependencies: a child becomes ready in the same step that completes its last parent.

For a parent whose record was pruned, the store keeps a small record of how it ended (`Past` in `domain/tables.py`).
"""

from __future__ import annotations

import asyncio

from millrace.domain.change import Change
from millrace.domain.job import Spec, State, word
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_spec, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    count,
    finish,
    kinds,
    put,
    put_completed,
    retry,
    show,
    take,
    take_ids,
)


async def test_a_child_starts_only_after_its_parents(store: Store, clock: VirtualClock) -> None:
    a, b = await put(store), await put(store)
    child = await put(store, after=(a.id, b.id), priority=15)
    first, second = await store.claim(a_claim(5))
    await complete(store, first)
    assert await take_ids(store) == []
    await complete(store, second)

    assert await take_ids(store) == [child.id]


async def test_the_last_completion_unblocks_in_the_same_step(store: Store, clock: VirtualClock) -> None:
    """A child is ready as soon as its last parent has been settled as completed."""
    parent = await put(store)
    child = await put(store, after=(parent.id,))
    assert word(await show(store, child), clock()) == "blocked"
    await complete(store, await take(store))

    assert word(await show(store, child), clock()) == "ready"
    assert await kinds(store, child) == ["enqueued", "unblocked"]


async def test_a_parent_that_completed_before_counts(store: Store, clock: VirtualClock) -> None:
    """A job that is enqueued after its parents have completed is ready at once."""
    parent = await put_completed(store)
    child = await put(store, after=(parent.id,))

    assert (await show(store, child)).blocked == 0
    assert await take_ids(store) == [child.id]


async def test_a_parent_that_was_pruned_still_counts(store: Store, clock: VirtualClock) -> None:
    """A job can depend on a completed parent whose record was pruned."""
    await control(store, keep_completed=0)
    parent = await put_completed(store)
    child = await put(store, after=(parent.id,))

    assert await take_ids(store) == [child.id]


async def test_a_tombstone_outlives_its_events_while_a_dependent_is_open(store: Store, clock: VirtualClock) -> None:
    await control(store, keep_completed=0, keep_dead=0)
    dead = await put(store)
    child = await put(store, after=(dead.id,), on_dependency="wait", queue="patient")
    await bury(store, await take(store))
    clock.advance(30 * 24 * 3600)
    await store.maintain()

    late = a_spec(after=(dead.id,))
    [answer] = await store.enqueue([late])
    assert answer.state is State.DEAD
    assert (await show(store, child)).state is State.WAITING


async def test_parent_and_child_may_be_in_different_queues(store: Store, clock: VirtualClock) -> None:
    parent = await put(store, queue="a")
    child = await put(store, queue="b", after=(parent.id,))
    assert await take_ids(store, queue="b") == []
    await complete(store, await take(store, queue="a"))

    assert await take_ids(store, queue="b") == [child.id]


async def test_enqueue_and_completion_at_the_same_time_leave_nobody_waiting(store: Store, clock: VirtualClock) -> None:
    """A child that is enqueued while its parent is being completed becomes ready, whichever comes first."""
    parents = specs(20, queue="a")
    await store.enqueue(parents)
    jobs = await store.claim(a_claim(20, queue="a"))
    children = [a_spec(queue="b", after=(spec.id,)) for spec in parents]

    await asyncio.gather(
        *(
            call
            for job, child in zip(jobs, children, strict=True)
            for call in (complete(store, job), store.enqueue([child]))
        )
    )

    assert sorted(await take_ids(store, queue="b")) == sorted(child.id for child in children)


async def test_of_concurrent_enqueues_of_the_same_ids_one_stores_all_jobs(store: Store, clock: VirtualClock) -> None:
    """Each call is one step: the others find all of its jobs, and add only those that it does not have."""

    def family(parts: int) -> list[Spec]:
        parents = [a_spec(id=f"f/{number}") for number in range(parts)]
        return [*parents, a_spec(id="f", after=tuple(spec.id for spec in parents))]

    answers = await asyncio.gather(*(store.enqueue(family(2 + number % 2)) for number in range(8)))

    queued = [[answer.id for answer in each if answer.status == "queued"] for each in answers]
    [first] = [ids for ids in queued if "f" in ids]
    assert first in (["f/0", "f/1", "f"], ["f/0", "f/1", "f/2", "f"])
    assert sorted(ids for ids in queued if ids and ids != first) == ([] if "f/2" in first else [["f/2"]])
    child = await show(store, "f")
    assert child.blocked == len(child.spec.after) == len(first) - 1


async def test_a_retry_of_the_parent_unblocks_nothing(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    await put(store, after=(parent.id,))
    await retry(store, await take(store))

    assert await take_ids(store) == [parent.id]


async def test_within_one_call_parents_may_come_after_their_children(store: Store, clock: VirtualClock) -> None:
    parent = a_spec()
    child = a_spec(after=(parent.id,), priority=9)
    await store.enqueue([child, parent])

    assert await take_ids(store) == [parent.id]


async def test_a_diamond_is_no_cycle(store: Store, clock: VirtualClock) -> None:
    top = a_spec()
    left, right = a_spec(after=(top.id,)), a_spec(after=(top.id,))
    bottom = a_spec(after=(left.id, right.id, top.id))
    await store.enqueue([bottom, right, left, top])
    waves = []
    while jobs := await store.claim(a_claim(5)):
        waves.append({job.id for job in jobs})
        await store.settle([(job.lease, Change.completed()) for job in jobs])

    assert waves == [{top.id}, {left.id, right.id}, {bottom.id}]


async def test_a_parent_named_twice_is_one_parent(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    child = await put(store, after=(parent.id, parent.id))
    assert (await show(store, child)).blocked == 1
    await complete(store, await take(store))

    assert await take_ids(store) == [child.id]


async def test_a_thousand_children_are_unblocked_by_one_completion(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    await store.enqueue(specs(1_000, after=(parent.id,)))
    await complete(store, await take(store))

    assert ((await count(store)).ready, (await count(store)).blocked) == (1_000, 0)


async def test_a_long_chain_runs_link_by_link(store: Store, clock: VirtualClock) -> None:
    chain = [a_spec(id="link-0")]
    chain += [a_spec(id=f"link-{n}", after=(f"link-{n - 1}",)) for n in range(1, 200)]
    await store.enqueue(chain)
    ran = []
    while jobs := await store.claim(a_claim(10)):
        ran += [job.id for job in jobs]
        await store.settle([(job.lease, Change.completed()) for job in jobs])

    assert ran == [spec.id for spec in chain]


async def test_a_delay_holds_after_the_parents_are_done(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    child = await put(store, after=(parent.id,), delay=60)
    await complete(store, await take(store))
    assert word(await show(store, child), clock()) == "scheduled"
    assert (await count(store)).retrying == 0

    clock.advance(60)
    assert await take_ids(store) == [child.id]


async def test_a_blocked_job_can_be_cancelled_and_is_not_unblocked_later(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    child = await put(store, after=(parent.id,))
    await store.cancel([child.id])
    await complete(store, await take(store))

    assert (await show(store, child)).state is State.CANCELLED
    assert await take_ids(store) == []
    assert (await count(store)).blocked == 0


async def test_the_end_of_one_blocked_job_leaves_the_other_children_of_its_parent_waiting(
    store: Store, clock: VirtualClock
) -> None:
    parent = await put(store)
    children = [await put(store, after=(parent.id,)) for _ in range(3)]
    await store.cancel([children[1].id])
    await complete(store, await take(store))

    assert (await show(store, children[1])).state is State.CANCELLED
    assert await take_ids(store) == [children[0].id, children[2].id]


async def test_a_carried_child_of_the_finishing_job_is_free_at_once(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    child = a_spec(after=(parent.id,))
    await finish(store, await take(store), Change.completed(jobs=(child,)))

    assert (await show(store, child)).blocked == 0
