"""Events over HTTP, page by page, or live as server-sent events. A client can resume a stream after a disconnect.

The SSE `id` of a message is a cursor. A cursor marks the end of a page, so only the last event of each page has one. A
client that reconnects may receive some events again, but misses none. It can recognize repeated events by (job,
generation, n), where n is the number of the event in the history of this generation of the job.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from millrace.app.telemetry.redaction import off_loop
from millrace.domain.errors import CursorExpired, CursorUnknown, InvalidInput, StoreError
from millrace.domain.event import Event
from millrace.domain.request import EventPage
from millrace.store.protocol import Store
from millrace.views.filters import not_a_cursor
from millrace.views.timeline import EventView
from millrace.web import requests, responses
from millrace.web.event_redactor import EventRedactor
from millrace.web.operation import Link, Request, Routes
from millrace.web.state import ServerState

PAGE = 100  # a client that disconnects inside a page gets it again, so it is small
FIRST_POLL, SLOWEST_POLL = 0.05, 1.0
KEEP_ALIVE = 15.0  # seconds of silence after which a comment keeps proxies from hanging up
RECONNECT_AFTER = 2_000  # milliseconds after which a disconnected client reconnects
LIFE = 60.0  # seconds after which a stream ends and the client reconnects: a shutdown waits no longer than that
RECONNECT_NOW = 50  # milliseconds
routes = Routes()


@routes.get(
    "/api/events",
    "viewer",
    "Events after a cursor; with filters a page may be short, and its cursor is behind all events that were read",
    cli="tail --cursor --limit --queue --task --job --kind --no-follow",
    query=requests.EventsQuery,
    problems=(410,),
    links=(Link("next", "listEvents", {"cursor": "$response.body#/cursor"}),),
)
async def list_events(request: Request) -> responses.EventList:
    query: requests.EventsQuery = request.query
    store = await request.server.app.connected()
    page = await _page(store, query.cursor, query.limit)
    events = [event for event in page.events if _fits(event, query)]
    return responses.EventList(await _views(request.server, events), page.cursor)


@routes.get(
    "/api/events/stream",
    "viewer",
    "Live events, as server-sent events; Last-Event-ID resumes after a disconnect",
    cli="tail --cursor --queue --task --job --kind",
    query=requests.StreamQuery,
    media="text/event-stream",
    responses={200: responses.StreamMessage},
)
async def stream_events(request: Request) -> StreamingResponse:
    cursor = request.headers.get("last-event-id") or request.query.cursor or "end"
    store = await request.server.app.connected()
    try:
        start = cursor if cursor != "end" else (await store.events("end", 1)).cursor
        await _page(store, start, 1)  # an invalid cursor is refused before the stream begins
    except (CursorExpired, CursorUnknown):
        pass  # the stream itself reports how much is lost
    slot = ExitStack()
    slot.enter_context(request.server.streams)
    return EventStreamResponse(slot, _live(request.server, store, start, request.query))


class EventStreamResponse(StreamingResponse):
    """A stream of events. It counts against the limit of open streams until the response has ended."""

    def __init__(self, slot: ExitStack, body: AsyncIterator[bytes]) -> None:
        super().__init__(body, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            if scope["method"] == "HEAD":  # a stream would never end
                await Response(headers=self.headers)(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)


async def _live(server: ServerState, store: Store, cursor: str, query: requests.StreamQuery) -> AsyncIterator[bytes]:
    yield f"retry: {RECONNECT_AFTER}\n".encode() + _message("begin", {"cursor": cursor}, cursor)
    poll, silent = FIRST_POLL, 0.0
    until = time.monotonic() + LIFE * random.uniform(0.9, 1.1)  # so that clients do not all reconnect at once
    while not server.shutdown.is_set():
        if time.monotonic() > until:
            yield f"retry: {RECONNECT_NOW}\n\n".encode()
            return
        try:
            page = await server.event_cache.events(store, cursor, PAGE, fresh=poll / 2)
            shown = await _views(server, [event for event in page.events if _fits(event, query)])
        except CursorExpired as gone:
            cursor = gone.oldest
            yield _message("lost", {"lost": gone.lost, "cursor": cursor}, cursor)
            await server.shutdown.within(FIRST_POLL)
            continue
        except CursorUnknown:
            cursor = (await store.events("end", 1)).cursor
            yield _message("lost", {"lost": None, "cursor": cursor}, cursor)
            await server.shutdown.within(FIRST_POLL)
            continue
        except StoreError as error:
            yield _message("unavailable", {"detail": str(error)}, None)
            page, shown = EventPage((), cursor), list[EventView]()
            poll = SLOWEST_POLL
        cursor = page.cursor
        if shown:
            yield b"".join(_messages(shown, cursor))
        if page.events:
            poll, silent = FIRST_POLL, 0.0 if shown else silent
            continue
        pause = poll * random.uniform(0.8, 1.2)
        poll, silent = min(poll * 1.5, SLOWEST_POLL), silent + pause
        if silent > KEEP_ALIVE:
            silent = 0.0
            yield b": still here\nid: " + _line(cursor) + b"\n\n"
        await server.shutdown.within(pause)


def _messages(shown: list[EventView], cursor: str) -> Iterator[bytes]:
    for event in shown[:-1]:
        yield _message("event", event, None)
    yield _message("event", responses.LastEvent(**msgspec.structs.asdict(shown[-1]), cursor=cursor), cursor)


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


def _fits(event: Event, query: requests.EventFilter) -> bool:
    return (
        (query.queue is None or event.queue == query.queue)
        and (query.task is None or event.task == query.task)
        and (query.job is None or event.job == query.job)
        and (not query.kind or event.kind in query.kind)
    )


async def _views(server: ServerState, events: list[Event]) -> list[EventView]:
    """Return the events as the API shows them. If an event has an error, its job is read, because the error may quote
    hidden values of the payload.
    """
    failed = list({event.job for event in events if event.error is not None})
    redactor = EventRedactor(server, await (await server.app.connected()).get(failed) if failed else ())
    return await off_loop(redactor.size(events), lambda: [redactor.view(event) for event in events])
