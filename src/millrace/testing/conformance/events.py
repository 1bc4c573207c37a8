"""Events: every transition of a job is one event, and readers of the feed continue from a cursor."""

from __future__ import annotations

import re

import pytest

from millrace.domain.change import Change
from millrace.domain.errors import CursorExpired, CursorUnknown, InvalidInput
from millrace.domain.event import Event
from millrace.domain.request import EventSpan
from millrace.store.protocol import Store
from millrace.testing.builders import a_reclaim, a_retry_change, a_spec, seconds, settings_in_seconds, specs
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
    put_dead,
    retry,
    take,
)
from millrace.testing.conformance.spans import read


async def read_on(store: Store, cursor: str | None, limit: int = 1_000) -> tuple[list[Event], str]:
    """Read all events after a cursor, page by page. Returns the events, and the cursor after the last one."""
    events: list[Event] = []
    while True:
        page = await store.events(cursor, limit)
        cursor = page.cursor
        if not page.events:
            return events, cursor
        events += page.events


def beyond(cursor: str) -> str:
    """Return a cursor of the same form as the given one, but far after the end of the feed."""
    return re.sub(r"\b[0-9]+\b", lambda found: str(2 * int(found[0]) + 1_000), cursor)


async def test_every_transition_is_one_event_numbered_in_order(store: Store, clock: VirtualClock) -> None:
    """The history of a job has one numbered event for each transition, with state, failures and attempt."""
    spec = await put(store)
    await retry(store, await take(store))
    await finish(store, await take(store), Change.snooze(0))
    await finish(store, await take(store), Change.release())
    await bury(store, await take(store))
    await store.replay([spec.id])
    await complete(store, await take(store))
    await store.archive([spec.id])

    events = await store.history(spec.id)

    assert [event.kind.value for event in events] == [
        "enqueued",
        *("claimed", "retried"),
        *("claimed", "snoozed"),
        *("claimed", "released"),
        *("claimed", "buried"),
        "replayed",
        *("claimed", "completed"),
        "archived",
    ]
    assert [event.n for event in events] == list(range(1, len(events) + 1))
    assert [event.state for event in events][-3:] == ["running", "completed", "completed"]
    assert [event.failures for event in events] == [0, 0, 1, 1, 1, 1, 1, 1, 2, 0, 0, 0, 0]
    assert [event.attempt for event in events] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5]


async def test_an_event_tells_who_did_what_when(store: Store, clock: VirtualClock) -> None:
    spec = await put(store, queue="mail", task="send", delay=2)
    enqueued_at = clock()
    clock.advance(2)
    job = await take(store, queue="mail", worker="w-1")
    clock.advance(1)
    change = a_retry_change(5, "no route")
    await finish(store, job, Change(change.verb, change.delay, error=change.error, failed=1, duration=990))

    first, claimed, retried = await store.history(spec.id)

    assert (first.job, first.seq, first.generation, first.queue, first.task) == (spec.id, job.seq, 1, "mail", "send")
    assert (first.at, first.delay, first.state) == (enqueued_at, seconds(2), "waiting")
    assert (claimed.at, claimed.worker, claimed.lease) == (clock() - 1000, "w-1", job.lease.id)
    assert (retried.at, retried.worker, retried.lease) == (clock(), "w-1", job.lease.id)
    assert (retried.delay, retried.duration, retried.error) == (seconds(5), 990, change.error)


async def test_the_feed_holds_every_event_in_order_per_job(store: Store, clock: VirtualClock) -> None:
    asked = specs(5)
    await store.enqueue(asked)
    for _ in asked:
        await complete(store, await take(store))

    feed, _ = await read_on(store, None)

    assert len(feed) == 15
    for spec in asked:
        assert [event for event in feed if event.job == spec.id] == await store.history(spec.id)


async def test_a_reader_resumes_from_its_cursor(store: Store, clock: VirtualClock) -> None:
    """A reader that continues from its cursor gets each later event exactly once."""
    await store.enqueue(specs(7))
    first, cursor = await read_on(store, None, limit=3)
    again, same = await read_on(store, cursor)
    assert (len(first), again, same) == (7, [], cursor)

    await put_completed(store)
    rest, _ = await read_on(store, cursor, limit=1)
    everything, _ = await read_on(store, None)
    assert [*first, *rest] == everything


async def test_a_page_holds_no_more_than_asked(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(5))

    assert len((await store.events(None, 3)).events) == 3


async def test_an_empty_feed_has_a_cursor_too(store: Store, clock: VirtualClock) -> None:
    page = await store.events(None, 10)
    assert page.events == ()
    await put(store)

    assert len((await store.events(page.cursor, 10)).events) == 1


