"""Spans: consecutive parts of the feed, between two cursors. Several readers can read them in parallel.

`event_spans` plans the spans, and `scan_events` reads the events of one span.
"""

from __future__ import annotations

import msgspec
import pytest

from millrace.domain.errors import CursorExpired, InvalidInput
from millrace.domain.event import Event
from millrace.domain.request import EventSpan
from millrace.store.protocol import Store
from millrace.testing.builders import a_spec, settings_in_seconds, specs
from millrace.testing.clock import VirtualClock
from millrace.testing.conformance.scenes import complete, put, put_completed, take


async def feed(store: Store) -> list[Event]:
    return list((await store.events(None, 10_000)).events)


async def read(store: Store, spans: list[EventSpan], batch: int = 1_000) -> list[Event]:
    """Return the events of the spans as plain instances of `Event`.

    A store may return a subclass with the same fields, which would not compare equal.
    """
    return [
        Event(*msgspec.structs.astuple(event))
        for span in spans
        async for events in store.scan_events(span, batch)
        for event in events
    ]


async def some_history(store: Store, jobs: int = 9) -> None:
    for spec in specs(jobs):
        await store.enqueue([spec])
    for _ in range(jobs):
        await complete(store, await take(store))


async def test_spans_hold_the_whole_feed_once_and_in_order(store: Store, clock: VirtualClock) -> None:
    await some_history(store)
    everything = await feed(store)

    for n in (1, 2, 3, 7, 100):
        spans = await store.event_spans(None, n)
        assert 1 <= len(spans) <= n
        assert [span.until for span in spans[:-1]] == [span.after for span in spans[1:]]
        assert await read(store, spans) == everything
    assert len(await store.event_spans(None, 3)) == 3


async def test_a_span_can_be_read_alone_and_again(store: Store, clock: VirtualClock) -> None:
    """Reading the same span again returns the same events."""
    await some_history(store)
    spans = await store.event_spans(None, 3)
    alone = [await read(store, [span]) for span in spans]

    assert [event for events in alone for event in events] == await feed(store)
    assert await read(store, [spans[1]]) == alone[1] != []


async def test_what_happens_later_is_not_in_a_span(store: Store, clock: VirtualClock) -> None:
    """Events that happen after the spans were planned are not in them."""
    await some_history(store)
    before = await feed(store)
    spans = await store.event_spans(None, 2)
    clock.advance(1)
    await put_completed(store)

    assert await read(store, spans) == before
    rest = await store.event_spans(spans[-1].until, 2)
    assert [*before, *await read(store, rest)] == await feed(store)


async def test_batches_of_a_span_are_no_larger_than_asked(store: Store, clock: VirtualClock) -> None:
    await store.enqueue(specs(10))
    [span] = await store.event_spans(None, 1)

    assert [len(events) async for events in store.scan_events(span, 4)] == [4, 4, 2]


async def test_spans_begin_after_a_cursor_from_anywhere(store: Store, clock: VirtualClock) -> None:
    """Spans can begin after any event, even after one in the middle of a call that wrote several events."""
    await store.enqueue(specs(5))
    clock.advance(1)
    await store.enqueue(specs(5))
    everything = await feed(store)

    for number in range(11):
        cursor = (await store.events(None, number)).cursor if number else None
        assert await read(store, await store.event_spans(cursor, 2)) == everything[number:]


async def test_a_limit_bounds_what_is_taken_at_once(store: Store, clock: VirtualClock) -> None:
    await some_history(store)
    everything = await feed(store)
    taken: list[Event] = []
    cursor: str | None = None
    while True:
        spans = await store.event_spans(cursor, 2, limit=5)
        part = await read(store, spans)
        if not part:
            break
        assert len(part) == sum(span.count for span in spans) <= 5
        taken += part
        cursor = spans[-1].until

    assert taken == everything


async def test_spans_up_to_a_cursor_can_be_had_again(store: Store, clock: VirtualClock) -> None:
    """With `until`, a restarted reader can plan the spans of the same part of the feed again."""
    await some_history(store)
    [planned] = await store.event_spans(None, 1, limit=10)
    clock.advance(1)
    await put_completed(store)

    again = await store.event_spans(None, 3, until=planned.until)
    bounded = await store.event_spans(None, 1, limit=4, until=planned.until)

    assert again[-1].until == planned.until
    assert await read(store, again) == (await feed(store))[:10] == await read(store, [planned])
    assert await read(store, bounded) == (await feed(store))[:4]


async def test_an_empty_stretch_is_one_empty_span_whose_end_stays(store: Store, clock: VirtualClock) -> None:
    [nothing] = await store.event_spans(None, 4)
    assert (nothing.after, nothing.count) == (nothing.until, 0)
    assert await read(store, [nothing]) == []

    await put(store)
    [first] = await store.event_spans(nothing.until, 4)
    [after] = await store.event_spans(first.until, 4)
    assert first.count == 1 == len(await read(store, [first]))
    assert (after.after, after.until, after.count) == (first.until, first.until, 0)


