"""Enqueue and settle within a transaction of the caller. They take effect when the transaction commits, and not
before.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import DependencyCycle, DuplicateKey, InvalidInput, QueueFull, UnknownDependency
from millrace.domain.event import Kind
from millrace.domain.job import State
from millrace.domain.request import Receipt, Reclaim
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import kinds, show, take
from millrace.testing.invariants import gather


def a_transaction(store: Any) -> Any:
    """Begin a transaction as user code does. Return a connection for the argument `within` of a store method."""
    made = store.transaction() if hasattr(store, "transaction") else sqlite3.connect(store.path)
    made.execute("BEGIN")
    return made


async def test_a_job_enqueued_in_a_transaction_is_there_once_it_commits(store: Any, clock: VirtualClock) -> None:
    mine = a_transaction(store)
    spec = a_spec()

    [answer] = await store.within(mine).enqueue([spec])
    unseen = await store.get([spec.id])
    mine.commit()
    job = await show(store, spec)
    mine.close()

    assert answer.status == "queued"
    assert unseen == [None]
    assert job.seq == answer.seq
    assert await kinds(store, spec) == [Kind.ENQUEUED]
    assert (await take(store)).id == spec.id


async def test_a_job_whose_transaction_is_rolled_back_never_was(store: Any, clock: VirtualClock) -> None:
    """A rollback leaves no job, event, key, group member or count behind."""
    await store.enqueue([a_spec(id="parent")])
    before = await gather(store)
    mine = a_transaction(store)

    await store.within(mine).enqueue([a_spec(id="a", key="k", group="g"), a_spec(id="b", group="g")])
    await store.within(mine).enqueue([a_spec(id="c", after=("parent", "a"), queue="new")])
    mine.rollback()
    mine.close()

    assert await gather(store) == before
    [again] = await store.enqueue([a_spec(id="a", key="k", group="g")])
    assert (again.status, again.generation) == ("queued", 1)
    assert again.seq == 2 or (store.concurrent_writes and again.seq > 2)


async def test_steps_of_one_transaction_see_each_other(store: Any, clock: VirtualClock) -> None:
    mine = a_transaction(store)
    within = store.within(mine)

    [first] = await within.enqueue([a_spec(id="a", key="k")])
    [by_id] = await within.enqueue([a_spec(id="a", key="k")])
    [by_key] = await within.enqueue([a_spec(id="b", key="k")])
    [child] = await within.enqueue([a_spec(id="c", after=("a",))])
    mine.commit()
    mine.close()

    assert (first.status, by_id.status, by_key.status, child.status) == ("queued", "duplicate", "duplicate", "queued")
    assert (by_key.id, by_key.by) == ("a", "key")
    assert [job and job.blocked for job in await store.get(["a", "b", "c"])] == [0, None, 1]


async def test_a_refused_step_leaves_the_transaction_as_it_was(store: Any, clock: VirtualClock) -> None:
    await store.control("queue", "small", {"max_depth": 1})
    await store.enqueue([a_spec(id="owner", key="k")])
    mine = a_transaction(store)
    within = store.within(mine)
    await within.enqueue([a_spec(id="good", queue="small")])

    with pytest.raises(QueueFull):
        await within.enqueue([a_spec(id="over", queue="small")])
    with pytest.raises(DuplicateKey):
        await within.enqueue([a_spec(id="x"), a_spec(id="taken", key="k", on_hit="raise")])
    with pytest.raises(UnknownDependency):
        await within.enqueue([a_spec(id="y", after=("nobody",))])
    with pytest.raises(DependencyCycle):
        await within.enqueue([a_spec(id="p", after=("q",)), a_spec(id="q", after=("p",))])
    with pytest.raises(InvalidInput):
        await within.enqueue([a_spec(id="z", priority=99)])
    mine.commit()
    mine.close()

    found = await store.get(["good", "over", "x", "taken", "y", "p", "q", "z"])
    assert [job and job.id for job in found] == ["good", *[None] * 7]


async def test_the_same_enqueue_again_gets_the_same_answer_also_across_transactions(
    store: Any, clock: VirtualClock
) -> None:
    """A client that lost the reply to its commit can repeat the enqueue and gets the same answer."""
    spec = a_spec()
    mine = a_transaction(store)
    [first] = await store.within(mine).enqueue([spec])
    mine.commit()

    [second] = await store.within(mine).enqueue([spec])
    mine.commit()
    mine.close()
    [third] = await store.enqueue([spec])

    assert first == second == third


async def test_a_job_settled_in_a_transaction_ends_at_its_commit(store: Any, clock: VirtualClock) -> None:
    await store.enqueue([a_spec(id="job"), a_spec(id="next", after=("job",))])
    job = await take(store)
    mine = a_transaction(store)

    receipts = await store.within(mine).settle([(job.lease, Change.completed(b"1", jobs=(a_spec(id="child"),)))])
    before = await show(store, "job")
    mine.commit()
    mine.close()
    ended, unblocked, child = await store.get(["job", "next", "child"])

    assert receipts == [Receipt.OK]
    assert before.state is State.RUNNING
    assert (ended.state, ended.result) == (State.COMPLETED, b"1")
    assert (unblocked.blocked, child.state) == (0, State.WAITING)
    assert await store.settle([(job.lease, Change.completed(b"2"))]) == [Receipt.LOST]


async def test_a_settle_that_is_rolled_back_leaves_the_lease_standing(store: Any, clock: VirtualClock) -> None:
    await store.enqueue([a_spec(id="job")])
    job = await take(store)
    mine = a_transaction(store)

    await store.within(mine).settle([(job.lease, Change.completed(b"1", jobs=(a_spec(id="child"),)))])
    mine.rollback()
    mine.close()

    assert await store.get(["child"]) == [None]
    assert await store.settle([(job.lease, Change.retry(None, delay=0))]) == [Receipt.OK]
    assert await kinds(store, "job") == [Kind.ENQUEUED, Kind.CLAIMED, Kind.RETRIED]


async def test_a_settle_in_a_transaction_is_refused_when_the_lease_was_taken_over(
    store: Any, clock: VirtualClock
) -> None:
    """Within a transaction, a settle under a reclaimed lease is LOST as well."""
    await store.enqueue([a_spec(id="job")])
    stalled = await take(store)
    clock.advance(60)
    [rescued] = await store.reclaim(Reclaim("other"))
    mine = a_transaction(store)

    receipts = await store.within(mine).settle([(stalled.lease, Change.completed(b"stale"))])
    mine.commit()
    mine.close()

    assert receipts == [Receipt.LOST]
    assert await store.settle([(rescued.lease, Change.completed(b"fresh"))]) == [Receipt.OK]


async def test_what_is_no_connection_to_this_store_is_refused_by_name(store: Any, clock: VirtualClock) -> None:
    for stranger in ("jobs.db", object(), sqlite3.connect(":memory:")):
        with pytest.raises(InvalidInput, match=r"within|transaction"):
            await store.within(stranger).enqueue([a_spec()])

    assert await store.count() == []
    assert await store.claim(a_claim()) == []
