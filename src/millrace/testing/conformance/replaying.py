"""Replay runs finished jobs again; archive hides finished jobs from searches."""

from __future__ import annotations

from millrace.domain.job import State
from millrace.domain.request import Archived, Replayed
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec, seconds
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    count,
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


async def test_a_replayed_job_has_a_fresh_budget_and_its_old_history(store: Store, clock: VirtualClock) -> None:
    """A replay resets the failures and stalls of a job to 0. Its attempts and history are kept."""
    spec = await put(store)
    await retry(store, await take(store))
    await bury(store, await take(store))
    clock.advance(10)
    assert await store.replay([spec.id]) == [Replayed.REPLAYED]

    job = await show(store, spec)
    assert (job.state, job.failures, job.stalls, job.replays, job.attempt) == (State.WAITING, 0, 0, 1, 2)
    assert (job.available_at, job.finished_at, job.error, job.reason) == (clock(), None, None, None)
    assert len(job.attempts) == 2
    assert await kinds(store, spec) == ["enqueued", "claimed", "retried", "claimed", "buried", "replayed"]
    assert (await take(store)).attempt == 3


async def test_every_finished_job_can_be_replayed(store: Store, clock: VirtualClock) -> None:
    """Completed, dead and cancelled jobs can be replayed; a replayed job has no result."""
    asked = [await put_completed(store, result=b"1"), await put_dead(store), await put_cancelled(store)]

    assert await store.replay([spec.id for spec in asked]) == [Replayed.REPLAYED] * 3
    assert sorted(await take_ids(store)) == sorted(spec.id for spec in asked)
    counts = await count(store)
    assert (counts.completed, counts.dead, counts.cancelled, counts.running) == (0, 0, 0, 3)
    assert (await show(store, asked[0])).result is None


async def test_live_and_unknown_jobs_are_not_replayed(store: Store, clock: VirtualClock) -> None:
    running = await put(store)
    await take(store)
    waiting = await put(store)

    assert await store.replay([running.id, waiting.id, "nobody"]) == [
        Replayed.RUNNING,
        Replayed.WAITING,
        Replayed.NOT_FOUND,
    ]


async def test_replaying_twice_runs_once(store: Store, clock: VirtualClock) -> None:
    spec = await put_dead(store)

    assert await store.replay([spec.id, spec.id]) == [Replayed.REPLAYED, Replayed.WAITING]
    assert await take_ids(store) == [spec.id]


async def test_a_replayed_job_gets_its_time_to_live_anew(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, expires=60)
    clock.advance(60)
    await store.maintain()
    await store.replay([spec.id])

    assert (await show(store, spec)).expires_at == clock() + seconds(60)
    assert await take_ids(store) == [spec.id]


async def test_a_replayed_job_is_not_pruned_by_the_end_of_its_earlier_life(store: Store, clock: VirtualClock) -> None:
    spec = await put_completed(store)
    clock.advance(23 * 3600)
    await store.replay([spec.id])
    clock.advance(2 * 3600)
    await store.maintain()
    await complete(store, await take(store))
    clock.advance(23 * 3600)
    await store.maintain()

    assert (await show(store, spec)).state is State.COMPLETED


async def test_archiving_hides_and_unarchiving_shows(store: Store, clock: VirtualClock) -> None:
    """An archived job is found only with archived=True, until it is unarchived."""
    spec = await put_completed(store)
    assert await store.archive([spec.id]) == [Archived.DONE]
    assert (await found(store), await found(store, archived=True)) == ([], [spec.id])
    assert (await count(store)).archived == 1

    assert await store.archive([spec.id], archived=False) == [Archived.DONE]
    assert (await found(store), await found(store, archived=True)) == ([spec.id], [])
    assert await kinds(store, spec) == ["enqueued", "claimed", "completed", "archived", "unarchived"]


