"""Read access: a handle that `for_reading` returns. It sees everything, refuses to write, and changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from millrace.domain.change import Change
from millrace.domain.errors import CursorUnknown, InvalidInput, ReadOnlyStore
from millrace.domain.event import Event
from millrace.domain.request import Extension, Query
from millrace.domain.schedule import Move
from millrace.store.protocol import Consumer, Operator, Producer, Scheduling, Store
from millrace.store.transfer_pages import records_of
from millrace.testing.builders import a_claim, a_reclaim, a_spec, a_worker, seconds
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.reading import one_of_each
from millrace.testing.conformance.scenes import complete, control, put, put_completed, put_running, take
from millrace.testing.conformance.schedules import a_schedule

# Methods that only read, in roles of which the others write.
READS = frozenset({"workers", "schedules", "due_schedules"})


@asynccontextmanager
async def reading(store: Store) -> AsyncIterator[Store]:
    """Open a second handle of the store, with read access."""
    reader = store.for_reading()
    await reader.connect()
    try:
        yield reader
    finally:
        await reader.close()


async def a_full_store(store: Store, clock: VirtualClock) -> list[str]:
    """Put something of everything into the store. Return the ids of its jobs."""
    ids = await one_of_each(store)
    await control(store, max_running=5)
    await control(store, "pool", lanes=3, paused_lanes=(1,))
    await store.control("task", "work", {"max_running": 7})
    await store.control("store", "", {"keep_events": seconds(90_000)})
    grouped = await put_completed(store, b"done", group="g", key="k", queue="mail", headers={"trace": "t"})
    await store.archive([grouped.id])
    await store.beat(a_worker("w-1", queues=("mail",)), seconds(60))
    await store.advance([Move("nightly", 0, a_schedule(clock))])
    return [*ids.values(), grouped.id]


async def every_event(store: Store) -> list[Event]:
    return [
        event
        for span in await store.event_spans(None, 3)
        async for events in store.scan_events(span)
        for event in map(plain_event, events)
    ]


def plain_event(event: Event) -> Event:
    return Event(*(getattr(event, name) for name in Event.__struct_fields__))


async def everything(store: Store, ids: list[str]) -> dict[str, Any]:
    """Return all that can be read from the store."""
    page = await store.events(None, 1_000)
    return {
        "get": await store.get([*ids, "nobody"]),
        "find": (await store.find(Query(archived=None))).jobs,
        "find dead": (await store.find(Query(state="dead", newest_first=True))).jobs,
        "count": await store.count(),
        "position": [await store.position(job_id) for job_id in ids],
        "lanes": await store.lanes("pool"),
        "history": [await store.history(job_id) for job_id in ids],
        "events": page,
        "events at the end": await store.events(page.cursor, 10),
        "events before": await store.events_before(page.cursor, 5),
        "spans": await every_event(store),
        "scan": [job for part in await store.partitions(3) async for jobs in store.scan(part) for job in jobs],
        "workers": await store.workers(),
        "schedules": await store.schedules(),
        "due": msgspec.structs.replace(await store.due_schedules(["nightly"], 10), now=0),
        "settings": [
            await store.control("queue", "default", {}),
            await store.control("task", "work", {}),
            await store.control("store", "", {}),
        ],
        "export": [record async for record in records_of(store)],
        "now": await store.now(),
    }


async def test_a_reader_sees_what_a_writer_sees(store: Store, clock: VirtualClock) -> None:
    ids = await a_full_store(store, clock)
    seen = await everything(store, ids)
    async with reading(store) as reader:
        assert await everything(reader, ids) == seen
    assert len(seen["scan"]) == len(ids) and len(seen["spans"]) == len(seen["events"].events) > len(ids)


async def test_a_reader_sees_what_changes(store: Store, clock: VirtualClock) -> None:
    first = await put(store)
    async with reading(store) as reader:
        assert [job.id for job in (await reader.find(Query())).jobs] == [first.id]
        second = await put(store)
        await complete(store, await take(store))

        assert [job and job.state.value for job in await reader.get([first.id, second.id])] == ["completed", "waiting"]
        assert [counts.completed for counts in await reader.count()] == [1]


async def test_a_reader_opens_an_empty_store(store: Store, clock: VirtualClock) -> None:
    async with reading(store) as reader:
        assert [counts.waiting for counts in await reader.count() if counts.waiting] == []
        assert (await reader.find(Query())).jobs == ()
        assert (await reader.events(None, 10)).events == ()
        assert await every_event(reader) == [] == await reader.workers()


async def test_a_reader_misses_no_event_and_sees_none_twice(store: Store, clock: VirtualClock) -> None:
    """The reader's pages, one after the other, are the feed. Events may be shown late, but never in another order."""
    found: list[Event] = []
    cursor: str | None = None
    async with reading(store) as reader:
        for number in range(4):
            await put_completed(store, queue=f"q{number}")
            if number % 2:
                await store.maintain()  # done by workers: now at the latest, the events before it are shown
            while events := (page := await reader.events(cursor, 2)).events:
                found += events
                cursor = page.cursor
            cursor = page.cursor
        feed = await store.events(None, 1_000)

        assert [plain_event(event) for event in found] == [plain_event(event) for event in feed.events]
        assert cursor == feed.cursor


