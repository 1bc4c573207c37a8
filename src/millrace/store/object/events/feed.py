"""The feed: every operation writes one object with its events, named by its stamp. Readers list and read these objects.

A stamp is drawn before the operation writes, so an object may appear after objects with later stamps. Readers therefore
stay `delay` behind the clock: by then, all objects with earlier stamps have appeared. A cursor contains the stamp of
the last event read, its position in the operation, and the number of events before it.
"""

from __future__ import annotations

import re

import msgspec

from millrace.domain.errors import CursorExpired, CursorUnknown, InvalidInput
from millrace.domain.event import Event
from millrace.domain.feed import END
from millrace.domain.job import MINUTE
from millrace.domain.request import EventPage
from millrace.store.object.blobs import MAX_PAGE
from millrace.store.object.engine.numbers import COUNT
from millrace.store.object.engine.objects import Objects
from millrace.store.object.engine.values import FeedEvent, StoreValue, events_in, value_of
from millrace.store.object.keys import STORE, Layout, stamp_of

_CURSOR = re.compile(r"(\d{1,18})-(\d{1,19})-(\d{1,9})")
PARTS_AT_ONCE = 64
BACKWARDS = 5_000  # milliseconds of the first range when reading backwards
AHEAD = 365 * 24 * 60 * MINUTE  # stamps may be ahead of a clock that was set back


class ObjectCursor(msgspec.Struct, frozen=True):
    """A position in the feed: after the first `after` events of the operation with this stamp.

    `count` is the number of events before this position.
    """

    count: int
    stamp: int
    after: int

    @property
    def position(self) -> tuple[int, int]:
        return self.stamp, self.after

    def __str__(self) -> str:
        return f"{self.count}-{self.stamp}-{self.after}"

    @classmethod
    def parse(cls, text: str) -> ObjectCursor:
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise InvalidInput(
                f"{text[:40]!r} is not a cursor of this store. Pass one that the store returned, or None."
            )
        return cls(*map(int, match.groups()))