async def test_unarchiving_gives_back_the_state_it_had(store: Store, clock: VirtualClock) -> None:
    """Archiving and unarchiving a job does not change its state."""
    asked = [await put_completed(store), await put_dead(store), await put_cancelled(store)]
    ids = [spec.id for spec in asked]
    await store.archive(ids)
    await store.archive(ids, archived=False)

    assert [(await show(store, spec)).state.value for spec in asked] == ["completed", "dead", "cancelled"]
    counts = await count(store)
    assert (counts.completed, counts.dead, counts.cancelled, counts.archived) == (1, 1, 1, 0)


async def test_archiving_answers_what_it_found(store: Store, clock: VirtualClock) -> None:
    done = await put_completed(store)
    live = await put(store)

    assert await store.archive([done.id, done.id, live.id, "nobody"]) == [
        Archived.DONE,
        Archived.UNCHANGED,
        Archived.NOT_FINISHED,
        Archived.NOT_FOUND,
    ]
    assert await store.archive([done.id, done.id], archived=False) == [Archived.DONE, Archived.UNCHANGED]


async def test_an_archived_job_that_is_replayed_is_shown_again(store: Store, clock: VirtualClock) -> None:
    spec = await put_dead(store)
    await store.archive([spec.id])
    await store.replay([spec.id])

    assert await found(store) == [spec.id]
    assert (await count(store)).archived == 0


async def test_an_archived_id_enqueued_again_is_a_new_job(store: Store, clock: VirtualClock) -> None:
    spec = await put_dead(store)
    await store.archive([spec.id])
    await store.enqueue([a_spec(id=spec.id)])

    assert not (await show(store, spec)).archived
    counts = await count(store)
    assert (counts.archived, counts.dead, counts.waiting) == (0, 0, 1)


async def test_an_archived_job_is_pruned_in_its_time(store: Store, clock: VirtualClock) -> None:
    """Archived jobs are pruned after the same retention time as jobs that are not archived."""
    await control(store, keep_completed=60)
    spec = await put_completed(store)
    await store.archive([spec.id])
    clock.advance(60)

    assert (await store.maintain()).pruned == 1
    assert await store.get([spec.id]) == [None]
    assert (await count(store)).archived == 0


async def test_a_replayed_job_waits_again_for_parents_that_are_still_to_end(store: Store, clock: VirtualClock) -> None:
    """A blocked job that was cancelled and replayed waits again for its parent."""
    parent = await put(store)
    child = await put(store, after=(parent.id,))
    await store.cancel([child.id])
    assert await store.replay([child.id]) == [Replayed.REPLAYED]

    assert (await show(store, child)).blocked == 1
    assert await take_ids(store) == [parent.id]
    await complete(store, await show(store, parent))
    assert await take_ids(store) == [child.id]


async def test_a_replayed_job_does_not_wait_for_parents_that_have_ended(store: Store, clock: VirtualClock) -> None:
    parent = await put_dead(store)
    child = await put(store, after=(parent.id,))
    assert (await show(store, child)).reason == "dependency_failed"
    await store.replay([child.id])

    assert await take_ids(store) == [child.id]


async def test_parent_and_child_replayed_together_run_in_order(store: Store, clock: VirtualClock) -> None:
    parent = await put_dead(store)
    child = await put(store, after=(parent.id,), priority=9)
    await store.replay([parent.id, child.id])

    assert await take_ids(store) == [parent.id]


async def test_a_replay_never_closes_a_cycle(store: Store, clock: VirtualClock) -> None:
    """A replayed job does not wait for its parent if the parent's id was enqueued again, as a job that waits for this
    one.
    """
    first = await put_cancelled(store, id="parent")
    child = await put(store, id="child", after=(first.id,), on_dependency="run")
    await store.cancel([child.id])
    await put(store, id="parent", after=(child.id,), on_dependency="wait")
    assert await store.replay([child.id]) == [Replayed.REPLAYED]

    assert await take_ids(store) == [child.id]
