"""Glances at the feed: streams that wait at the same place ask the store once between them.

A page after a cursor stays right: what came later is behind its own cursor. So an answer of a moment ago serves whoever
asks for the same, and a hundred open dashboards cost a store as much as one.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from millrace.domain.request import EventPage
from millrace.store.protocol import Store

KEPT = 64


class Glances:
    def __init__(self) -> None:
        self._latest: OrderedDict[str, tuple[float, asyncio.Task[EventPage]]] = OrderedDict()

    async def events(self, store: Store, cursor: str, limit: int, fresh: float) -> EventPage:
        """The page after a cursor, asked for no longer than `fresh` seconds ago."""
        known = self._latest.get(cursor)
        if known is None or time.monotonic() - known[0] > fresh or _failed(known[1]):
            asking = asyncio.get_running_loop().create_task(_asked(store, cursor, limit))
            asking.add_done_callback(_heard)
            known = self._latest[cursor] = (time.monotonic(), asking)
            while len(self._latest) > KEPT:
                self._latest.popitem(last=False)
        return await asyncio.shield(known[1])  # one listener that leaves must not take the answer from the others


async def _asked(store: Store, cursor: str, limit: int) -> EventPage:
    return await store.events(cursor, limit)


def _failed(task: asyncio.Task[EventPage]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _heard(task: asyncio.Task[EventPage]) -> None:
    """Whoever asked may be gone; then nobody needs to hear of an error."""
    if not task.cancelled():
        task.exception()
