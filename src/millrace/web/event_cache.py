"""A cache of pages of events: streams that wait at the same cursor share one read of the store.

New events are added after the end of the feed, so the page after a cursor can only become longer. A page that was read
a moment ago can therefore serve every stream at the same cursor, and a hundred open dashboards cost a store as much as
one.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from millrace.domain.request import EventPage
from millrace.store.protocol import Store

KEPT = 64


class EventCache:
    def __init__(self) -> None:
        self._latest: OrderedDict[str, tuple[float, asyncio.Task[EventPage]]] = OrderedDict()

    async def events(self, store: Store, cursor: str, limit: int, fresh: float) -> EventPage:
        """Return the page of events after a cursor. The cached page is used if its read was started at most `fresh`
        seconds ago.
        """
        known = self._latest.get(cursor)
        if known is None or time.monotonic() - known[0] > fresh or _failed(known[1]):
            reading = asyncio.get_running_loop().create_task(_read(store, cursor, limit))
            reading.add_done_callback(_retrieve)
            known = self._latest[cursor] = (time.monotonic(), reading)
            while len(self._latest) > KEPT:
                self._latest.popitem(last=False)
        return await asyncio.shield(known[1])  # a stream that ends must not cancel the read of the others


async def _read(store: Store, cursor: str, limit: int) -> EventPage:
    return await store.events(cursor, limit)


def _failed(task: asyncio.Task[EventPage]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _retrieve(task: asyncio.Task[EventPage]) -> None:
    """Retrieve the error of a finished read. Otherwise asyncio logs a warning if no stream waits for the read any
    more.
    """
    if not task.cancelled():
        task.exception()