async def test_a_reader_may_begin_at_the_end(store: Store, clock: VirtualClock) -> None:
    """A reader that starts with the cursor "end" gets only later events."""
    assert (await store.events("end", 10)).cursor == (await store.events(None, 10)).cursor
    await store.enqueue([a_spec(id="old")])
    end = await store.events("end", 10)
    assert end.events == ()

    await store.enqueue([a_spec(id="new")])

    assert [event.job for event in (await store.events(end.cursor, 10)).events] == ["new"]


async def test_a_reader_may_ask_where_the_feed_begins(store: Store, clock: VirtualClock) -> None:
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    await store.enqueue(specs(2))
    clock.advance(60)
    await store.maintain()
    await store.enqueue(specs(3))
    begin = await store.events(None, 0)
    assert begin.events == ()

    assert await read_on(store, begin.cursor) == await read_on(store, None)
    assert await store.events(begin.cursor, 0) == begin


async def test_a_cursor_that_is_none_is_refused(store: Store, clock: VirtualClock) -> None:
    for text in ("abc", "", "-1", "1.5", "²", "9" * 30):
        with pytest.raises(InvalidInput, match="cursor"):
            await store.events(text, 10)


async def test_a_cursor_beyond_the_end_is_refused(store: Store, clock: VirtualClock) -> None:
    """A cursor after the end of the feed raises CursorUnknown.

    Such a cursor comes from a store that has lost events, for example when it was restored from a backup.
    """
    await store.enqueue(specs(5))
    clock.advance(60)
    ahead = beyond((await store.events(None, 10)).cursor)

    with pytest.raises(CursorUnknown, match=r"restored from a backup.*Read again"):
        await store.events(ahead, 10)
    with pytest.raises(CursorUnknown):
        await store.event_spans(ahead, 2)
    with pytest.raises(CursorUnknown):
        await store.event_spans(None, 2, until=ahead)
    with pytest.raises(CursorUnknown):
        [events async for events in store.scan_events(EventSpan((await store.events(None, 2)).cursor, ahead, 9))]


async def test_a_cursor_stays_good_while_the_feed_grows_and_is_trimmed(store: Store, clock: VirtualClock) -> None:
    """A cursor is valid as long as no event after it has been removed by retention."""
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    await store.enqueue(specs(9))
    cursors = [(await store.events(None, number)).cursor for number in range(1, 10)]
    cursors += [span.until for span in await store.event_spans(None, 4)]
    everything, _ = await read_on(store, None)
    for cursor in cursors:
        [span] = await store.event_spans(None, 1, until=cursor)
        before = await read(store, [span], batch=2)
        assert [*before, *(await read_on(store, cursor))[0]] == everything
    clock.advance(60)
    assert (await store.maintain()).events == 9
    assert await read_on(store, cursors[8]) == ([], cursors[8])
    await put(store)

    assert len((await read_on(store, cursors[8]))[0]) == 1
    assert len((await read_on(store, None))[0]) == 1


async def backwards(store: Store, cursor: str | None, limit: int) -> list[tuple[str, Event]]:
    """Read the events before a cursor, page by page, newest first. Return each event with the cursor just before it."""
    found: list[tuple[str, Event]] = []
    while True:
        events, cursor = await store.events_before(cursor, limit)
        assert len(events) <= limit
        found += events
        if cursor is None:
            return found


@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_the_feed_can_be_read_backwards(store: Store, clock: VirtualClock, limit: int) -> None:
    assert await backwards(store, None, limit) == []
    await store.enqueue(specs(5))
    clock.advance(10)
    await store.enqueue(specs(5))
    everything, end = await read_on(store, None)

    for cursor in (None, end):
        found = await backwards(store, cursor, limit)
        assert [event for _, event in found] == everything[::-1]
    for before, event in found:
        assert (await store.events(before, 1)).events == (event,)
        earlier = [one for _, one in await backwards(store, before, limit)]
        assert earlier == everything[: everything.index(event)][::-1]


async def test_reading_backwards_ends_at_the_oldest_event_kept(store: Store, clock: VirtualClock) -> None:
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    await store.enqueue(specs(3))
    cursor = (await store.events(None, 2)).cursor
    clock.advance(60)
    await store.enqueue(specs(2))
    await store.maintain()

    assert len(await backwards(store, None, 1)) == 2
    assert await backwards(store, cursor, 10) == []


