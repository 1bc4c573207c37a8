"""Stretches of the feed, to be read by several at once.

A listing tells stamps and sizes of the feed's parts, and nothing of how many events are in each. So shares are made
even by size, and numbers of events are estimated, except where a limit makes it worth reading the parts to count them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import msgspec

from millrace.domain.errors import CursorExpired
from millrace.domain.event import Event
from millrace.domain.request import EventSpan
from millrace.store.object.blobs import MAX_PAGE
from millrace.store.object.feed import PARTS_AT_ONCE, Cursor, Feed, stamp_of
from millrace.store.object.keys import Layout
from millrace.store.object.values import FeedPart, Filed, decode


class _Part(msgspec.Struct, frozen=True, gc=False):
    stamp: int
    key: str
    size: int


class Spans:
    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._blobs = feed.blobs

    async def spans(self, after: str | None, n: int, limit: int | None, until: str | None, now: int) -> list[EventSpan]:
        start = await self._start(after)
        end = None if until is None else Cursor.parse(until)
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
            end = Cursor(count, last[-1].stamp, last[-1].place + 1)
        cuts = _even_cuts(parts, n)
        return _as_spans(start, end, [(parts[cut].stamp, _size(parts[:cut]) // bytes_each) for cut in cuts])

    async def _start(self, after: str | None) -> Cursor:
        oldest = await self._feed.oldest()
        start = oldest if after is None else Cursor.parse(after)
        _check(start, oldest)
        return start

    async def _counted(self, start: Cursor, end: Cursor | None, n: int, limit: int, now: int) -> list[EventSpan]:
        """Spans of the first events, up to a limit, after reading them."""
        places: list[tuple[int, int]] = []
        async for page in self._parts(start, end, now):
            async for filed in self._filed(page, start, end):
                places += [(one.stamp, one.place) for one in filed]
                if len(places) >= limit:
                    break
            if len(places) >= limit:
                break
        places = places[:limit]
        if not places:
            return [EventSpan(str(start), str(start), 0)]
        size = -(-len(places) // max(1, n))
        cursors = [start] + [
            Cursor(start.count + number, places[number - 1][0], places[number - 1][1] + 1)
            for number in [*range(size, len(places), size), len(places)]
        ]
        return [EventSpan(str(a), str(b), b.count - a.count) for a, b in pairwise(cursors)]

    async def scan(self, span: EventSpan, batch: int) -> AsyncIterator[list[Event]]:
        start, end = await self._start(span.after), Cursor.parse(span.until)
        ready: list[Event] = []
        async for page in self._parts(start, end, None):
            async for filed in self._filed(page, start, end):
                _check(start, await self._feed.oldest())  # after reading: what was missing then is told of by now
                if filed:
                    start = Cursor(start.count + len(filed), filed[-1].stamp, filed[-1].place + 1)
                ready += [one.event for one in filed]
                while len(ready) >= batch:
                    yield ready[:batch]
                    ready = ready[batch:]
        _check(start, await self._feed.oldest())
        if ready:
            yield ready

    async def _parts(self, start: Cursor, end: Cursor | None, now: int | None) -> AsyncIterator[list[_Part]]:
        """Between the cursors, in order; with `now`, only those that are old enough for nothing to come before them."""
        after = None if start.stamp == 0 else Layout.feed(start.stamp - 1)
        while True:
            listed = await self._blobs.list("feed/", after, MAX_PAGE)
            parts = [_Part(stamp_of(entry.key), entry.key, entry.size) for entry in listed.entries]
            wanted = [
                part
                for part in parts
                if (now is None or self._feed.is_old_enough(part.key, now))
                and (end is None or (part.stamp, 0) < (end.stamp, end.after))
            ]
            yield wanted
            if not listed.truncated or len(wanted) < len(parts) or not parts:
                return
            after = parts[-1].key

    async def _filed(self, parts: Sequence[_Part], start: Cursor, end: Cursor | None) -> AsyncIterator[list[Filed]]:
        for first in range(0, len(parts), PARTS_AT_ONCE):
            blobs = await self._blobs.get_many([part.key for part in parts[first : first + PARTS_AT_ONCE]])
            yield [
                filed
                for blob in blobs
                for filed in (() if blob is None else decode(blob.body, FeedPart).events)
                if (filed.stamp, filed.place) >= (start.stamp, start.after)
                and (end is None or (filed.stamp, filed.place) < (end.stamp, end.after))
            ]

    async def _ends(self, parts: Sequence[_Part]) -> tuple[tuple[Filed, ...], tuple[Filed, ...]]:
        """What the first and the last part hold."""
        if not parts:
            return (), ()
        blobs = await self._blobs.get_many([parts[0].key, parts[-1].key] if len(parts) > 1 else [parts[0].key])
        found = [() if blob is None else decode(blob.body, FeedPart).events for blob in blobs]
        return found[0], found[-1]


def _check(cursor: Cursor, oldest: Cursor) -> None:
    if (cursor.stamp, cursor.after) < (oldest.stamp, oldest.after):
        raise CursorExpired(str(cursor), max(1, oldest.count - cursor.count), str(oldest))


def _is_read(first: Sequence[Filed], start: Cursor) -> bool:
    """Was everything in the first part read before? A cursor names the last event, so its part is listed again."""
    return bool(first) and (first[-1].stamp, first[-1].place) < (start.stamp, start.after)


def _size(parts: Sequence[_Part]) -> int:
    return sum(part.size for part in parts)


def _even_cuts(parts: Sequence[_Part], n: int) -> list[int]:
    """Where shares of about the same size begin, but for the first."""
    share = _size(parts) / max(1, n)
    cuts: list[int] = []
    filled = 0
    for place, part in enumerate(parts):
        if place and filled >= share * (len(cuts) + 1):
            cuts.append(place)
        filled += part.size
    return cuts[: max(0, n - 1)]


def _as_spans(start: Cursor, end: Cursor, cuts: Sequence[tuple[int, int]]) -> list[EventSpan]:
    """Cut before each of these stamps, so many events after the start."""
    cursors = [start, *(Cursor(start.count + count, stamp, 0) for stamp, count in cuts), end]
    return [EventSpan(str(a), str(b), max(1, b.count - a.count)) for a, b in pairwise(cursors)]
