"""Reads the event feed. One script call returns a consistent view of the feed's bounds, a range of events, and single
events.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from millrace.domain import feed
from millrace.domain.event import Event
from millrace.domain.request import EventPage, EventSpan
from millrace.store.redis.decode import event_from
from millrace.store.redis.wire import RedisWire

_NEWEST = -1


async def page(wire: RedisWire, cursor: str | None, limit: int) -> EventPage:
    """Return a page of events after `cursor`, once they have the durability that the store's options require."""
    if cursor == feed.END:
        return feed.events(await _ask(wire, None, 0, [_NEWEST], durable=True), cursor, limit)
    start = None if cursor is None else feed.parse(cursor)
    after = None if start is None else start.at if start.witness != start.at else max(0, start.at - 1)
    named = [] if start is None else [start.witness]
    return feed.events(await _ask(wire, after, limit + 1, named, durable=True), cursor, limit)


async def before(wire: RedisWire, cursor: str | None, limit: int) -> tuple[list[tuple[str, Event]], str | None]:
    """Return up to `limit` events before `cursor`, newest first, and the cursor to continue from.

    Each event comes with the cursor before it. If `cursor` is None, an additional call first reads the cursor of the
    newest event.
    """
    if cursor is None:
        cursor = feed.events(await _ask(wire, None, 0, [_NEWEST], durable=True), feed.END, 0).cursor
    end = feed.parse(cursor)
    return feed.events_before(await _ask(wire, max(0, end.at - limit), limit, [end.witness]), cursor, limit)


async def spans(
    wire: RedisWire, after: str | int | None, n: int, limit: int | None, until: str | None
) -> list[EventSpan]:
    """Return at most `n` spans of the feed (see `Reader.event_spans` in store/protocol.py).

    With a `limit`, the end of the last span depends on the bounds of the feed. So the first call reads the bounds, and
    a second call reads the event at that end.
    """
    if isinstance(after, int):
        after = await _cursor_before(wire, after)
    cursors = [feed.parse(text) for text in (after, until) if text is not None]
    named = [_NEWEST, *(cursor.witness for cursor in cursors)]
    found = await _ask(wire, None, 0, named, durable=True)
    if limit is not None:
        start = found.feed_bounds()[0] if after is None else cursors[0].at
        found = await _ask(wire, None, 0, [*named, start + limit], durable=True)
    return feed.event_spans(found, after, n, limit, until)


async def scan(wire: RedisWire, span: EventSpan, batch: int) -> AsyncIterator[list[Event]]:
    start, until = feed.span_bounds(span)
    after = start.at
    while after < until.at:
        found = await _ask(wire, after, min(batch, until.at - after), [until.witness])
        events = feed.span_events(found, after, until, batch)
        after += len(events)
        yield events


async def _cursor_before(wire: RedisWire, at: int) -> str:
    number = int(await wire.ask("cursor_before", [at]))
    return str(feed.cursor_at(await _ask(wire, None, 0, [number]), number))


async def _ask(
    wire: RedisWire, after: int | None, limit: int, named: Sequence[int], *, durable: bool = False
) -> _Reply:
    return _Reply(after, named, await wire.ask("feed", [after, limit, named], durable=durable))


class _Reply:
    """The reply of one script call as `FeedTables`, the interface that domain/feed.py reads."""

    def __init__(self, after: int | None, named: Sequence[int], reply: Sequence[Any]) -> None:
        trimmed, newest, mark, events, singles = reply
        self._bounds = int(trimmed), int(newest)
        self._mark: str = mark.decode()
        self._after = max(after or 0, self._bounds[0])
        self._events = events
        numbers = [self._bounds[1] if number == _NEWEST else number for number in named]
        self._named = {number: event for number, event in zip(numbers, singles, strict=True) if event}

    def feed_bounds(self) -> tuple[int, int]:
        return self._bounds

    def trimmed_mark(self) -> str:
        return self._mark

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]:
        if limit == 1 and after + 1 in self._named:
            return [(after + 1, event_from(self._named[after + 1]))]
        skip = after - self._after
        events = self._events[skip : skip + limit] if skip >= 0 else []
        return [(after + 1 + index, event_from(event)) for index, event in enumerate(events)]
