"""The feed: a cursor is the number of an event, so spans are cut without a look at the events."""

from __future__ import annotations

from typing import Any, cast

from millrace.domain import operate
from millrace.domain.errors import CursorExpired
from millrace.domain.ledger import Ledger
from millrace.domain.request import EventPage, EventSpan
from millrace.store.redis.record import event_from
from millrace.store.redis.wire import Wire


async def page(wire: Wire, cursor: str | None, limit: int) -> EventPage:
    """A cursor is given out for what is as durable as the store promises, and not before."""
    if cursor == operate.END:
        _, newest, _ = await wire.ask("feed", [None, 0], durable=True)
        return EventPage((), str(newest))
    after = None if cursor is None else operate.cursor_number(cursor)
    trimmed, newest, events = await wire.ask("feed", [after, limit], durable=True)
    start = trimmed if after is None else after
    if start > newest:  # a server that lost its last moments in a crash counts them anew: nothing may be passed over
        operate.event_spans(cast(Ledger, _Bounds(trimmed, newest)), cursor, 1, None, None)
    if start < trimmed:
        raise CursorExpired(str(start), trimmed - start, str(trimmed))
    return EventPage(tuple(map(event_from, events)), str(start + len(events)))


async def spans(wire: Wire, after: str | None, n: int, limit: int | None, until: str | None) -> list[EventSpan]:
    trimmed, newest, _ = await wire.ask("feed", [None, 0], durable=True)
    return operate.event_spans(cast(Ledger, _Bounds(trimmed, newest)), after, n, limit, until)


class _Bounds:
    """All of a ledger that cutting spans asks for."""

    def __init__(self, trimmed: int, newest: int) -> None:
        self._bounds = trimmed, newest
        self.tables: Any = self

    def feed_bounds(self) -> tuple[int, int]:
        return self._bounds
