"""The store's events as a stream: what happened to any job, whoever did it, from a cursor on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

from millrace.domain.event import Event
from millrace.domain.request import EventPage
from millrace.store.protocol import Store

FIRST_POLL = 0.05
SLOWEST_POLL = 1.0


class EventFeed:
    """`async for event in app.events(cursor)`. Keep `cursor` to go on after a restart.

    It moves only when a whole page was handed out, so whoever resumes from it may see some events again but misses
    none; (job, generation, n) tells them apart. CursorExpired says that retention was faster than the reader.
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
        """The same by pages, for readers that store what they read together with the cursor of the page."""
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
