"""A stream of the store's events: the transitions of all jobs, made by any process, after a cursor."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

from millrace.domain.event import Event
from millrace.domain.request import EventPage
from millrace.store.protocol import Store

FIRST_POLL = 0.05
SLOWEST_POLL = 1.0


class EventStream:
    """An async iterator over events, returned by `app.events(cursor)`. Save `cursor` to continue after a restart.

    `cursor` advances after each whole page. A reader that resumes from it misses no event, but may see some events
    again; (job, generation, n) identifies an event. Iterating raises CursorExpired if retention deleted events before
    they were read. It raises CursorUnknown if the store, after a crash or a restored backup, no longer has the events
    that were read.
    """

    def __init__(self, connected: Callable[[], Awaitable[Store]], cursor: str | None, follow: bool, page: int) -> None:
        self._connected = connected
        self._follow = follow
        self._page = page
        self.cursor = cursor

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for page in self.pages():
            for event in page.events:
                yield event
            self.cursor = page.cursor

    async def pages(self) -> AsyncIterator[EventPage]:
        """Iterate over pages of events, for readers that store the events of a page together with the page's cursor."""
        store = await self._connected()
        cursor, poll = self.cursor, FIRST_POLL
        while True:
            page = await store.events(cursor, self._page)
            cursor = page.cursor
            if page.events:
                poll = FIRST_POLL
                yield page
            elif self._follow:
                await asyncio.sleep(poll * random.uniform(0.8, 1.2))
                poll = min(poll * 1.5, SLOWEST_POLL)
            else:
                return
