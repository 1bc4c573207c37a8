"""Enqueueing an existing id returns an answer that says so, and raises no exception."""

from __future__ import annotations

import pytest

from millrace.domain.job import State
from millrace.domain.request import Cancelled
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    count,
    put,
    put_completed,
    put_dead,
    show,
    take,
    take_ids,
)


async def test_a_second_enqueue_of_an_id_answers_duplicate_with_its_state(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    [waiting] = await store.enqueue([a_spec(id=spec.id)])
    await take(store)
    [running] = await store.enqueue([a_spec(id=spec.id)])

    assert [(a.status, a.by, a.state) for a in (waiting, running)] == [
        ("duplicate", "id", State.WAITING),
        ("duplicate", "id", State.RUNNING),
    ]
    assert (await count(store)).running == 1


async def test_a_completed_id_answers_with_its_result(store: Store, clock: VirtualClock) -> None:
    """Enqueueing the id of a completed job returns the stored result and enqueues nothing."""
    spec = await put_completed(store, result=b'"done"')
    [again] = await store.enqueue([a_spec(id=spec.id)])

    assert (again.status, again.state, again.result) == ("completed", State.COMPLETED, b'"done"')
    assert await take_ids(store) == []


async def test_null_is_a_result(store: Store, clock: VirtualClock) -> None:
    spec = await put_completed(store, result=b"null")
    [again] = await store.enqueue([a_spec(id=spec.id)])

    assert (again.status, again.result, again.result_expired) == ("completed", b"null", False)
    assert (await show(store, spec)).result == b"null"


async def test_a_job_without_a_result_is_completed_all_the_same(store: Store, clock: VirtualClock) -> None:
    spec = await put_completed(store, result=None)
    clock.advance(7200)
    [again] = await store.enqueue([a_spec(id=spec.id)])

    assert (again.status, again.result, again.result_expired) == ("completed", None, False)


async def test_an_expired_result_is_said_to_be_expired(store: Store, clock: VirtualClock) -> None:
    """If the result of a completed job has expired, the answer says that it has expired, not that there was none."""
    spec = await put_completed(store, result=b"1", keep_result=60)
    clock.advance(59.999)
    [before] = await store.enqueue([a_spec(id=spec.id)])
    clock.advance(0.001)
    [after] = await store.enqueue([a_spec(id=spec.id)])

    assert (before.status, before.result) == ("completed", b"1")
    assert (after.status, after.state, after.result, after.result_expired) == (
        "duplicate",
        State.COMPLETED,
        None,
        True,
    )


async def test_a_different_payload_under_the_same_id_is_reported(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, payload=b"1")
    [same] = await store.enqueue([a_spec(id=spec.id, payload=b"1")])
    [other] = await store.enqueue([a_spec(id=spec.id, payload=b"2")])

    assert (same.payload_differs, other.payload_differs) == (False, True)
    assert (await show(store, spec)).payload == b"1"


async def test_without_reuse_a_dead_id_is_a_duplicate(store: Store, clock: VirtualClock) -> None:
    """With reuse=False, the id of a dead job is not enqueued again. The Spark sink and schedules use this."""
    spec = await put_dead(store)
    [again] = await store.enqueue([a_spec(id=spec.id, reuse=False)])

    assert (again.status, again.by, again.state) == ("duplicate", "id", State.DEAD)
    assert await take_ids(store) == []


async def test_without_reuse_a_pruned_id_is_a_duplicate_while_it_is_remembered(
    store: Store, clock: VirtualClock
) -> None:
    await control(store, keep_completed=0)
    spec = await put_completed(store)
    [again] = await store.enqueue([a_spec(id=spec.id, reuse=False)])

    assert (again.status, again.by, again.state) == ("duplicate", "id", State.COMPLETED)


async def test_a_cancelled_id_enqueued_again_runs_once(store: Store, clock: VirtualClock) -> None:
    """If a cancelled id is enqueued again, only the new generation runs."""
    spec = await put(store)
    assert await store.cancel([spec.id]) == [Cancelled.CANCELLED]
    await put(store, id=spec.id)

    assert await take_ids(store) == [spec.id]
    assert await take_ids(store) == []


async def test_generations_count_up(store: Store, clock: VirtualClock) -> None:
    generations = []
    for _ in range(4):
        [answer] = await store.enqueue([a_spec(id="again")])
        generations.append(answer.generation)
        await bury(store, await take(store))

    assert generations == [1, 2, 3, 4]
    events = await store.history("again")
    assert [(e.generation, e.n) for e in events if e.kind.value == "enqueued"] == [(1, 1), (2, 1), (3, 1), (4, 1)]


@pytest.mark.parametrize(
    "job_id", ["a:b", "../../etc/passwd", "a/b\\c", "x" * 200, "ü€😀", " ", "a\nb", "%00", "'; --"]
)
async def test_any_text_is_an_id(store: Store, clock: VirtualClock, job_id: str) -> None:
    """Ids, groups and keys may contain any characters, including those with a meaning in paths, SQL or key names."""
    await put(store, id=job_id, group=job_id, key=job_id)
    job = await take(store)
    assert job.id == job_id
    await complete(store, job, b"1")

    assert (await show(store, job_id)).state is State.COMPLETED
    assert [event.job for event in await store.history(job_id)] == [job_id] * 3


async def test_ids_that_differ_in_case_or_form_are_different(store: Store, clock: VirtualClock) -> None:
    """Ids are compared exactly: case, blanks and Unicode normalization matter."""
    names = ["job", "JOB", "job ", "jöb", "jo\u0308b"]
    answers = await store.enqueue([a_spec(id=name) for name in names])

    assert [answer.status for answer in answers] == ["queued"] * len(names)


async def test_a_completed_id_whose_result_has_expired_runs_again_where_that_is_asked_for(
    store: Store, clock: VirtualClock
) -> None:
    """With rerun_expired=True, an id whose result has expired is enqueued again, even before the next upkeep."""
    spec = await put_completed(store, result=b"1", keep_result=10)
    [kept] = await store.enqueue([a_spec(id=spec.id, rerun_expired=True)])
    assert (kept.status, kept.result) == ("completed", b"1")
    clock.advance(10)

    [refused] = await store.enqueue([a_spec(id=spec.id)])
    assert (refused.status, refused.result_expired, refused.generation) == ("duplicate", True, 1)
    [again] = await store.enqueue([a_spec(id=spec.id, rerun_expired=True)])
    assert (again.status, again.generation, again.state) == ("queued", 2, State.WAITING)
    await complete(store, await take(store), b"2")
    assert (await show(store, spec)).result == b"2"
    assert (await count(store)).completed == 1


async def test_a_result_that_upkeep_has_dropped_may_be_computed_again(store: Store, clock: VirtualClock) -> None:
    spec = await put_completed(store, result=b"1", keep_result=10)
    clock.advance(10)
    await store.maintain()
    [again] = await store.enqueue([a_spec(id=spec.id, rerun_expired=True)])

    assert (again.status, again.generation) == ("queued", 2)
    [live] = await store.enqueue([a_spec(id=spec.id, rerun_expired=True)])
    assert (live.status, live.state) == ("duplicate", State.WAITING)


async def test_a_job_that_returned_nothing_has_no_result_that_could_expire(store: Store, clock: VirtualClock) -> None:
    spec = await put_completed(store, keep_result=10)
    clock.advance(60)
    [answer] = await store.enqueue([a_spec(id=spec.id, rerun_expired=True)])

    assert (answer.status, answer.generation) == ("completed", 1)


async def test_an_id_that_may_not_be_used_again_is_not_run_again_either(store: Store, clock: VirtualClock) -> None:
    spec = await put_completed(store, result=b"1", keep_result=10)
    clock.advance(10)
    [answer] = await store.enqueue([a_spec(id=spec.id, rerun_expired=True, reuse=False)])

    assert (answer.status, answer.result_expired) == ("duplicate", True)
