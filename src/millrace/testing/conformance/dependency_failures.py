"""Parents that die, are cancelled, or do not exist.

The option `on_dependency` of a child decides what then happens to the child. An enqueue is refused if the job could
never run.
"""

from __future__ import annotations

import pytest

from millrace.domain.errors import DependencyCycle, UnknownDependency
from millrace.domain.job import State
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    count,
    found,
    put,
    put_cancelled,
    put_completed,
    put_dead,
    show,
    take,
    take_ids,
)


async def test_by_default_a_child_dies_with_its_parent(store: Store, clock: VirtualClock) -> None:
    """A child whose parent dies becomes dead with the reason `dependency_failed`, and its error names the parent."""
    parent = await put(store)
    child = await put(store, after=(parent.id,))
    await bury(store, await take(store))

    job = await show(store, child)
    assert (job.state, job.reason, job.attempt, job.failures) == (State.DEAD, "dependency_failed", 0, 0)
    assert job.error is not None and parent.id in job.error.message and "failed" in job.error.message


async def test_by_default_a_child_dies_when_its_parent_is_cancelled(store: Store, clock: VirtualClock) -> None:
    parent = await put(store)
    child = await put(store, after=(parent.id,))
    await store.cancel([parent.id])

    job = await show(store, child)
    assert (job.state, job.reason) == (State.DEAD, "dependency_failed")
    assert job.error is not None and "cancelled" in job.error.message


async def test_a_child_may_run_whatever_became_of_its_parent(store: Store, clock: VirtualClock) -> None:
    """With on_dependency="run", a child runs once all parents have ended, even if they died or were cancelled."""
    dying, going = await put(store), await put(store)
    child = await put(store, after=(dying.id, going.id), on_dependency="run")
    await bury(store, await take(store))
    assert (await show(store, child)).blocked == 1
    await store.cancel([going.id])

    assert await take_ids(store) == [child.id]


async def test_a_child_may_keep_waiting_for_a_parent_that_died(store: Store, clock: VirtualClock) -> None:
    """With on_dependency="wait", a child waits until its dead parent is replayed and completes."""
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
    """`on_dependency` also applies to parents that died or were cancelled before the child was enqueued."""
    for parent in (await put_dead(store), await put_cancelled(store)):
        child = a_spec(after=(parent.id,), on_dependency=policy, queue="children")
        [answer] = await store.enqueue([child])

        assert answer.state is state
        assert (await show(store, child)).blocked == (1 if policy == "wait" else 0)
        taken = await take_ids(store, queue="children")
        assert taken == ([child.id] if policy == "run" else [])


async def test_a_parent_nobody_knows_is_refused(store: Store, clock: VirtualClock) -> None:
    """Enqueueing a job whose parent does not exist raises UnknownDependency and stores nothing."""
    fine = a_spec()
    with pytest.raises(UnknownDependency) as refusal:
        await store.enqueue([fine, a_spec(id="child", after=("nobody",))])

    assert (refusal.value.job, refusal.value.parent) == ("child", "nobody")
    assert await found(store, archived=None) == []


async def test_a_parent_may_be_still_to_come_when_that_is_asked_for(store: Store, clock: VirtualClock) -> None:
    """With allow_missing=True, a job can wait for a parent that is enqueued later."""
    child = await put(store, after=("later",), allow_missing=True)
    assert await take_ids(store) == []
    await put_completed(store, id="later")

    assert await take_ids(store) == [child.id]


async def test_a_job_cannot_wait_for_itself(store: Store, clock: VirtualClock) -> None:
    with pytest.raises(DependencyCycle) as refusal:
        await store.enqueue([a_spec(id="a", after=("a",))])

    assert refusal.value.path == ("a", "a")


