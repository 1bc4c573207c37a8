"""Deleting finished jobs by id, before their retention is over.

For a deleted or pruned job, the store keeps a small record of how the job ended (`Past` in `domain/tables.py`).
"""

from __future__ import annotations

from millrace.domain.job import State
from millrace.domain.request import Deleted
from millrace.store.protocol import Store
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    complete,
    control,
    count,
    found,
    gone,
    kinds,
    put,
    put_cancelled,
    put_completed,
    put_dead,
    show,
    take,
    take_ids,
)


async def test_every_finished_job_can_be_deleted(store: Store, clock: VirtualClock) -> None:
    asked = [await put_completed(store, result=b"1"), await put_dead(store), await put_cancelled(store)]

    assert await store.delete([spec.id for spec in asked]) == [Deleted.DELETED] * 3
    assert await found(store, archived=None) == []
    counts = await count(store)
    assert (counts.completed, counts.dead, counts.cancelled) == (0, 0, 0)
    assert (counts.processed, counts.died) == (1, 1)


async def test_deleting_is_announced_as_pruned(store: Store, clock: VirtualClock) -> None:
    """A deleted job gets a `pruned` event, so that an audit can account for every job."""
    spec = await put_dead(store)
    await store.delete([spec.id])

    last = (await store.history(spec.id))[-1]
    assert (last.kind.value, last.reason, last.state) == ("pruned", "deleted", "dead")


async def test_deleting_answers_for_each_id_what_it_found(store: Store, clock: VirtualClock) -> None:
    """Delete answers each id of a call separately: DELETED, NOT_FINISHED or NOT_FOUND."""
    running = await put(store)
    await take(store)
    done, waiting = await put_completed(store), await put(store, delay=60)
    asked = [running.id, done.id, "nobody", waiting.id, done.id]

    assert await store.delete(asked) == [
        Deleted.NOT_FINISHED,
        Deleted.DELETED,
        Deleted.NOT_FOUND,
        Deleted.NOT_FINISHED,
        Deleted.NOT_FOUND,
    ]
    assert sorted(await found(store)) == sorted([running.id, waiting.id])


async def test_deleting_nothing_does_nothing(store: Store, clock: VirtualClock) -> None:
    spec = await put_dead(store)

    assert await store.delete([]) == []
    assert not await gone(store, spec)


async def test_a_deleted_archived_job_is_counted_no_more(store: Store, clock: VirtualClock) -> None:
    spec = await put_dead(store)
    await store.archive([spec.id])

    assert await store.delete([spec.id]) == [Deleted.DELETED]
    counts = await count(store)
    assert (counts.archived, counts.dead) == (0, 0)
    await put_dead(store)
    assert (await count(store)).dead == 1


async def test_a_deleted_id_may_be_used_again(store: Store, clock: VirtualClock) -> None:
    spec = await put_completed(store, result=b"1")
    await store.delete([spec.id])
    [again] = await store.enqueue([a_spec(id=spec.id)])

    assert (again.status, again.generation) == ("queued", 2)
    assert await take_ids(store) == [spec.id]
    assert await kinds(store, spec) == ["enqueued", "claimed", "completed", "pruned", "enqueued", "claimed"]


async def test_the_enqueue_that_made_a_deleted_job_is_answered_as_before(store: Store, clock: VirtualClock) -> None:
    """If the enqueue of a deleted job is repeated with the same token, the answer is the same and no job is created."""
    spec = await put_completed(store)
    await store.delete([spec.id])
    [again] = await store.enqueue([spec])

    assert (again.status, again.generation, again.state) == ("queued", 1, State.COMPLETED)
    assert await take_ids(store) == []


async def test_deleting_frees_a_retained_key(store: Store, clock: VirtualClock) -> None:
    spec = await put_completed(store, key="k", scope="retained")
    [hit] = await store.enqueue([a_spec(key="k", scope="retained")])
    assert (hit.status, hit.id) == ("duplicate", spec.id)
    await store.delete([spec.id])

    await put(store, key="k", scope="retained")


async def test_a_dependent_still_learns_how_a_deleted_parent_ended(store: Store, clock: VirtualClock) -> None:
    """The store remembers how a deleted parent ended as long as a job still waits for the parent."""
    parent = await put(store)
    child = await put(store, after=(parent.id,), on_dependency="wait")
    await store.cancel([parent.id])
    await store.delete([parent.id])
    clock.advance(30 * 24 * 3600)
    await store.maintain()

    assert (await show(store, child)).blocked == 1
    [late] = await store.enqueue([a_spec(after=(parent.id,))])
    assert late.state is State.DEAD


async def test_who_comes_after_a_deleted_parent_that_completed_runs(store: Store, clock: VirtualClock) -> None:
    parent = await put_completed(store)
    await store.delete([parent.id])
    child = await put(store, after=(parent.id,))

    assert await take_ids(store) == [child.id]


async def test_deleting_dead_jobs_makes_room_under_the_cap(store: Store, clock: VirtualClock) -> None:
    """With dead_overflow="reject", deleting dead jobs lets the queue accept jobs again."""
    await control(store, dead_cap=1, dead_overflow="reject")
    spec = await put_dead(store)
    await store.delete([spec.id])

    await put(store)


async def test_a_deleted_job_does_not_come_back_by_itself(store: Store, clock: VirtualClock) -> None:
    await control(store, auto_retries=2, auto_retry_delay=60)
    spec = await put_dead(store)
    await store.delete([spec.id])
    clock.advance(60)

    done = await store.maintain()
    assert (done.retried, done.pruned) == (0, 0)
    assert await gone(store, spec)


async def test_many_jobs_of_several_queues_are_deleted_in_one_call(store: Store, clock: VirtualClock) -> None:
    specs = [a_spec(queue=queue) for queue in ("a", "b") for _ in range(25)]
    await store.enqueue(specs)
    for queue in ("a", "b"):
        for job in await store.claim(a_claim(100, queue=queue)):
            await complete(store, job, b"1")

    assert await store.delete([spec.id for spec in specs]) == [Deleted.DELETED] * 50
    assert [(await count(store, queue)).completed for queue in ("a", "b")] == [0, 0]
