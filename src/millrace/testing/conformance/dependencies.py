"""Dependencies: resolved inside the settle that completes the parent (part 2: dependencies; E-10, E-11)."""

from __future__ import annotations

import asyncio

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import DependencyCycle, UnknownDependency
from millrace.domain.job import State, word
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_spec, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    count,
    finish,
    found,
    kinds,
    put,
    put_cancelled,
    put_completed,
    put_dead,
    retry,
    show,
    take,
    take_ids,
)


async def test_a_child_starts_only_after_its_parents(store: Store, clock: VirtualClock) -> None:
    """E-10, I10."""
    a, b = await put(store), await put(store)
    child = await put(store, after=(a.id, b.id), priority=15)
    first, second = await store.claim(a_claim(5))
    await complete(store, first)
    assert await take_ids(store) == []
    await complete(store, second)

    assert await take_ids(store) == [child.id]


async def test_the_last_completion_unblocks_in_the_same_step(store: Store, clock: VirtualClock) -> None:
    """BE-07: no sweep in between; part 1: waiting, blocked → unblocked."""
    parent = await put(store)
    child = await put(store, after=(parent.id,))
    assert word(await show(store, child), clock()) == "blocked"
    await complete(store, await take(store))

    assert word(await show(store, child), clock()) == "ready"
    assert await kinds(store, child) == ["enqueued", "unblocked"]


async def test_a_parent_that_completed_before_counts(store: Store, clock: VirtualClock) -> None:
    """E-10: all dependencies completed → queue."""
    parent = await put_completed(store)
    child = await put(store, after=(parent.id,))

    assert (await show(store, child)).blocked == 0
    assert await take_ids(store) == [child.id]


async def test_a_parent_that_was_pruned_still_counts(store: Store, clock: VirtualClock) -> None:
    """BE-05: a tombstone remembers how it ended."""
    await control(store, keep_completed=0)
    parent = await put_completed(store)
    child = await put(store, after=(parent.id,))

    assert await take_ids(store) == [child.id]


async def test_a_tombstone_outlives_its_events_while_a_dependent_is_open(store: Store, clock: VirtualClock) -> None:
    """BE-05; part 2, retention."""
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
    """BE-04."""
    parent = await put(store, queue="a")
    child = await put(store, queue="b", after=(parent.id,))
    assert await take_ids(store, queue="b") == []
    await complete(store, await take(store, queue="a"))

    assert await take_ids(store, queue="b") == [child.id]


async def test_enqueue_and_completion_at_the_same_time_leave_nobody_waiting(store: Store, clock: VirtualClock) -> None:
    """BE-04: register and completion are one step each."""
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