async def test_cursors_of_pages_and_of_spans_are_the_same_thing(store: Store, clock: VirtualClock) -> None:
    await some_history(store)
    everything = await feed(store)
    for span in await store.event_spans(None, 4):
        done = await read(store, await store.event_spans(None, 1, until=span.until))
        rest = await store.events(span.until, 10_000)
        assert [*done, *rest.events] == everything


async def test_whoever_plans_too_late_is_told_how_much_is_lost(store: Store, clock: VirtualClock) -> None:
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    await store.enqueue(specs(5))
    cursor = (await store.events(None, 2)).cursor
    clock.advance(60)
    await store.maintain()
    await put(store)

    with pytest.raises(CursorExpired) as overtaken:
        await store.event_spans(cursor, 2)

    assert overtaken.value.lost == 3
    assert len(await read(store, await store.event_spans(overtaken.value.oldest, 2))) == 1


async def test_whoever_reads_too_late_is_told_too(store: Store, clock: VirtualClock) -> None:
    """If retention has removed events of a span, reading the span raises CursorExpired instead of returning fewer
    events.
    """
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    await store.enqueue(specs(5))
    clock.advance(30)
    await store.enqueue(specs(5))
    [span] = await store.event_spans(None, 1)
    clock.advance(30)
    await store.maintain()

    with pytest.raises(CursorExpired):
        await read(store, [span])


async def test_whoever_is_overtaken_while_reading_is_told(store: Store, clock: VirtualClock) -> None:
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    for _ in range(200):
        await store.enqueue([a_spec()])
    [span] = await store.event_spans(None, 1)
    read_so_far = store.scan_events(span, 10)
    assert len(await anext(read_so_far)) == 10
    clock.advance(60)
    while (await store.maintain()).events:
        pass

    with pytest.raises(CursorExpired):
        [events async for events in read_so_far]


async def test_whoever_is_overtaken_in_part_is_told(store: Store, clock: VirtualClock) -> None:
    """If retention removes events of a span during the read, the read raises CursorExpired instead of skipping them."""
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    for _ in range(100):
        await store.enqueue([a_spec()])
    clock.advance(30)
    for _ in range(60):
        await store.enqueue([a_spec()])
    [span] = await store.event_spans(None, 1)
    read_so_far = store.scan_events(span, 10)
    await anext(read_so_far)
    clock.advance(30)
    while (await store.maintain()).events:
        pass
    assert len(await feed(store)) == 60

    with pytest.raises(CursorExpired):
        [events async for events in read_so_far]


async def test_an_instant_has_a_cursor(store: Store, clock: VirtualClock) -> None:
    moments = []
    for _ in range(7):
        moments.append(clock())
        await store.enqueue(specs(3))
        clock.advance(10)
    everything = await feed(store)

    for at in (0, moments[0], moments[3], moments[3] + 1, moments[6], clock()):
        since = await read(store, await store.event_spans(at, 2))
        assert since == [event for event in everything if event.at >= at]


async def test_the_cursor_of_an_instant_before_the_oldest_event_is_that_of_the_oldest(
    store: Store, clock: VirtualClock
) -> None:
    await store.control("store", "", settings_in_seconds({"keep_events": 60}))
    long_ago = clock()
    await store.enqueue(specs(5))
    clock.advance(60)
    await store.maintain()
    await put(store)

    assert len(await read(store, await store.event_spans(long_ago, 2))) == 1


async def test_a_span_that_is_none_is_refused(store: Store, clock: VirtualClock) -> None:
    for text in ("abc", "", "-1"):
        with pytest.raises(InvalidInput, match="cursor"):
            await store.event_spans(text, 1)
        with pytest.raises(InvalidInput, match="cursor"):
            await store.event_spans(None, 1, until=text)
        with pytest.raises(InvalidInput, match="cursor"):
            await read(store, [EventSpan(text, text, 1)])


async def test_events_of_a_span_have_the_fields_of_events_in_the_feed(store: Store, clock: VirtualClock) -> None:
    """The events of a span have the same field values as in the feed, even if the store returns a subclass of Event."""
    await some_history(store)
    plain = await feed(store)
    assert len(plain) == 27
    [span] = await store.event_spans(None, 1)
    scanned = [event async for events in store.scan_events(span, 4) for event in events]

    fields = Event.__struct_fields__
    assert all(isinstance(event, Event) for event in scanned)
    assert [[getattr(event, name) for name in fields] for event in scanned] == [
        [getattr(event, name) for name in fields] for event in plain
    ]