async def test_the_history_of_a_job_is_complete_for_a_reader(store: Store, clock: VirtualClock) -> None:
    spec = await put_completed(store)
    async with reading(store) as reader:
        assert [event.kind for event in await reader.history(spec.id)] == ["enqueued", "claimed", "completed"]


async def test_a_reader_refuses_bad_input_like_a_writer(store: Store, clock: VirtualClock) -> None:
    await put(store)
    async with reading(store) as reader:
        with pytest.raises(InvalidInput, match="cursor"):
            await reader.events("nowhere", 10)
        with pytest.raises(InvalidInput, match="cursor"):
            await reader.find(Query(cursor="abc"))
        end = (await store.events("end", 0)).cursor
        await put(store)
        await store.events(None, 10)
        with pytest.raises((CursorUnknown, InvalidInput)):
            await reader.events("99-x00000000", 10)
        assert len((await reader.events(end, 10)).events) == 1


def calls_that_write(store: Store, held: Any, clock: VirtualClock) -> dict[str, Any]:
    """Return the arguments of a call of each method that writes, by method."""
    ids = [held.id]
    return {
        "enqueue": ([a_spec()],),
        "enqueue_behind": ([a_spec()], None),
        "claim": (a_claim(),),
        "settle": ([(held.lease, Change.completed())],),
        "extend": ([Extension(held.lease)],),
        "reclaim": (a_reclaim(),),
        "wait": (("default",), None, 0.01),
        "wait_for_cancel": ("worker", 0.01),
        "cancel": (ids, "request"),
        "replay": (ids,),
        "archive": (ids,),
        "delete": (ids,),
        "control": ("queue", "default", {"paused": True}),
        "drain": ("default",),
        "obliterate": ("default",),
        "maintain": (),
        "beat": (a_worker("w"), seconds(60)),
        "advance": ([Move("x", 0, a_schedule(clock, "x"))],),
    }


async def test_a_reader_refuses_every_method_that_writes(store: Store, clock: VirtualClock) -> None:
    await put(store)
    held = await put_running(store, queue="held")
    calls = calls_that_write(store, held, clock)
    methods = {name for role in (Producer, Consumer, Operator, Scheduling) for name in vars(role) if name[0] != "_"}
    assert methods - READS == calls.keys()

    seen = await everything(store, [held.id])
    async with reading(store) as reader:
        for method, arguments in calls.items():
            with pytest.raises(ReadOnlyStore, match="access=read"):
                await getattr(reader, method)(*arguments)
    assert await everything(store, [held.id]) == seen


async def test_a_reader_can_wait_for_the_end_of_a_job(store: Store, clock: VirtualClock) -> None:
    job = await put_running(store)
    async with reading(store) as reader, reader.watch(job.id) as watch:
        await watch.wait(0.01)
        await complete(store, job)
        await watch.wait(0.01)
        [found] = await reader.get([job.id])
        assert found is not None and found.state.value == "completed"


async def test_a_reader_names_its_access(store: Store, clock: VirtualClock) -> None:
    """The URL of a reader opens a reader, and so does every handle that is made from one."""
    reader = store.for_reading()
    assert reader.url.startswith(store.url.partition("?")[0]) and reader.url.endswith("access=read")
    assert reader.for_reading().url == reader.for_loop().url == reader.url
    with pytest.raises(ReadOnlyStore):
        await reader.for_loop().enqueue([a_spec()])
