"""Export and import: what a store exports can be imported into another, where the jobs go on as they were."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.errors import InvalidInput, StoreClosed, StoreError
from millrace.domain.event import Event
from millrace.domain.export import ExportedJob
from millrace.domain.job import State
from millrace.domain.request import Query
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.testing.builders import a_burial, a_claim, a_spec, a_worker
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.hooks import hook_payloads
from millrace.testing.conformance.scenes import (
    bury,
    complete,
    control,
    count,
    put,
    put_cancelled,
    put_completed,
    put_dead,
    retry,
    show,
    take,
    take_ids,
)
from millrace.testing.conformance.transfer_scenes import (
    SOURCE,
    TARGET,
    change_stage,
    close,
    compared,
    exported,
    fill,
    move,
)


def another(clock: VirtualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


async def test_an_import_has_every_field_of_every_job(store: Store, clock: VirtualClock) -> None:
    """Jobs in all states, histories, results, keys, dependencies, settings, limits and schedules are equal."""
    source = another(clock)
    await fill(source, clock)
    await move(source, store, batch=7)

    assert await compared(store) == await compared(source)
    assert await store.count() == await source.count()


async def test_an_export_has_every_field_of_every_job(store: Store, clock: VirtualClock) -> None:
    reference, target = another(clock), another(clock)
    instant = clock()
    await fill(store, clock)
    await move(store, target, batch=7)

    await fill(reference, VirtualClock(instant))
    ids = [record.job.id for record in await exported(target) if isinstance(record, ExportedJob)]
    assert ids == [job.id for job in (await store.find(Query(limit=1_000, archived=None))).jobs]
    assert await compared(target) == await compared(store)
    assert await target.count() == await store.count()
    await close(store, None)


async def test_an_import_twice_changes_nothing(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    await fill(source, clock)
    await close(store, TARGET)
    records = await exported(source)

    assert await store.import_records(records, TARGET.move) == len(records)
    before = await exported(store)
    assert await store.import_records(records, TARGET.move) == 0
    assert await exported(store) == before
    await close(store, None)


async def test_imported_schedules_are_due_at_their_time(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    await fill(source, clock)
    await move(source, store)

    assert await store.schedules() == await source.schedules()
    assert [schedule.name for schedule in (await store.due_schedules([], 10)).due] == ["of-customer"]


async def test_imported_jobs_are_claimed_in_their_order(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    ids = [(await put(source, priority=priority)).id for priority in (0, 5, 0, 5)]
    await put(source, delay=60)
    await move(source, store)
    after = await put(store)

    assert await take_ids(store) == [ids[1], ids[3], ids[0], ids[2], after.id]
    clock.advance(60)
    assert len(await take_ids(store)) == 1


async def test_an_imported_job_runs_and_ends(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    spec = await put(source)
    await retry(source, await take(source))
    await move(source, store)
    await complete(store, await take(store), b"7")

    job = await show(store, spec)
    assert (job.state, job.result, job.attempt, job.failures) == (State.COMPLETED, b"7", 2, 1)
    kinds = [event.kind.value for event in await store.history(spec.id)]
    assert kinds == ["enqueued", "claimed", "retried", "claimed", "completed"]
    assert [event.n for event in await store.history(spec.id)] == [1, 2, 3, 4, 5]


async def test_an_imported_dead_job_is_listed_and_replayed(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    spec = await put_dead(source)
    await move(source, store)

    [found] = (await store.find(Query(state="dead"))).jobs
    assert (found.id, found.reason, found.error) == (spec.id, "explicit_fail", (await show(source, spec)).error)
    await store.replay([spec.id])
    assert await take_ids(store) == [spec.id]


async def test_an_imported_child_waits_for_its_imported_parents(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    first, second = await put(source), await put(source)
    child = await put(source, after=(first.id, second.id))
    await complete(source, await take(source))
    await move(source, store, batch=1)

    assert (await show(store, child)).blocked == 1
    await complete(store, await take(store), b"1")
    assert await take_ids(store) == [child.id]


async def test_an_imported_child_is_buried_with_its_parent(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    parent = await put(source)
    child = await put(source, after=(parent.id,))
    await move(source, store)
    await bury(store, await take(store))

    job = await show(store, child)
    assert (job.state, job.reason, job.failed_parent) == (State.DEAD, "dependency_failed", parent.id)
    await store.replay([parent.id])
    assert (await show(store, child)).state is State.WAITING


async def test_an_imported_job_that_dies_is_told_even_if_its_new_seq_was_that_of_another_dead_job(
    store: Store, clock: VirtualClock
) -> None:
    """The id of a hook must not depend on seqs, because a move changes them: the ids of two hooks would be equal."""
    source = another(clock)
    waiting = [await put(source, on_dead_letter="mourn", delay=60) for _ in range(4)]
    for _ in range(4):
        await put_dead(source, on_dead_letter="mourn")
        await complete(source, await take(source, tasks=["mourn"]))
    await _put_deleted(source, 4)  # comes first in an import
    await move(source, store)
    clock.advance(60)
    for _ in waiting:
        await bury(store, await take(store))

    letters = [payload["letter"]["id"] for payload in await hook_payloads(store, "mourn")]
    assert letters == [spec.id for spec in waiting]


async def test_an_imported_queue_tells_that_it_is_empty_even_if_the_last_job_has_the_seq_of_an_earlier_last_job(
    store: Store, clock: VirtualClock
) -> None:
    source = another(clock)
    await control(source, on_empty="notify")
    spec = await put_cancelled(source)
    assert len(await hook_payloads(source, "notify")) == 1
    await put(source)
    await retry(source, await take(source))
    await complete(source, await take(source))
    assert len(await hook_payloads(source, "notify")) == 1
    await _put_deleted(source, 2)
    await move(source, store)
    await store.replay([spec.id])
    await complete(store, await take(store))

    assert len(await hook_payloads(store, "notify")) == 1


async def _put_deleted(store: Store, count: int) -> None:
    for _ in range(count):
        await store.delete([(await put_completed(store, queue="deleted")).id])


async def test_imported_groups_run_one_job_at_a_time_in_order(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    ids = [(await put(source, group="g")).id for _ in range(3)]
    await move(source, store, batch=1)
    later = await put(store, group="g")

    for job_id in (*ids, later.id):
        job = await take(store)
        assert job.id == job_id
        assert await take_ids(store) == []
        await complete(store, job)


async def test_an_imported_job_in_backoff_still_blocks_its_group(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    first, second = await put(source, group="g"), await put(source, group="g")
    await retry(source, await take(source), 60)
    await move(source, store)

    assert await take_ids(store) == []
    clock.advance(60)
    await complete(store, await take(store))
    assert (await show(store, first)).state is State.COMPLETED
    assert await take_ids(store) == [second.id]


async def test_an_imported_pool_has_its_lanes(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    await control(source, "pool", lanes=2)
    for _ in range(4):
        await put(source, queue="pool")
    await complete(source, await take(source, queue="pool"))
    await move(source, store)

    assert await store.lanes("pool") == await source.lanes("pool")
    assert len(await take_ids(store, queue="pool")) == 2
    assert await take_ids(store, queue="pool") == []


async def test_imported_unique_keys_are_held(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    live, kept = await put(source, key="live"), await put_completed(source, queue="q", key="kept", scope="retained")
    window = await put_completed(source, queue="q", key="window", scope="window", window=60)
    await source.delete([window.id])
    await move(source, store)

    wanted = [
        a_spec(key="live"),
        a_spec(queue="q", key="kept"),
        a_spec(queue="q", key="window", scope="window", window=60),
    ]
    answers = await store.enqueue(wanted)
    assert [(answer.by, answer.id) for answer in answers] == [("key", live.id), ("key", kept.id), ("key", window.id)]
    clock.advance(61)
    assert [answer.by for answer in await store.enqueue(wanted)] == ["key", "key", None]
    await complete(store, await take(store))
    await put(store, key="live")


async def test_windows_of_deleted_jobs_are_exported_in_pages(store: Store, clock: VirtualClock) -> None:
    for number in range(11):
        window = 60 + number // 4  # some end at the same time
        spec = await put_completed(store, queue="q", key=f"k{number}", scope="window", window=window)
        await store.delete([spec.id])
    await put(store, queue="q", key="live", scope="window", window=60)
    target = another(clock)
    pages = [await store.export(cursor, 2) for cursor in await _cursors(store, 2)]
    assert max(len(page.records) for page in pages) == 2
    await move(store, target, batch=2)

    assert await compared(target) == await compared(store)
    again = [a_spec(queue="q", key=f"k{number}", scope="window", window=60) for number in range(11)]
    assert [answer.by for answer in await target.enqueue(again)] == ["key"] * 11
    await close(store, None)


async def _cursors(store: Store, limit: int) -> list[str | None]:
    cursors: list[str | None] = [None]
    while (cursor := (await store.export(cursors[-1], limit)).cursor) is not None:
        cursors.append(cursor)
    return cursors


async def test_an_imported_job_that_was_deleted_is_remembered(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    spec = await put_completed(source)
    await source.delete([spec.id])
    await move(source, store)

    assert await store.history(spec.id) != []
    [again] = await store.enqueue([spec])
    assert (again.status, again.generation, again.state) == ("queued", 1, State.COMPLETED)
    [new] = await store.enqueue([a_spec(id=spec.id)])
    assert new.generation == 2


async def test_imported_events_are_in_the_feed_once(store: Store, clock: VirtualClock) -> None:
    """The feed has the events of both stores: those of the source with their times, and then new ones."""
    source = another(clock)
    await fill(source, clock)
    wanted = [msgspec.structs.replace(event, seq=0) for event in (await source.events(None, 1_000)).events]
    await move(source, store)
    clock.advance(1)
    new = await put(store)
    clock.advance(1)

    *found, last = (await store.events(None, 1_000)).events
    assert last.job == new.id
    copies = [msgspec.structs.replace(event, seq=0) for event in found]
    assert sorted(copies, key=_identity) == sorted(wanted, key=_identity)


def _identity(event: Event) -> tuple[str, int, int]:
    return event.job, event.generation, event.n


async def test_a_running_job_cannot_be_imported(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    await put(source)
    await take(source)
    await close(store, TARGET)

    with pytest.raises(InvalidInput, match="runs"):
        await store.import_records(await exported(source), TARGET.move)
    await close(store, None)


async def test_a_stage_is_changed_only_if_it_is_the_one_that_was_seen(store: Store, clock: VirtualClock) -> None:
    """So a mover cannot overwrite what another command has written, such as an abort."""
    draining = msgspec.structs.replace(SOURCE, stage="draining")
    aborting, moved = (msgspec.structs.replace(SOURCE, stage=stage) for stage in ("aborting", "moved"))
    await change_stage(store, None, draining)
    await change_stage(store, draining, SOURCE)
    await change_stage(store, SOURCE, aborting)
    for was in (None, draining, SOURCE):
        with pytest.raises(StoreError, match="another `millrace move`"):
            await change_stage(store, was, moved)
    await change_stage(store, SOURCE, aborting)  # as after a lost reply
    await put(store)
    await change_stage(store, aborting, None)
    with pytest.raises(StoreError, match="another `millrace move`"):
        await change_stage(store, aborting, moved)
    assert len(await take_ids(store)) == 1


async def test_of_two_changes_of_the_stage_at_once_one_is_refused(store: Store, clock: VirtualClock) -> None:
    stages = [msgspec.structs.replace(SOURCE, move=str(number)) for number in range(4)]
    answers = await asyncio.gather(*(change_stage(store, None, each) for each in stages), return_exceptions=True)
    settings = await store.control("store", "", {})
    assert [isinstance(answer, StoreError) for answer in answers].count(False) == 1
    assert settings.closed == stages[answers.index(None)]  # type: ignore[union-attr]
    await close(store, None)


async def test_a_change_of_other_settings_leaves_the_stage(store: Store, clock: VirtualClock) -> None:
    await close(store, SOURCE)
    await store.control("store", "", {"keep_events": 86_400_000})
    with pytest.raises(StoreClosed):
        await put(store)
    await close(store, None)


async def test_records_are_imported_only_into_the_target_of_their_move(store: Store, clock: VirtualClock) -> None:
    """A page that arrives after the target was opened would add jobs again that have ended there."""
    source = another(clock)
    spec = await put(source)
    await move(source, store)
    records = await exported(source)
    await complete(store, await take(store))
    await store.delete([spec.id])

    opened = msgspec.structs.replace(TARGET, stage="opened")
    for why in (None, opened, msgspec.structs.replace(TARGET, move="another"), SOURCE):
        await close(store, why)
        for each in (records, records[:1], records[1:]):
            with pytest.raises(StoreError, match="not the target"):
                await store.import_records(each, TARGET.move)
    await close(store, opened)
    assert await store.get([spec.id]) == [None]
    await put(store)
    await put(store, queue="new")
    assert len(await take_ids(store)) == 1


async def test_a_closed_store_refuses_every_change(store: Store, clock: VirtualClock) -> None:
    waiting, dead = await put(store, expires=60), await put_dead(store, queue="other")
    running = await put(store, queue="third")
    job = await take(store, queue="third")
    await close(store, SOURCE)
    before = await exported(store)
    clock.advance(120)

    for change in (
        lambda: store.enqueue([a_spec()]),
        lambda: store.enqueue([a_spec(queue="new", group="g")]),
        lambda: store.enqueue([a_spec(queue="another"), a_spec(queue="another", priority=3)]),
        lambda: store.settle([(job.lease, Change.completed())]),
        lambda: store.settle([(job.lease, a_burial())]),
        lambda: store.cancel([waiting.id]),
        lambda: store.replay([dead.id]),
        lambda: store.archive([dead.id]),
        lambda: store.delete([dead.id]),
        lambda: store.drain("default"),
        lambda: store.obliterate("default"),
        store.maintain,
        lambda: store.control("queue", "default", {"paused": True}),
        lambda: store.control("task", "work", {"max_running": 1}),
    ):
        with pytest.raises(StoreClosed, match="memory://target"):
            await change()
    with pytest.raises(StoreClosed):
        await store.claim(a_claim())
    await store.beat(a_worker(), 1_000)
    assert await exported(store) == before
    await close(store, None)
    assert await take_ids(store, queue="third") == []
    assert (await show(store, running)).state is State.RUNNING


async def test_a_store_that_is_opened_again_goes_on(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    await close(store, SOURCE)
    await close(store, None)

    assert await take_ids(store) == [spec.id]
    assert (await count(store)).running == 1
    await put(store)


async def test_an_imported_result_expires_when_it_would_have(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    spec = await put_completed(source, b"1", keep_result=60)
    await move(source, store)

    assert (await show(store, spec)).result == b"1"
    clock.advance(61)
    await store.maintain()
    job = await show(store, spec)
    assert (job.result, job.result_expired) == (None, True)


async def test_an_imported_job_is_pruned_when_it_would_have(store: Store, clock: VirtualClock) -> None:
    source = another(clock)
    await control(source, keep_completed=100)
    spec = await put_completed(source)
    clock.advance(50)
    await move(source, store)
    await store.maintain()
    assert await store.get([spec.id]) != [None]
    clock.advance(51)
    await store.maintain()

    assert await store.get([spec.id]) == [None]
    assert (await count(store)).processed == 1
