"""Default implementations of those store methods that can be built from other store methods.

A new store derives from `BaseStore` and implements the methods that are missing here. It overrides a default if it has
a better way: a notification instead of a poll, or an index instead of a scan. `store/protocol.py` documents each
method.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from millrace.domain.errors import CursorExpired, CursorUnknown, InvalidInput
from millrace.domain.event import Event
from millrace.domain.feed import END
from millrace.domain.job import Job, Spec
from millrace.domain.request import EVERYTHING, Enqueued, EventSpan, JobSelection, Partition, Query
from millrace.store.protocol import Store, Watch

POLL = 1.0  # seconds between two polls of a waiting worker or caller
PAGE = 1_000  # events
_ALL = Partition("all")


class BaseStore:
    ids: Literal["sorted", "random"] = "sorted"
    concurrent_writes = False
    small_claims = False
    closes_after = 0.0

    async def connect(self) -> None:
        """Do nothing: this store has nothing to open."""

    async def close(self) -> None:
        """Do nothing: this store has nothing to close."""

    def for_loop(self: Store) -> Store:
        """Return this store itself, because it works on all event loops."""
        return self

    def for_reading(self) -> Store:
        """Return a handle that refuses to write. It shares everything with this one.

        Override this if opening the store, or reading from it, writes anything.
        """
        from millrace.store.read_access import sharing_handle

        return sharing_handle(self)

    # ── enqueueing in chunks: one after the other ─────────────────────────────────────────────

    async def enqueue_behind(
        self: Store, specs: Sequence[Spec], before: asyncio.Future[list[Enqueued]] | None
    ) -> asyncio.Future[list[Enqueued]]:
        if before is not None:
            await before
        writing = asyncio.ensure_future(self.enqueue(specs))
        await asyncio.sleep(0)  # lets the write start, and other tasks run
        return writing

    # ── waiting: by polling ───────────────────────────────────────────────────────────────────

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        await asyncio.sleep(min(timeout, POLL))

    async def wait_for_cancel(self, worker: str, timeout: float) -> bool:
        """Return True after `POLL` seconds, so that the caller checks with `extend`.

        If `timeout` is not longer than `POLL`, return False after `timeout` seconds.
        """
        await asyncio.sleep(min(timeout, POLL))
        return timeout > POLL

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Watch]:
        yield _PollingWatch()

    # ── jobs: by paging through all of them ───────────────────────────────────────────────────

    async def partitions(self, n: int) -> list[Partition]:
        return [_ALL]

    async def scan(
        self: Store, partition: Partition, batch: int = 1_000, selection: JobSelection = EVERYTHING
    ) -> AsyncIterator[list[Job]]:
        if partition != _ALL:
            raise InvalidInput(
                f"{partition.token!r} is not a partition of this store. Pass one that the store returned."
            )
        wanted = selection.query or Query(archived=None)
        query = msgspec.structs.replace(wanted, limit=batch, cursor=None, newest_first=False)
        while True:
            page = await self.find(query)
            if page.jobs:
                yield list(page.jobs)
            if page.cursor is None:
                return
            query = msgspec.structs.replace(query, cursor=page.cursor)

    # ── events: by paging through the feed ────────────────────────────────────────────────────

    async def history(self: Store, job_id: str) -> list[Event]:
        found: list[Event] = []
        cursor: str | None = None
        while True:
            try:
                page = await self.events(cursor, PAGE)
            except CursorExpired as expired:  # retention has deleted events meanwhile
                cursor = expired.oldest
                continue
            found += [event for event in page.events if event.job == job_id]
            if not page.events:
                return found
            cursor = page.cursor

    async def event_spans(
        self: Store, after: str | int | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        """Return the spans. The events are read twice: once to count them, and once to find the cursors between the
        spans.
        """
        start = await _cursor_before(self, after) if isinstance(after, int) else (await self.events(after, 0)).cursor
        end = (await self.events(END, 0)).cursor if until is None else until
        left = sum([len(events) async for events in self.scan_events(EventSpan(start, end, 0), PAGE)])
        left = left if limit is None else min(left, limit)
        if left == 0:
            return [EventSpan(start, start, 0)]
        size = -(-left // max(1, n))
        spans: list[EventSpan] = []
        while left > 0:
            page = await self.events(start, min(size, left))
            spans.append(EventSpan(start, page.cursor, len(page.events)))
            start, left = page.cursor, left - len(page.events)
        return spans

    async def scan_events(self: Store, span: EventSpan, batch: int = 1_000) -> AsyncIterator[Sequence[Event]]:
        """Yield the events of the span in pages. Raise CursorUnknown if the span's last event is not in the feed."""
        (before, _), (last, _) = await self.events_before(span.after, 1), await self.events_before(span.until, 1)
        page = await self.events(span.after, batch)
        if [event for _, event in before] == [event for _, event in last]:
            return
        while page.events:
            length = next((n for n, event in enumerate(page.events, 1) if last and event == last[0][1]), None)
            yield page.events[:length]
            if length is not None:
                return
            page = await self.events(page.cursor, batch)
        raise CursorUnknown(span.until)


class _PollingWatch:
    async def wait(self, timeout: float) -> None:
        await asyncio.sleep(min(timeout, POLL))


async def _cursor_before(store: Store, at: int) -> str:
    """Return the cursor directly before the first event at or after the time `at`."""
    cursor = (await store.events(None, 0)).cursor
    while True:
        page = await store.events(cursor, PAGE)
        earlier = next((n for n, event in enumerate(page.events) if event.at >= at), len(page.events))
        if earlier < len(page.events) or not page.events:
            return (await store.events(cursor, earlier)).cursor
        cursor = page.cursor