class Feed:
    """Reads the feed. Readers stay `delay` milliseconds behind the clock."""

    def __init__(self, objects: Objects, delay: int) -> None:
        self._objects = objects
        self.blobs = objects.blobs
        self._delay = delay

    async def oldest(self) -> ObjectCursor:
        """Return the position before the oldest kept event."""
        [seen] = await self._objects.read([STORE])
        cut = (value_of(seen, StoreValue) or StoreValue()).trimmed
        return ObjectCursor(cut.count, cut.stamp, cut.place + 1)

    async def events(self, text: str | None, limit: int, now: int) -> EventPage:
        start = await self.oldest()
        if text == END:
            return EventPage((), str(await self._end(start, now)))
        cursor = start if text is None else ObjectCursor.parse(text)
        if cursor.position < start.position:
            raise CursorExpired(str(cursor), max(1, start.count - cursor.count), str(start))
        await self.check_not_ahead(cursor, start, now)
        return await self._page(cursor, limit, now)

    async def check_not_ahead(self, cursor: ObjectCursor, oldest: ObjectCursor, now: int) -> None:
        """Raise CursorUnknown if the cursor is ahead of the feed. A cursor ahead of the clock is valid if the feed has
        events there, because the clock may have been set back.
        """
        if cursor.stamp >> COUNT <= now or cursor.position == oldest.position:
            return
        if not (await self.blobs.list("feed/", Layout.feed(cursor.stamp - 1), 1)).entries:
            raise CursorUnknown(str(cursor))

    async def before(self, text: str | None, limit: int, now: int) -> tuple[list[tuple[str, Event]], str | None]:
        """Return the events before a cursor, newest first, and the cursor to continue from.

        The cursor to continue from is None at the oldest event kept. Earlier and earlier ranges of the feed are listed
        until enough objects are found.
        """
        upper = ObjectCursor(0, (now + AHEAD) << COUNT, 0) if text is None else ObjectCursor.parse(text)
        oldest = (await self.oldest()).stamp >> COUNT
        back = BACKWARDS
        while True:
            since = min(upper.stamp >> COUNT, now) - back
            keys = await self._keys_between(since, upper)
            if len(keys) >= PARTS_AT_ONCE or since <= oldest:
                break
            back *= 4
        found: list[FeedEvent] = []
        while keys and len(found) < limit:
            some, keys = keys[-PARTS_AT_ONCE:], keys[:-PARTS_AT_ONCE]
            for blob in reversed(await self.blobs.get_many(some)):
                events = events_in(blob)
                found += [one for one in reversed(events) if one.position < upper.position]
        newest_first = [(str(ObjectCursor(0, one.stamp, one.place)), one.event) for one in found[:limit]]
        if len(found) >= limit:
            return newest_first, newest_first[-1][0]
        return newest_first, None if since <= oldest else str(ObjectCursor(0, since << COUNT, 0))

    async def _keys_between(self, since: int, upper: ObjectCursor) -> list[str]:
        after = Layout.feed(since << COUNT) if since > 0 else None
        last = Layout.feed(upper.stamp)
        keys: list[str] = []
        async for page in self.blobs.pages("feed/", after):
            keys += [entry.key for entry in page.entries if entry.key <= last]
            if page.entries and page.entries[-1].key > last:
                break
        return keys

    async def _page(self, cursor: ObjectCursor, limit: int, now: int) -> EventPage:
        found: list[Event] = []
        count, stamp, place = cursor.count, cursor.stamp, cursor.after
        after = None if stamp == 0 else Layout.feed(stamp - 1)
        while len(found) < limit:
            page = await self.blobs.list("feed/", after, min(MAX_PAGE, max(1, limit - len(found))))
            keys = [entry.key for entry in page.entries if self.is_old_enough(entry.key, now)]
            for start in range(0, len(keys), PARTS_AT_ONCE):
                for blob in await self.blobs.get_many(keys[start : start + PARTS_AT_ONCE]):
                    for one in events_in(blob):
                        if one.position < (stamp, place) or len(found) >= limit:
                            continue
                        found.append(one.event)
                        count, stamp, place = count + 1, one.stamp, one.place + 1
                if len(found) >= limit:
                    break
            if not page.truncated or len(keys) < len(page.entries):
                break
            after = keys[-1]
        return EventPage(tuple(found), str(ObjectCursor(count, stamp, place)))

    def is_old_enough(self, key: str, now: int) -> bool:
        return not self._delay or (stamp_of(key) >> COUNT) <= now - self._delay

    async def _end(self, start: ObjectCursor, now: int) -> ObjectCursor:
        """Return the position up to which readers may read: events that are being written now come after it."""
        if not self._delay:
            return await self._newest(start, now)
        end = ObjectCursor(0, max(0, now - self._delay) << COUNT, 0)
        if end.position <= start.position:
            return start
        return msgspec.structs.replace(end, count=await self._count(start, end))

    async def _newest(self, start: ObjectCursor, now: int) -> ObjectCursor:
        """Return the position after the newest event. Earlier and earlier times are listed until there are keys."""
        last: str | None = None
        back = 2 * MINUTE
        while last is None:
            since = now - back
            after = Layout.feed(since << COUNT) if since > 0 else None
            async for page in self.blobs.pages("feed/", after):
                last = page.entries[-1].key if page.entries else last
            if since <= 0:
                break
            back *= 30
        blob = None if last is None else await self.blobs.get(last)
        events = events_in(blob)
        if not events:
            return start
        end = ObjectCursor(0, events[-1].stamp, events[-1].place + 1)
        return msgspec.structs.replace(end, count=await self._count(start, end))

    async def _count(self, start: ObjectCursor, end: ObjectCursor) -> int:
        """Estimate the number of events up to `end`, with few requests.

        The estimate is used only to show how many events a late reader has missed.
        """
        page = await self.blobs.list("feed/")
        if page.truncated:
            return start.count
        blobs = await self.blobs.get_many([entry.key for entry in page.entries])
        first, last = start.position, end.position
        return start.count + sum(first <= one.position < last for blob in blobs for one in events_in(blob))
