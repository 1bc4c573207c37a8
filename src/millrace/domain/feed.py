"""The feed of events and its cursors, for stores whose events are numbered 1, 2, 3 …

A store that was restored from a backup, or that lost its latest events in a crash, assigns the same numbers again. A
cursor that was only a number would silently skip the new events that reuse these numbers. So a cursor also carries a
mark, a hash of the last event before it. Every read hashes the event that has this number now and raises CursorUnknown
if the hash differs from the mark. Reading the next page needs no extra query; see docs/decisions/0017-cursors.md.

A trimmed event is one that retention has deleted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha1
from itertools import pairwise
from typing import Protocol

import msgspec

from millrace.domain.errors import CursorExpired, CursorUnknown, InvalidInput
from millrace.domain.event import Event
from millrace.domain.request import EventPage, EventSpan

END = "end"  # the cursor after the newest event
_CURSOR = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?-(x[0-9a-f]{8})")


class FeedTables(Protocol):
    """The methods that a store provides so that its feed can be read."""

    def feed(self, after: int, limit: int) -> Sequence[tuple[int, Event]]: ...
    def feed_bounds(self) -> tuple[int, int]:
        """Return (number of the last trimmed event, number of the newest event). A number is 0 if there is no event."""
        ...

    def trimmed_mark(self) -> str:
        """Return the mark of the last trimmed event, or "" if no event was trimmed."""
        ...


def mark_of(event: Event) -> str:
    """Return the mark of an event: a hash that distinguishes it from another event that got the same number.

    redis/scripts/lib/events.lua computes the same hash.
    """
    facts = f"{event.job}\n{event.generation}\n{event.n}\n{event.kind}\n{event.at}\n{event.lease or ''}"
    return "x" + sha1(facts.encode(errors="surrogatepass"), usedforsecurity=False).hexdigest()[:8]


class Cursor(msgspec.Struct, frozen=True):
    """The position in the feed after event number `at`.

    `witness` is the number of the event whose mark the cursor carries: `at` itself, or a later event. `mark` is that
    mark.
    """

    at: int
    witness: int
    mark: str

    def __str__(self) -> str:
        if self.witness == 0:
            return "0"
        between = "" if self.witness == self.at else f"-{self.witness}"
        return f"{self.at}{between}-{self.mark}"

    def back_to(self, at: int) -> Cursor:
        """Return a cursor for the earlier position `at`, with the same witness and mark as this cursor."""
        return Cursor(at, self.witness, self.mark)


START = Cursor(0, 0, "")


def parse(text: str) -> Cursor:
    if text == "0":
        return START
    match = _CURSOR.fullmatch(text)
    if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
        raise InvalidInput(f"{text[:60]!r} is not a cursor of this store. Pass one that the store returned, or None.")
    return Cursor(int(match[1]), int(match[2] or match[1]), match[3])


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def events(tables: FeedTables, text: str | None, limit: int) -> EventPage:
    """Return a page of events after the cursor `text`.

    If `text` is None, the page starts at the oldest event. If `text` is "end", the page has no events, only the cursor
    after the newest event.
    """
    if text == END:
        return EventPage((), str(cursor_at(tables, tables.feed_bounds()[1])))
    start = bounded(tables, text)
    found = page_after(tables, start, limit)
    if not found:
        return EventPage((), str(start))
    number, last = found[-1]
    return EventPage(tuple(event for _, event in found), str(Cursor(number, number, mark_of(last))))


def page_after(tables: FeedTables, start: Cursor, limit: int) -> Sequence[tuple[int, Event]]:
    """Return up to `limit` events after `start`, each with its number. Raises CursorUnknown if the mark differs.

    The event at `start` is read in the same query, to compare its mark.
    """
    if start.witness != start.at or start.at == tables.feed_bounds()[0]:
        check(tables, start)
        return tables.feed(start.at, limit)
    found = tables.feed(start.at - 1, limit + 1)
    if not found or mark_of(found[0][1]) != start.mark:
        raise _unknown(tables, start)
    return found[1:]


def events_before(tables: FeedTables, text: str | None, limit: int) -> tuple[list[tuple[str, Event]], str | None]:
    """Return up to `limit` events before the cursor `text`, newest first, and the cursor to continue from.

    If `text` is None, start at the newest event. The cursor to continue from is None if no older events are left. Each
    event is paired with the cursor before it. All returned cursors share one mark, so that the marks of other events
    need not be computed.
    """
    trimmed, newest = tables.feed_bounds()
    end = cursor_at(tables, newest) if text is None else check(tables, parse(text))
    start = max(trimmed, end.at - limit)
    found = tables.feed(start, end.at - start) if start < end.at else ()
    events = [(str(end.back_to(number - 1)), event) for number, event in reversed(found)]
    return events, str(end.back_to(start)) if trimmed < start < end.at else None


def event_spans(
    tables: FeedTables, after: str | int | None, n: int, limit: int | None, until: str | None
) -> list[EventSpan]:
    """Split the events between `after` and `until` into about `n` spans of equal size, and return the spans.

    `after` is a cursor or an instant in ms; None starts at the oldest event. `until` is a cursor; None ends at the
    newest event. All cursors between spans share the mark of the last event, so that no other event has to be read.
    """
    start = cursor_before(tables, after) if isinstance(after, int) else check(tables, bounded(tables, after))
    bound = None if until is None else check(tables, parse(until))
    last = tables.feed_bounds()[1] if bound is None else bound.at
    last = max(start.at, last if limit is None else min(last, start.at + limit))
    if last == start.at:
        return [EventSpan(str(start), str(start), 0)]
    end = bound if bound is not None and bound.at == last else cursor_at(tables, last)
    size = max(1, -(-(last - start.at) // max(1, n)))
    cuts = [start, *(end.back_to(cut) for cut in range(start.at + size, last, size)), end]
    return [EventSpan(str(first), str(second), second.at - first.at) for first, second in pairwise(cuts)]


def span_bounds(span: EventSpan) -> tuple[Cursor, Cursor]:
    return parse(span.after), parse(span.until)


def span_events(tables: FeedTables, after: int, until: Cursor, limit: int) -> list[Event]:
    """Return up to `limit` events of a span, from event number `after` + 1. The span ends at `until`."""
    check_not_trimmed(tables, after)
    found = tables.feed(after, min(limit, until.at - after))
    check_span(tables, after + len(found), until, found[-1][1] if found else None, bool(found))
    return [event for _, event in found]


def check_span(tables: FeedTables, read_to: int, until: Cursor, last: Event | None, more: bool) -> None:
    """Raise CursorUnknown if the last event of a span has been replaced since the span was planned.

    Event number `read_to` is the last one that was read. If the span goes on after it and `more` is True, the check is
    left to a later call.
    """
    if read_to < until.at and more:
        return
    if last is not None and read_to == until.witness:
        if mark_of(last) != until.mark:
            raise _unknown(tables, until)
        return
    check(tables, until)
    if read_to < until.at:
        raise _unknown(tables, until)


def cursor_before(tables: FeedTables, at: int) -> Cursor:
    """Return the cursor before the first event whose time is `at` or later. This is a binary search."""
    low, high = tables.feed_bounds()
    while low < high:
        middle = (low + high) // 2
        if tables.feed(middle, 1)[0][1].at < at:
            low = middle + 1
        else:
            high = middle
    return cursor_at(tables, low)


# ── checking ──────────────────────────────────────────────────────────────────────────────────────


def bounded(tables: FeedTables, text: str | None) -> Cursor:
    """Parse the cursor `text` and return it. None means the position before the oldest event that is kept.

    Raises CursorExpired if retention has deleted events after the cursor, and CursorUnknown if the cursor is beyond
    the newest event.
    """
    trimmed, newest = tables.feed_bounds()
    if text is None:
        return _oldest(tables)
    cursor = parse(text)
    if cursor.witness > newest:
        raise _unknown(tables, cursor)
    if cursor.at < trimmed:
        raise expired(tables, cursor.at)
    return cursor


def check(tables: FeedTables, cursor: Cursor) -> Cursor:
    """Return the cursor unchanged. Raises CursorUnknown if its event `witness` does not exist or has a different mark.

    If the mark of a trimmed event is no longer known, the cursor is accepted.
    """
    mark = _mark(tables, cursor.witness)
    if mark is None or mark not in ("", cursor.mark):
        raise _unknown(tables, cursor)
    return cursor


def check_not_trimmed(tables: FeedTables, after: int) -> None:
    if after < tables.feed_bounds()[0]:
        raise expired(tables, after)


def expired(tables: FeedTables, after: int) -> CursorExpired:
    oldest = _oldest(tables)
    return CursorExpired(str(after), oldest.at - after, str(oldest))


def cursor_at(tables: FeedTables, number: int) -> Cursor:
    return Cursor(number, number, _mark(tables, number) or "") if number else START


def _oldest(tables: FeedTables) -> Cursor:
    trimmed, _ = tables.feed_bounds()
    return Cursor(trimmed, trimmed, tables.trimmed_mark()) if trimmed else START


def _mark(tables: FeedTables, number: int) -> str | None:
    """Return the mark of event `number`; None if there is no such event; "" if the mark of a trimmed event is lost."""
    trimmed, newest = tables.feed_bounds()
    if number > newest:
        return None
    if number <= trimmed:
        return tables.trimmed_mark() if number == trimmed else ""
    return mark_of(tables.feed(number - 1, 1)[0][1])


def _unknown(tables: FeedTables, cursor: Cursor) -> CursorUnknown:
    return CursorUnknown(str(cursor), tables.feed_bounds()[1])