async def test_a_cursor_that_is_none_is_refused_backwards_too(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(2))
    for text in ("abc", "", "-1", "1.5", "9" * 30):
        with pytest.raises(InvalidInput, match="cursor"):
            await store.events_before(text, 10)


async def test_old_events_are_trimmed(store: Store, clock: VirtualClock) -> None:
    """Upkeep removes events older than `keep_events` from the history and from the feed."""
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    spec = await put(store)
    clock.advance(30)
    await take(store)
    clock.advance(29.999)
    assert (await store.maintain()).events == 0
    clock.advance(0.001)
    assert (await store.maintain()).events == 1

    assert await kinds(store, spec) == ["claimed"]
    feed, _ = await read_on(store, None)
    assert [event.kind.value for event in feed] == ["claimed"]


async def test_a_reader_that_was_overtaken_is_told_how_much_it_lost(store: Store, clock: VirtualClock) -> None:
    """If retention has removed events that a reader has not read, the reader gets CursorExpired with the number of
    events.
    """
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    await store.enqueue(specs(5))
    cursor = (await store.events(None, 2)).cursor
    clock.advance(30)
    await store.enqueue(specs(2))
    clock.advance(30)
    await store.maintain()

    with pytest.raises(CursorExpired) as overtaken:
        await store.events(cursor, 10)

    assert overtaken.value.lost == 3
    assert len((await store.events(overtaken.value.oldest, 10)).events) == 2


async def test_a_reader_that_kept_up_is_not_disturbed_by_trimming(store: Store, clock: VirtualClock) -> None:
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    await store.enqueue(specs(5))
    cursor = (await store.events(None, 10)).cursor
    clock.advance(60)
    assert (await store.maintain()).events == 5
    await put(store)

    assert len((await store.events(cursor, 10)).events) == 1


async def test_trimming_works_in_bounded_rounds(store: Store, clock: VirtualClock) -> None:
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    await store.enqueue(specs(5))
    clock.advance(60)

    done = [await store.maintain(limit=2) for _ in range(3)]

    assert [(each.events, each.more) for each in done] == [(2, True), (2, True), (1, False)]


async def test_a_batch_may_lose_a_part_of_its_events(store: Store, clock: VirtualClock) -> None:
    """A limited round of upkeep removes the first events of a batch. The others stay in the history."""
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    batch = [a_spec(), a_spec(), a_spec()]
    await store.enqueue(batch)
    clock.advance(61)

    assert (await store.maintain(limit=2)).events == 2
    assert [await kinds(store, spec) for spec in batch] == [[], [], ["enqueued"]]


async def test_events_may_be_kept_for_ever(store: Store, clock: VirtualClock) -> None:
    await store.control("store", "", {"keep_events": None})
    spec = await put(store)
    clock.advance(10 * 365 * 24 * 3600)

    assert (await store.maintain()).events == 0
    assert await kinds(store, spec) == ["enqueued"]


async def test_the_history_spans_the_generations_of_an_id(store: Store, clock: VirtualClock) -> None:
    await put_dead(store, id="again")
    await store.enqueue([a_spec(id="again")])

    events = await store.history("again")

    assert [(event.generation, event.n) for event in events] == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1)]


async def test_the_history_outlives_the_record(store: Store, clock: VirtualClock) -> None:
    """The history of a job can still be read after its record was pruned."""
    await control(store, keep_completed=0)
    spec = await put_completed(store)

    assert await store.get([spec.id]) == [None]
    assert await kinds(store, spec) == ["enqueued", "claimed", "completed", "pruned"]


async def test_an_unknown_id_has_no_history(store: Store, clock: VirtualClock) -> None:
    assert await store.history("nobody") == []


async def test_what_is_refused_or_only_read_is_no_event(store: Store, clock: VirtualClock) -> None:
    spec = await put(store)
    job = await take(store)
    await store.enqueue([spec, a_spec(id=spec.id)])
    await store.cancel([spec.id])
    await store.replay([spec.id])
    await store.archive([spec.id])
    await control(store, paused=True)
    await store.get([spec.id])
    await count(store)

    assert await kinds(store, spec) == ["enqueued", "claimed"]
    await complete(store, job)


async def test_a_takeover_is_an_event(store: Store, clock: VirtualClock) -> None:
    """When a lease is reclaimed, the job gets a `reclaimed` event."""
    spec = await put(store)
    await take(store, lease=30)
    clock.advance(31)
    [lost] = await store.reclaim(a_reclaim())
    await finish(store, lost, a_retry_change())

    assert await kinds(store, spec) == ["enqueued", "claimed", "reclaimed", "retried"]
