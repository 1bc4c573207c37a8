"""`millrace move`: from any store to any other, continued after a kill, with workers and producers at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from millrace.domain.errors import InvalidInput, StoreClosed, StoreError
from millrace.domain.export import Exported, ExportedHold, ExportedJob, ExportPage
from millrace.domain.job import Job, State
from millrace.store import transfer, transfer_pages
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.store.transfer import StillRunning, StoreTransfer, abort, closed
from millrace.store.transfer_pages import AT_ONCE
from millrace.testing.builders import a_claim, a_spec, seconds
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import complete, put, put_completed, show, take, take_ids
from millrace.testing.conformance.transfer_scenes import compared, fill
from tests.store.conftest import STORES
from tests.store.interrupted import Killed, killed_after

LEGS = ("sqlite", "postgres", "redis", "object", "sqlite")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "LOOK", 0.01)


@pytest.fixture
def target(clock: VirtualClock) -> MemoryStore:
    return MemoryStore("memory://target", clock=clock)


@pytest.fixture
def source(clock: VirtualClock) -> MemoryStore:
    return MemoryStore("memory://source", clock=clock)


@pytest.fixture
async def opened(clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Callable[[str], Awaitable[Store]]]:
    """Open a new store by its name; all are closed at the end."""
    stores: list[Store] = []

    async def open_store(name: str) -> Store:
        folder = tmp_path / str(len(stores))
        folder.mkdir()
        store = STORES[name](clock, folder)
        store.closes_after = 0
        await store.connect()
        stores.append(store)
        return store

    yield open_store
    for store in stores:
        await store.close()


async def test_a_store_moves_through_all_stores_and_stays_equal(
    opened: Callable[[str], Awaitable[Store]], clock: VirtualClock
) -> None:
    """SQLite, PostgreSQL, Redis, the object store, SQLite: nothing of any job, setting or history differs."""
    here = await opened(LEGS[0])
    await fill(here, clock, rounds=4)
    wanted, counts = await compared(here), await here.count()
    for name in LEGS[1:]:
        there = await opened(name)
        report = await StoreTransfer(here, there, batch=50).run()
        assert report.jobs == sum(map(transfer.total, counts))
        assert await compared(there) == wanted
        assert await there.count() == counts
        with pytest.raises(StoreClosed, match="were moved to"):
            await here.enqueue([a_spec()])
        here = there
    await put(here, queue="goes-on")


async def test_the_instants_of_jobs_follow_the_clock_of_the_target(source: MemoryStore, clock: VirtualClock) -> None:
    late = VirtualClock(clock() + seconds(3600))
    target = MemoryStore("memory://target", clock=late)
    spec = await put(source, delay=60)
    await StoreTransfer(source, target).run()

    assert (await show(target, spec)).available_at == (await show(source, spec)).available_at + seconds(3600)
    assert await take_ids(target) == []
    late.advance(60)
    assert await take_ids(target) == [spec.id]


async def test_a_move_waits_for_running_jobs(source: MemoryStore, target: MemoryStore, clock: VirtualClock) -> None:
    spec, waiting = await put(source), await put(source)
    job = await take(source)
    moving = asyncio.create_task(StoreTransfer(source, target).run())
    await asyncio.sleep(0.05)
    assert not moving.done()
    assert await take_ids(source) == []
    late = await put(source)  # producers go on until the source is frozen
    await complete(source, job, b"1")
    await moving

    assert (await show(target, spec)).result == b"1"
    assert await take_ids(target) == [waiting.id, late.id]


async def test_a_job_whose_worker_is_gone_is_moved_too(
    source: MemoryStore, target: MemoryStore, clock: VirtualClock
) -> None:
    spec = await put(source)
    await take(source, lease=30)
    clock.advance(31)
    await StoreTransfer(source, target).run()

    job = await show(target, spec)
    assert (job.state, job.stalls) == (State.WAITING, 1)


async def test_a_job_that_does_not_end_stops_the_move(source: MemoryStore, target: MemoryStore) -> None:
    await put(source)
    job = await take(source)
    await put(source)
    with pytest.raises(StillRunning, match="1 running jobs"):
        await StoreTransfer(source, target, wait=0.05).run()

    assert await closed(source) is None
    assert await closed(target) is None
    await complete(source, job)
    assert len(await take_ids(source)) == 1


async def test_a_target_with_jobs_is_refused(source: MemoryStore, target: MemoryStore) -> None:
    await put(source)
    await put(target, queue="other")
    with pytest.raises(InvalidInput, match="has 1 jobs already"):
        await StoreTransfer(source, target).run()
    assert len(await take_ids(source)) == 1


async def test_a_moved_store_moves_nowhere_else(source: MemoryStore, target: MemoryStore, clock: VirtualClock) -> None:
    await put(source)
    await StoreTransfer(source, target).run()
    third = MemoryStore("memory://third", clock=clock)
    with pytest.raises(InvalidInput, match="were moved to memory://target"):
        await StoreTransfer(source, third).run()
    with pytest.raises(InvalidInput, match="to itself"):
        await StoreTransfer(source, source).run()


async def test_a_finished_move_can_be_run_again(source: MemoryStore, target: MemoryStore) -> None:
    spec = await put(source)
    await StoreTransfer(source, target).run()
    await complete(target, await take(target))
    report = await StoreTransfer(source, target).run()

    assert report.imported == 0
    assert (await show(target, spec)).state is State.COMPLETED


async def test_an_aborted_move_opens_the_source_as_it_was(source: MemoryStore, target: MemoryStore) -> None:
    await put(source)
    await put(source, queue="paused")
    await source.control("queue", "paused", {"paused": True})
    killed_after(target, 2)
    with pytest.raises(Killed):
        await StoreTransfer(source, target).run()
    target.__class__ = MemoryStore

    assert await abort(source) is True
    assert await abort(source) is False
    assert len(await take_ids(source)) == 1
    assert await take_ids(source, queue="paused") == []
    with pytest.raises(InvalidInput, match="another move"):
        await StoreTransfer(source, target).run()


async def test_a_finished_move_is_not_aborted(source: MemoryStore, target: MemoryStore) -> None:
    await put(source)
    await StoreTransfer(source, target).run()
    with pytest.raises(InvalidInput, match="cannot be aborted"):
        await abort(source)


async def test_a_copy_that_differs_is_not_opened(
    source: MemoryStore, target: MemoryStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = await put(source, payload=b"1")
    original = type(target).import_records

    async def spoil(self: Any, records: Any, move: str) -> int:
        new: int = await original(self, records, move)
        for job in self._tables._jobs.values():
            job.attempt = 7
        return new

    monkeypatch.setattr(type(target), "import_records", spoil)
    with pytest.raises(StoreError, match=rf"differs from the source: job {spec.id} 1: job.attempt is 7, not 0"):
        await StoreTransfer(source, target).run()
    with pytest.raises(StoreClosed):
        await target.claim(a_claim())


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda job: replace(job, result=b"secret"), r"job.result is 6 bytes \(SHA-256 [0-9a-f]+…\), not None\."),
        (lambda job: replace(job, spec=replace(job.spec, payload=b"{}")), r"job.spec.payload is 2 bytes .*, not 13 "),
        (
            lambda job: replace(job, spec=replace(job.spec, headers={"h": "s" * 999})),
            r"headers is \{'h': 's{193}…, not",
        ),
        (lambda job: replace(job, progress=None, log=b""), r"job.log is 0 bytes .*, not None\."),
        (lambda job: None, r"job pay 1 is missing, and job next 1 is in its place\."),
    ],
)
async def test_a_difference_names_the_field_and_shows_no_payload(
    source: MemoryStore, target: MemoryStore, spoil: Callable[[Job], Job | None], says: str
) -> None:
    await put(source, id="pay", payload=b'{"card":"41"}')
    await put(source, id="next")
    original = target.import_records

    async def spoiled(records: Sequence[Exported], move: str) -> int:
        kept: list[Exported] = []
        for record in records:
            if isinstance(record, ExportedJob) and record.job.id == "pay":
                job = spoil(record.job)
                kept += [] if job is None else [replace(record, job=job)]
            else:
                kept.append(record)
        return await original(kept, move)

    target.import_records = spoiled  # type: ignore[method-assign]
    with pytest.raises(StoreError, match=says) as raised:
        await StoreTransfer(source, target).run()
    assert not any(word in str(raised.value) for word in ("secret", "card", "Spec("))
    assert len(str(raised.value)) < 500


async def test_a_key_or_an_event_that_is_missing_is_named(
    source: MemoryStore, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = await put_completed(source, queue="q", key="k", scope="window", window=3600)
    original = target.import_records

    async def without_events(records: Sequence[Exported], move: str) -> int:
        kept = [replace(each, events=each.events[:1]) if isinstance(each, ExportedJob) else each for each in records]
        return await original(kept, move)

    monkeypatch.setattr(target, "import_records", without_events)
    with pytest.raises(StoreError, match=f"job {spec.id} 1: events has 1 entries, not 3"):
        await StoreTransfer(source, target).run()

    async def without_keys(records: Sequence[Exported], move: str) -> int:
        return await original([each for each in records if not isinstance(each, ExportedHold)], move)

    await abort(source)
    await source.delete([spec.id])
    empty = MemoryStore("memory://empty")
    original = empty.import_records
    monkeypatch.setattr(empty, "import_records", without_keys)
    with pytest.raises(StoreError, match="key q k is missing"):
        await StoreTransfer(source, empty).run()


async def test_large_jobs_are_copied_in_pages_of_limited_size(
    source: MemoryStore, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the memory of a move grows with the size of payloads times the number of records per page."""
    small, large = [a_spec() for _ in range(70)], [a_spec(payload=b"x" * 1000) for _ in range(150)]
    await source.enqueue([*small, *large])
    monkeypatch.setattr(transfer_pages, "PAGE_BYTES", 10_000)
    copied: list[int] = []
    original, exported = target.import_records, source.export

    async def import_records(records: Sequence[Exported], move: str) -> int:
        copied.append(sum(len(each.job.payload) for each in records if isinstance(each, ExportedJob)))
        return await original(records, move)

    async def export(cursor: str | None, limit: int) -> ExportPage:
        assert limit <= AT_ONCE
        return await exported(cursor, limit)

    monkeypatch.setattr(target, "import_records", import_records)
    monkeypatch.setattr(source, "export", export)
    await StoreTransfer(source, target).run()

    assert sum(copied) == 150_000 + 70 * len(small[0].payload)
    assert max(copied) < 10_000 + AT_ONCE * 1000
    assert len(copied) >= 5