async def test_jobs_of_one_call_cannot_wait_for_each_other(store: Store, clock: VirtualClock) -> None:
    """A call whose jobs wait for each other in a cycle raises DependencyCycle and stores nothing."""
    ring = [a_spec(id=str(n), after=(str((n + 1) % 5),)) for n in range(5)]
    with pytest.raises(DependencyCycle) as refusal:
        await store.enqueue([a_spec(), *ring])

    assert len(refusal.value.path) == 6
    assert await found(store, archived=None) == []


async def test_a_cycle_closed_by_a_later_call_is_refused(store: Store, clock: VirtualClock) -> None:
    """A job is refused if it would wait for stored jobs that already wait for its id."""
    await put(store, id="a", after=("b",), allow_missing=True)
    await put(store, id="c", after=("a",))

    with pytest.raises(DependencyCycle):
        await store.enqueue([a_spec(id="b", after=("c",))])
    assert await store.get(["b"]) == [None]


async def test_a_long_chain_dies_with_its_first_link(store: Store, clock: VirtualClock) -> None:
    """The death of a job also buries a chain of thousands of dependent jobs, without a recursion error."""
    chain = [a_spec(id="link-0")]
    chain += [a_spec(id=f"link-{n}", after=(f"link-{n - 1}",)) for n in range(1, 3_000)]
    await store.enqueue(chain)
    await bury(store, await take(store))

    assert (await count(store)).dead == 3_000


async def test_a_replayed_child_runs_without_asking_its_parents_again(store: Store, clock: VirtualClock) -> None:
    """A replayed child runs even though its parent is still dead."""
    parent = await put(store)
    child = await put(store, after=(parent.id,))
    await bury(store, await take(store))
    await store.replay([child.id])

    assert await take_ids(store) == [child.id]


async def test_one_call_that_cancels_a_parent_and_its_child_meets_the_child_dead(
    store: Store, clock: VirtualClock
) -> None:
    """A cancel processes its ids in order. If the parent comes first, its child is already dead when the child's id
    follows.
    """
    await store.enqueue([a_spec(id="parent"), a_spec(id="child", after=("parent",)), a_spec(id="other")])

    answers = await store.cancel(["parent", "child", "other"])

    assert [answer.value for answer in answers] == ["cancelled", "dead", "cancelled"]
    [child] = await store.get(["child"])
    assert child is not None
    assert child.reason == "dependency_failed"


async def test_a_child_that_expires_with_its_parent_dies_of_the_parent(store: Store, clock: VirtualClock) -> None:
    """If parent and child have both expired, the parent is buried first. The child then dies of `dependency_failed`."""
    await store.enqueue([a_spec(id="parent", expires=5), a_spec(id="child", after=("parent",), expires=10)])
    clock.advance(11)

    assert await store.claim(a_claim()) == []

    parent, child = await store.get(["parent", "child"])
    assert parent is not None
    assert child is not None
    assert (parent.reason, child.reason) == ("ttl_expired", "dependency_failed")


async def test_the_end_of_a_chain_that_expires_with_its_head_dies_of_its_parent(
    store: Store, clock: VirtualClock
) -> None:
    """If the first and last job of a chain expire together, the last one dies of `dependency_failed`."""
    await store.enqueue(
        [
            a_spec(id="head", expires=5),
            a_spec(id="between", after=("head",)),
            a_spec(id="end", after=("between",), expires=10),
        ]
    )
    clock.advance(11)

    assert await store.claim(a_claim()) == []

    jobs = await store.get(["head", "between", "end"])
    assert [job.reason for job in jobs if job] == ["ttl_expired", "dependency_failed", "dependency_failed"]


async def test_a_child_is_dead_within_the_call_in_which_its_parent_dies_at_once(
    store: Store, clock: VirtualClock
) -> None:
    """A later spec of the call that repeats the child is told that it is dead."""
    dead = await put_dead(store)
    child = a_spec(after=("parent",), allow_missing=True)
    parent = a_spec(id="parent", after=(dead.id,))

    *_, again = await store.enqueue([child, parent, child])

    assert again.state is State.DEAD
