"""The feed: every operation leaves one object with its events, named by its stamp; reading is listing and getting.

A stamp is drawn before the operation writes, and others may have drawn earlier ones that arrive later. So a reader
stays `delay` behind the clock: by then, whatever was stamped before has arrived. A cursor names the last event that
was read, by its stamp and its place in the operation, and how many came before it.
"""

from __future__ import annotations

import re

import msgspec

from millrace.domain.errors import CursorExpired, InvalidInput
from millrace.domain.event import Event
from millrace.domain.job import MINUTE
from millrace.domain.operate import END
from millrace.domain.request import EventPage
from millrace.domain.settings import StoreSettings
from millrace.store.object.blobs import MAX_PAGE, Blobs
from millrace.store.object.keys import STORE, Layout
from millrace.store.object.numbers import COUNT
from millrace.store.object.objects import Objects
from millrace.store.object.values import FeedPart, StoreValue, Trimmed, decode

_CURSOR = re.compile(r"(\d{1,18})-(\d{1,19})-(\d{1,9})")
PARTS_AT_ONCE = 64


class Cursor(msgspec.Struct, frozen=True):
    """`count` events came before; `after` is the number of events of that stamp that were read."""

    count: int
    stamp: int
    after: int

    def __str__(self) -> str:
        return f"{self.count}-{self.stamp}-{self.after}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise InvalidInput(f"{text[:40]!r} is not a cursor of this store; use one that it gave out, or None")
        return cls(*map(int, match.groups()))

    @classmethod
    def at(cls, cut: Trimmed) -> Cursor:
        return cls(cut.count, cut.stamp, cut.place + 1)


class Feed:
    def __init__(self, objects: Objects, delay: int) -> None:
        self._objects = objects
        self._delay = delay

    @property
    def blobs(self) -> Blobs:
        return self._objects.blobs

    async def oldest(self) -> Cursor:
        """Before the oldest event that is kept."""
        [seen] = await self._objects.read([STORE])
        kept = StoreValue(StoreSettings()) if seen.value is None else decode(seen.value, StoreValue)
        return Cursor.at(kept.trimmed)

    async def events(self, text: str | None, limit: int, now: int) -> EventPage:
        start = await self.oldest()
        if text == END:
            return EventPage((), str(await self._end(start, now)))
        cursor = start if text is None else Cursor.parse(text)
        if (cursor.stamp, cursor.after) < (start.stamp, start.after):
            raise CursorExpired(str(cursor), max(1, start.count - cursor.count), str(start))
        return await self._page(cursor, limit, now)

    @staticmethod
    def cursor_at(at: int) -> str:
        """Before whatever happened since this instant. How many events came before it is not known."""
        return str(Cursor(0, max(0, at) << COUNT, 0))

    async def cursor_before(self, at: int) -> str:
        oldest = await self.oldest()
        stamp = max(0, at) << COUNT
        return str(oldest if stamp <= oldest.stamp else Cursor(oldest.count, stamp, 0))

    async def _page(self, cursor: Cursor, limit: int, now: int) -> EventPage:
        found: list[Event] = []
        count, stamp, place = cursor.count, cursor.stamp, cursor.after
        after = None if stamp == 0 else Layout.feed(stamp - 1)
        while len(found) < limit:
            page = await self._objects.blobs.list("feed/", after, min(MAX_PAGE, max(1, limit - len(found))))
            keys = [entry.key for entry in page.entries if self.is_old_enough(entry.key, now)]
            for start in range(0, len(keys), PARTS_AT_ONCE):
                for blob in await self._objects.blobs.get_many(keys[start : start + PARTS_AT_ONCE]):
                    for filed in () if blob is None else decode(blob.body, FeedPart).events:
                        if (filed.stamp, filed.place) < (stamp, place) or len(found) >= limit:
                            continue
                        found.append(filed.event)
                        count, stamp, place = count + 1, filed.stamp, filed.place + 1
                if len(found) >= limit:
                    break
            if not page.truncated or len(keys) < len(page.entries):
                break
            after = keys[-1]
        return EventPage(tuple(found), str(Cursor(count, stamp, place)))

    def is_old_enough(self, key: str, now: int) -> bool:
        return not self._delay or (stamp_of(key) >> COUNT) <= now - self._delay

    async def _end(self, start: Cursor, now: int) -> Cursor:
        """The newest event: the last keys are looked for from ever earlier minutes on."""
        last: str | None = None
        back = 2 * MINUTE
        while last is None:
            since = now - back
            after = Layout.feed(since << COUNT) if since > 0 else None
            while True:
                page = await self._objects.blobs.list("feed/", after)
                last = page.entries[-1].key if page.entries else last
                if not page.truncated or last is None:
                    break
                after = last
            if since <= 0:
                break
            back *= 30
        blob = None if last is None else await self._objects.blobs.get(last)
        events = () if blob is None else decode(blob.body, FeedPart).events
        if not events:
            return start
        return Cursor(await self._count(start), events[-1].stamp, events[-1].place + 1)

    async def _count(self, start: Cursor) -> int:
        """How many events there have been, as far as it takes a few requests to say: it only tells how many a reader
        has missed, should it come back too late."""
        page = await self._objects.blobs.list("feed/")
        if page.truncated:
            return start.count
        blobs = await self._objects.blobs.get_many([entry.key for entry in page.entries])
        parts = [decode(blob.body, FeedPart).events for blob in blobs if blob is not None]
        first = (start.stamp, start.after)
        return start.count + sum((filed.stamp, filed.place) >= first for part in parts for filed in part)


def stamp_of(key: str) -> int:
    return int(key.rsplit("/", 1)[1].split(".", maxsplit=1)[0].split("-", maxsplit=1)[0])