async def test_a_move_that_is_killed_before_the_source_stands_still_waits_again(
    source: MemoryStore, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a bucket, other processes may write for some seconds after it was closed."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            raise Killed

    await put(source)
    source.closes_after = 7.0
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(Killed):
        await StoreTransfer(source, target).run()
    await StoreTransfer(source, target).run()

    assert waits == [7.0, 7.0]
    assert len(await take_ids(target)) == 1


async def test_a_plan_writes_nothing(source: MemoryStore, target: MemoryStore) -> None:
    await fill(source, VirtualClock())
    report = await StoreTransfer(source, target).plan()

    assert report.jobs == sum(map(transfer.total, await source.count()))
    assert (report.schedules, report.imported) == (2, 0)
    assert await closed(source) is None
    assert await closed(target) is None


@pytest.mark.parametrize(
    ("found", "kind", "changes"),
    [
        ("queue 'pool'", "queue", {"lanes": 3}),
        ("task 'pool'", "task", {"max_running": 3}),
        ("settings of the store", "store", {"keep_events": 60_000}),
    ],
)
async def test_a_target_with_settings_is_refused_before_anything_is_copied(
    source: MemoryStore, target: MemoryStore, found: str, kind: Any, changes: dict[str, Any]
) -> None:
    await put(source)
    await target.control(kind, "" if kind == "store" else "pool", changes)
    for attempt in (StoreTransfer(source, target).plan, StoreTransfer(source, target).run):
        with pytest.raises(InvalidInput, match=f"is not empty.*{found}"):
            await attempt()
    assert len(await take_ids(source)) == 1


async def test_a_target_with_a_deleted_job_is_refused(source: MemoryStore, target: MemoryStore) -> None:
    spec = await put_completed(target)
    await target.delete([spec.id])
    with pytest.raises(InvalidInput, match="is not empty"):
        await StoreTransfer(source, target).run()
