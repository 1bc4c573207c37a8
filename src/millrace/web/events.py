"""Events over HTTP: page by page, and live as server-sent events that a client resumes where it was cut off.

Only the last event of a page carries an id, because a cursor stands behind whole pages: whoever resumes may see some
events again, and misses none; (job, generation, n) tells them apart.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from millrace.domain.errors import CursorExpired, InvalidInput, StoreError
from millrace.domain.event import Event
from millrace.domain.request import EventPage
from millrace.runtime.selection import not_a_cursor
from millrace.store.protocol import Store
from millrace.web import given, taken
from millrace.web.house import House
from millrace.web.route import Answer, Asked, Link, Route
from millrace.web.shown import Witnesses, aside

PAGE = 100  # a client that is cut off inside a page sees it again, so it is small
FIRST_POLL, SLOWEST_POLL = 0.05, 1.0
STILL_HERE = 15.0  # seconds of silence after which a comment keeps proxies from hanging up
COME_BACK = 2_000  # milliseconds after which a client that was cut off comes back
LIFE = (
    60.0  # seconds after which a client is sent away to come back at once: no server waits longer for a stream to end
)
AT_ONCE = 50  # milliseconds


async def list_events(asked: Asked) -> Answer:
    query: taken.EventsQuery = asked.query
    store = await asked.house.store()
    page = await _page(store, query.cursor, query.limit)
    events = [event for event in page.events if _fits(event, query)]
    return Answer({"events": await _shown(asked.house, events), "cursor": page.cursor})


async def stream(asked: Asked) -> StreamingResponse:
    cursor = asked.heads.get("last-event-id") or asked.query.cursor or "end"
    store = await asked.house.store()
    try:
        start = cursor if cursor != "end" else (await store.events("end", 1)).cursor
        await _page(store, start, 1)  # a cursor that is none is refused before the stream begins
    except CursorExpired:
        pass  # the stream itself tells how much is gone
    seat = ExitStack()
    seat.enter_context(asked.house.streams)
    return Seated(seat, _live(asked.house, store, start, asked.query))


class Seated(StreamingResponse):
    """A stream and its place among those that may be open; it is given back also when the stream never begins."""

    def __init__(self, seat: ExitStack, body: AsyncIterator[bytes]) -> None:
        super().__init__(body, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self.seat = seat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.seat:
            await super().__call__(scope, receive, send)


async def _live(house: House, store: Store, cursor: str, query: Any) -> AsyncIterator[bytes]:
    yield f"retry: {COME_BACK}\n".encode() + _message("begin", {"cursor": cursor}, cursor)
    poll, silent = FIRST_POLL, 0.0
    until = time.monotonic() + LIFE * random.uniform(0.9, 1.1)  # so that they do not all come back in one moment
    while not house.closing.is_set():
        if time.monotonic() > until:
            yield f"retry: {AT_ONCE}\n\n".encode()
            return
        try:
            page = await house.glances.events(store, cursor, PAGE, fresh=poll / 2)
            shown = await _shown(house, [event for event in page.events if _fits(event, query)])
        except CursorExpired as gone:
            cursor = gone.oldest
            yield _message("lost", {"lost": gone.lost, "cursor": cursor}, cursor)
            await house.closing.within(FIRST_POLL)
            continue
        except StoreError as error:
            yield _message("trouble", {"detail": str(error)}, None)
            page, shown = EventPage((), cursor), list[dict[str, Any]]()
            poll = SLOWEST_POLL
        cursor = page.cursor
        if shown:
            yield b"".join(_messages(shown, cursor))
        if page.events:
            poll, silent = FIRST_POLL, 0.0 if shown else silent
            continue
        pause = poll * random.uniform(0.8, 1.2)
        poll, silent = min(poll * 1.5, SLOWEST_POLL), silent + pause
        if silent > STILL_HERE:
            silent = 0.0
            yield b": still here\nid: " + _line(cursor) + b"\n\n"
        await house.closing.within(pause)


def _messages(shown: list[dict[str, Any]], cursor: str) -> Iterator[bytes]:
    for event in shown[:-1]:
        yield _message("event", event, None)
    yield _message("event", {**shown[-1], "cursor": cursor}, cursor)


def _message(kind: str, data: Any, cursor: str | None) -> bytes:
    head = b"" if cursor is None else b"id: " + _line(cursor) + b"\n"
    return head + b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


def _line(cursor: str) -> bytes:
    return cursor.replace("\n", "").replace("\r", "").replace("\0", "").encode()


async def _page(store: Store, cursor: str | None, limit: int) -> EventPage:
    try:
        return await store.events(cursor, limit)
    except (OverflowError, ValueError) as wrong:
        if isinstance(wrong, InvalidInput):
            raise
        raise not_a_cursor(cursor) from None


def _fits(event: Event, query: taken.EventsQuery | taken.StreamQuery) -> bool:
    return (
        (query.queue is None or event.queue == query.queue)
        and (query.task is None or event.task == query.task)
        and (query.job is None or event.job == query.job)
        and (not query.kind or event.kind in query.kind)
    )


async def _shown(house: House, events: list[Event]) -> list[dict[str, Any]]:
    """Errors may quote what their job's payload hides, so the jobs of those are looked at."""
    failed = list({event.job for event in events if event.error is not None})
    told = Witnesses(house, await house.app.jobs.get(failed) if failed else ())
    return await aside(told.weight(events), lambda: [told.shown(event) for event in events])


ROUTES = (
    Route(
        "listEvents",
        "GET",
        "/api/events",
        "viewer",
        "What happened, from a cursor on; filters make a page short, its cursor goes on behind all that was looked at",
        list_events,
        cli="tail --cursor --limit --queue --task --job --kind --no-follow",
        query=taken.EventsQuery,
        answers={200: given.Events},
        refusals=(410,),
        links=(Link("next", "listEvents", {"cursor": "$response.body#/cursor"}),),
    ),
    Route(
        "streamEvents",
        "GET",
        "/api/events/stream",
        "viewer",
        "What happens, live, as server-sent events; Last-Event-ID resumes where a client was cut off",
        stream,
        cli="tail --cursor --queue --task --job --kind",
        query=taken.StreamQuery,
        media="text/event-stream",
        answers={200: given.Message},
    ),
)
