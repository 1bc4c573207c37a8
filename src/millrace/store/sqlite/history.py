"""The feed of events in a SQLite file.

The events of a commit are written in pages of up to 256 events, because one row per event would cost more than the
transition itself. A job's history needs no index: each event is stored with the cursor of the job's previous event, and
the job's row has the cursor of its newest event.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence

import msgspec

from millrace.domain.event import Event
from millrace.domain.feed import mark_of
from millrace.store.sql.ports import Statements
from millrace.store.sqlite.registry import Registry

PAGE = 256
_PAGES_AT_ONCE = 8


class _Packed(Event, frozen=True, gc=False, array_like=True):
    """An event that is stored as an array of its values, without field names."""


class _Page(msgspec.Struct, array_like=True, gc=False):
    before: list[int]  # for each event: the cursor of the same job's previous event, or 0
    events: list[_Packed]


def unpacked(event: Event) -> Event:
    return Event(*msgspec.structs.astuple(event))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Page).decode


class Events:
    def __init__(self, statements: Statements, registry: Registry) -> None:
        self._db = statements
        self._registry = registry
        self.newest: dict[int, int] = {}  # cursor of the newest event of each loaded job, by seq
        self.forget()

    def forget(self) -> None:
        self._events: list[Event] = []
        self._before: list[int] = []
        self.newest.clear()

    def append(self, event: Event) -> None:
        cursor = self._registry.next_events(1)
        self._events.append(event)
        newest, seq = self.newest, event.seq
        self._before.append(newest.get(seq, 0))
        newest[seq] = cursor

    def append_first(self, events: Sequence[Event]) -> None:
        """Append the first events of new jobs, one event per job."""
        first = self._registry.next_events(len(events))
        self._events += events
        self._before += [0] * len(events)
        self.newest.update(zip([event.seq for event in events], range(first, first + len(events)), strict=True))

    def flush(self) -> None:
        if not self._events:
            return
        packed = list(map(msgspec.structs.astuple, self._events))
        before, last = self._before, self._registry.last_event()
        self._events, self._before = [], []
        while len(packed) > PAGE:
            first = last - len(packed) + 1
            page = _encode((before[:PAGE], packed[:PAGE]))
            self._db.rows("insert_page", first + PAGE - 1, first, 0, 0, None, page)
            packed, before = packed[PAGE:], before[PAGE:]
        page = _encode((before, packed))
        self._db.rows("insert_page", last, last - len(packed) + 1, *self._registry.counters_for_page(), page)

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def feed_bounds(self) -> tuple[int, int]:
        return self._registry.trimmed(), self._registry.last_event()

    def trimmed_mark(self) -> str:
        return str(self._db.value("trimmed_mark"))

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]:
        self.flush()
        found: list[tuple[int, Event]] = []
        while len(found) < limit:
            rows = self._db.rows("pages_after", after, _PAGES_AT_ONCE)
            if not rows:
                break
            for first, blob in rows:
                page = _decode(blob)
                start = max(0, after + 1 - first)
                room = limit - len(found)
                events = page.events[start : start + room]
                found += [(first + start + index, unpacked(event)) for index, event in enumerate(events)]
                after = first + len(page.events) - 1
        return found

    def packed(self, after: int, limit: int) -> list[_Packed]:
        """Like `feed`, but return the events as they are stored, without cursors.

        This is faster, because creating an `Event` object costs more than reading a stored event.
        """
        self.flush()
        found: list[_Packed] = []
        while len(found) < limit:
            pages = max(_PAGES_AT_ONCE, (limit - len(found)) // PAGE)
            rows = self._db.rows("pages_after", after, pages)
            if not rows:
                break
            for first, blob in rows:
                events = _decode(blob).events
                found += events[after + 1 - first :] if first <= after else events
                after = first + len(events) - 1
                if len(found) >= limit:
                    break
        return found[:limit]

    def back_from(self, cursor: int) -> list[Event]:
        """Return the events of one job, oldest first, without those that retention has deleted.

        `cursor` is the cursor of the job's newest event.
        """
        return self.of({0: cursor})[0]

    def of(self, newest: Mapping[int, int]) -> dict[int, list[Event]]:
        """Like `back_from`, for many jobs: `newest` maps their seqs to cursors. Each page is read once."""
        self.flush()
        trimmed = self._registry.trimmed()
        pages: dict[int, _Page] = {}  # by the cursor of the first event
        starts: list[int] = []  # of these pages, ascending
        events: dict[int, list[Event]] = {}
        for seq, last in newest.items():
            found, cursor = [], last
            while cursor > trimmed:
                place = bisect_right(starts, cursor) - 1
                first = starts[place] if place >= 0 else 0
                if place < 0 or cursor >= first + len(pages[first].events):
                    rows = self._db.rows("page_of", cursor)
                    if not rows:
                        break
                    first = rows[0][0]
                    pages[first] = _decode(rows[0][1])
                    insort(starts, first)
                page = pages[first]
                found.append(unpacked(page.events[cursor - first]))
                cursor = page.before[cursor - first]
            events[seq] = found[::-1]
        return events

    # ── retention ─────────────────────────────────────────────────────────────────────────────

    def trim(self, before: int, limit: int) -> int:
        self.flush()
        count, last = self._count_older(before, limit)
        if last is not None:
            self._registry.trim(count)
            self._db.rows("put_trimmed_mark", mark_of(last))
            self._db.rows("drop_pages", self._registry.trimmed())
            self._db.rows("drop_spans")
        return count

    def _count_older(self, before: int, limit: int) -> tuple[int, Event | None]:
        """Count the events at the start of the feed up to the time `before`. Return their number, and the last of these
        events.

        At most `limit` events are counted. If the number is 0, the event is None.
        """
        trimmed = self._registry.trimmed()
        count, last = 0, None
        while rows := self._db.rows("pages_after", trimmed + count, _PAGES_AT_ONCE):
            for first, blob in rows:
                for event in _decode(blob).events[trimmed + count + 1 - first :]:
                    if event.at > before or count >= limit:
                        return count, last
                    count, last = count + 1, event
        return count, last