async def test_a_retry_of_the_parent_unblocks_nothing(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    await put(store, after=(parent.id,))
    await retry(store, await take(store))

    assert await take_ids(store) == [parent.id]


async def test_by_default_a_child_dies_with_its_parent(store: Store, clock: VirtualClock) -> None:
    """BE-06; part 1: dead `dependency_failed`."""
    parent = await put(store)
    child = await put(store, after=(parent.id,))
    await bury(store, await take(store))

    job = await show(store, child)
    assert (job.state, job.reason, job.attempt, job.failures) == (State.DEAD, "dependency_failed", 0, 0)
    assert job.error is not None and parent.id in job.error.message and "died" in job.error.message


async def test_by_default_a_child_dies_when_its_parent_is_cancelled(store: Store, clock: VirtualClock) -> None:
    """BE-06."""
    parent = await put(store)
    child = await put(store, after=(parent.id,))
    await store.cancel([parent.id])

    job = await show(store, child)
    assert (job.state, job.reason) == (State.DEAD, "dependency_failed")
    assert job.error is not None and "cancelled" in job.error.message


async def test_a_child_may_run_whatever_became_of_its_parent(store: Store, clock: VirtualClock) -> None:
    """BE-06: run anyway."""
    dying, going = await put(store), await put(store)
    child = await put(store, after=(dying.id, going.id), on_dependency="run")
    await bury(store, await take(store))
    assert (await show(store, child)).blocked == 1
    await store.cancel([going.id])

    assert await take_ids(store) == [child.id]


async def test_a_child_may_keep_waiting_for_a_parent_that_died(store: Store, clock: VirtualClock) -> None:
    """BE-06: keep waiting."""
    parent = await put(store)
    child = await put(store, after=(parent.id,), on_dependency="wait")
    await bury(store, await take(store))
    assert (await show(store, child)).state is State.WAITING
    await store.replay([parent.id])
    await complete(store, await take(store))

    assert await take_ids(store) == [child.id]


async def test_a_child_that_waits_is_unblocked_by_the_next_generation(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    child = await put(store, after=(parent.id,), on_dependency="wait")
    await store.cancel([parent.id])
    await put(store, id=parent.id)
    await complete(store, await take(store))

    assert await take_ids(store) == [child.id]


@pytest.mark.parametrize(("policy", "state"), [("bury", State.DEAD), ("run", State.WAITING), ("wait", State.WAITING)])
async def test_a_parent_that_had_failed_before_counts_by_the_same_policy(
    store: Store, clock: VirtualClock, policy: str, state: State
) -> None:
    """BE-06, also for parents that ended before the enqueue."""
    for parent in (await put_dead(store), await put_cancelled(store)):
        child = a_spec(after=(parent.id,), on_dependency=policy, queue="children")
        [answer] = await store.enqueue([child])

        assert answer.state is state
        assert (await show(store, child)).blocked == (1 if policy == "wait" else 0)
        taken = await take_ids(store, queue="children")
        assert taken == ([child.id] if policy == "run" else [])


async def test_a_parent_nobody_knows_is_refused(store: Store, clock: VirtualClock) -> None:
    """BE-06; part 2: unknown ids are refused at enqueue."""
    fine = a_spec()
    with pytest.raises(UnknownDependency) as refusal:
        await store.enqueue([fine, a_spec(id="child", after=("nobody",))])

    assert (refusal.value.job, refusal.value.parent) == ("child", "nobody")
    assert await found(store, archived=None) == []


async def test_a_parent_may_be_still_to_come_when_that_is_asked_for(store: Store, clock: VirtualClock) -> None:
    """`allow_missing=True`."""
    child = await put(store, after=("later",), allow_missing=True)
    assert await take_ids(store) == []
    await put_completed(store, id="later")

    assert await take_ids(store) == [child.id]


async def test_within_one_call_parents_may_come_after_their_children(store: Store, clock: VirtualClock) -> None:
    parent = a_spec()
    child = a_spec(after=(parent.id,), priority=9)
    await store.enqueue([child, parent])

    assert await take_ids(store) == [parent.id]


async def test_a_job_cannot_wait_for_itself(store: Store, clock: VirtualClock) -> None:
    with pytest.raises(DependencyCycle) as refusal:
        await store.enqueue([a_spec(id="a", after=("a",))])

    assert refusal.value.path == ("a", "a")


async def test_jobs_of_one_call_cannot_wait_for_each_other(store: Store, clock: VirtualClock) -> None:
    """BE-06: cycles are refused and leave nothing."""
    ring = [a_spec(id=str(n), after=(str((n + 1) % 5),)) for n in range(5)]
    with pytest.raises(DependencyCycle) as refusal:
        await store.enqueue([a_spec(), *ring])

    assert len(refusal.value.path) == 6
    assert await found(store, archived=None) == []


async def test_a_cycle_closed_by_a_later_call_is_refused(store: Store, clock: VirtualClock) -> None:
    """A stored job waits for an id that is still to come; that one cannot wait for the stored job."""
    await put(store, id="a", after=("b",), allow_missing=True)
    await put(store, id="c", after=("a",))

    with pytest.raises(DependencyCycle):
        await store.enqueue([a_spec(id="b", after=("c",))])
    assert await store.get(["b"]) == [None]


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


async def test_a_long_chain_dies_with_its_first_link(store: Store, clock: VirtualClock) -> None:
    """Grand DAGs: a loop, not a recursion."""
    chain = [a_spec(id="link-0")]
    chain += [a_spec(id=f"link-{n}", after=(f"link-{n - 1}",)) for n in range(1, 3_000)]
    await store.enqueue(chain)
    await bury(store, await take(store))

    assert (await count(store)).dead == 3_000


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


async def test_a_replayed_child_runs_without_asking_its_parents_again(store: Store, clock: VirtualClock) -> None:
    """Replay is an operator's word: the child died with its parent and is brought back by hand."""
    parent = await put(store)
    child = await put(store, after=(parent.id,))
    await bury(store, await take(store))
    await store.replay([child.id])

    assert await take_ids(store) == [child.id]


async def test_a_carried_child_of_the_finishing_job_is_free_at_once(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    child = a_spec(after=(parent.id,))
    await finish(store, await take(store), Change.completed(jobs=(child,)))

    assert (await show(store, child)).blocked == 0
