"""Spans of the feed, to be read in parallel.

A feed part is the object with the events of one operation. A listing shows its stamp and its size in bytes, but not the
number of its events. So spans are cut at about equal sizes, and event counts are estimates. If there is a limit, the
parts are read and their events are counted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import msgspec

from millrace.domain.errors import CursorExpired
from millrace.domain.event import Event
from millrace.domain.request import EventSpan
from millrace.store.object.engine.numbers import COUNT
from millrace.store.object.engine.values import FeedEvent, events_in
from millrace.store.object.events.feed import PARTS_AT_ONCE, Feed, ObjectCursor
from millrace.store.object.keys import Layout, stamp_of


class _Part(msgspec.Struct, frozen=True, gc=False):
    stamp: int
    key: str
    size: int


class Spans:
    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._blobs = feed.blobs

    async def spans(
        self, after: str | int | None, n: int, limit: int | None, until: str | None, now: int
    ) -> list[EventSpan]:
        start, end = await self._start(after, now), None if until is None else await self._end(until, now)
        if limit is not None:
            return await self._counted(start, end, n, limit, now)
        parts = [part async for page in self._parts(start, end, now) for part in page]
        first, last = await self._ends(parts)
        parts = parts[_is_read(first, start) :]
        if not parts:
            return [EventSpan(str(start), str(start), 0)]
        bytes_each = max(1, sum(part.size for part in (parts[0], parts[-1])) // max(1, len(first) + len(last)))
        count = start.count + max(1, sum(part.size for part in parts) // bytes_each)
        if end is None:
            end = ObjectCursor(count, last[-1].stamp, last[-1].place + 1)
        cuts = _even_cuts(parts, n)
        return _as_spans(start, end, [(parts[cut].stamp, _size(parts[:cut]) // bytes_each) for cut in cuts])

    async def _start(self, after: str | int | None, now: int) -> ObjectCursor:
        oldest = await self._feed.oldest()
        if isinstance(after, int):
            stamp = max(0, min(after, now)) << COUNT
            return oldest if stamp <= oldest.stamp else ObjectCursor(oldest.count, stamp, 0)
        start = oldest if after is None else ObjectCursor.parse(after)
        _check(start, oldest)
        await self._feed.check_not_ahead(start, oldest, now)
        return start

    async def _end(self, until: str, now: int) -> ObjectCursor:
        end = ObjectCursor.parse(until)
        await self._feed.check_not_ahead(end, ObjectCursor(0, 0, 0), now)
        return end

    async def _counted(
        self, start: ObjectCursor, end: ObjectCursor | None, n: int, limit: int, now: int
    ) -> list[EventSpan]:
        """Return spans of the first `limit` events. The events are counted by reading them."""
        places: list[tuple[int, int]] = []
        async for page in self._parts(start, end, now):
            async for feed_events in self._feed_events(page, start, end):
                places += [one.position for one in feed_events]
                if len(places) >= limit:
                    break
            if len(places) >= limit:
                break
        places = places[:limit]
        if not places:
            return [EventSpan(str(start), str(start), 0)]
        size = -(-len(places) // max(1, n))
        cursors = [start] + [
            ObjectCursor(start.count + number, places[number - 1][0], places[number - 1][1] + 1)
            for number in [*range(size, len(places), size), len(places)]
        ]
        return [EventSpan(str(a), str(b), b.count - a.count) for a, b in pairwise(cursors)]

    async def scan(self, span: EventSpan, batch: int, now: int) -> AsyncIterator[list[Event]]:
        start, end = await self._start(span.after, now), await self._end(span.until, now)
        ready: list[Event] = []
        async for page in self._parts(start, end, None):
            async for feed_events in self._feed_events(page, start, end):
                _check(start, await self._feed.oldest())  # after reading: missing parts are known as trimmed by now
                if feed_events:
                    start = ObjectCursor(
                        start.count + len(feed_events), feed_events[-1].stamp, feed_events[-1].place + 1
                    )
                ready += [one.event for one in feed_events]
                while len(ready) >= batch:
                    yield ready[:batch]
                    ready = ready[batch:]
        _check(start, await self._feed.oldest())
        if ready:
            yield ready

    async def _parts(
        self, start: ObjectCursor, end: ObjectCursor | None, now: int | None
    ) -> AsyncIterator[list[_Part]]:
        """Yield the feed parts between the cursors, in order and in lists.

        With `now`, yield only parts that are old enough: no earlier part can still appear before them.
        """
        after = None if start.stamp == 0 else Layout.feed(start.stamp - 1)
        async for listed in self._blobs.pages("feed/", after):
            parts = [_Part(stamp_of(entry.key), entry.key, entry.size) for entry in listed.entries]
            wanted = [
                part
                for part in parts
                if (now is None or self._feed.is_old_enough(part.key, now))
                and (end is None or (part.stamp, 0) < end.position)
            ]
            yield wanted
            if len(wanted) < len(parts):
                return

    async def _feed_events(
        self, parts: Sequence[_Part], start: ObjectCursor, end: ObjectCursor | None
    ) -> AsyncIterator[list[FeedEvent]]:
        for first in range(0, len(parts), PARTS_AT_ONCE):
            blobs = await self._blobs.get_many([part.key for part in parts[first : first + PARTS_AT_ONCE]])
            yield [
                one
                for blob in blobs
                for one in events_in(blob)
                if one.position >= start.position and (end is None or one.position < end.position)
            ]

    async def _ends(self, parts: Sequence[_Part]) -> tuple[tuple[FeedEvent, ...], tuple[FeedEvent, ...]]:
        """Return the events of the first and of the last feed part."""
        if not parts:
            return (), ()
        blobs = await self._blobs.get_many([parts[0].key, parts[-1].key] if len(parts) > 1 else [parts[0].key])
        found = [events_in(blob) for blob in blobs]
        return found[0], found[-1]


def _check(cursor: ObjectCursor, oldest: ObjectCursor) -> None:
    if cursor.position < oldest.position:
        raise CursorExpired(str(cursor), max(1, oldest.count - cursor.count), str(oldest))


def _is_read(first: Sequence[FeedEvent], start: ObjectCursor) -> bool:
    """Return whether all events of the first feed part are before the cursor `start`.

    The feed part of the last event read is listed again, because the cursor has its stamp.
    """
    return bool(first) and (first[-1].stamp, first[-1].place) < start.position


def _size(parts: Sequence[_Part]) -> int:
    return sum(part.size for part in parts)


def _even_cuts(parts: Sequence[_Part], n: int) -> list[int]:
    """Return the indexes of the feed parts that begin a new span, except the first one. The spans have about equal
    sizes.
    """
    share = _size(parts) / max(1, n)
    cuts: list[int] = []
    filled = 0
    for place, part in enumerate(parts):
        if place and filled >= share * (len(cuts) + 1):
            cuts.append(place)
        filled += part.size
    return cuts[: max(0, n - 1)]


def _as_spans(start: ObjectCursor, end: ObjectCursor, cuts: Sequence[tuple[int, int]]) -> list[EventSpan]:
    """Return the spans between `start` and `end`.

    `cuts` has a pair for each further span: the stamp at which it begins, and the number of events before it.
    """
    cursors = [start, *(ObjectCursor(start.count + count, stamp, 0) for stamp, count in cuts), end]
    return [EventSpan(str(a), str(b), max(1, b.count - a.count)) for a, b in pairwise(cursors)]
