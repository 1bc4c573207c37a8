"""The feed as a stream: of events, or of the jobs that changed. The stream's offsets are cursors, so a restarted query
reads exactly the events, or the jobs, that it had planned.

If a stream stops for too long, retention may remove events that it has not read. If that happens, the query fails and
reports how many events are lost. If the option failOnDataLoss is false, it logs a warning and continues.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from millrace.domain.errors import CursorExpired, CursorUnknown, InvalidInput, StoreError
from millrace.domain.event import Event
from millrace.domain.request import EventSpan
from millrace.spark.batches import Batches
from millrace.spark.cursors import start_of
from millrace.spark.open import opened, url_from
from millrace.spark.options import SourceOptions
from millrace.spark.reader import MOST_TASKS, WORTH_A_TASK, Share, merged
from millrace.spark.stream_lag import Lag
from millrace.spark.table import Table
from millrace.store.protocol import Store

T = TypeVar("T")
OFFSET_VERSION = 1
JOBS_WORTH_A_TASK = 2_000
MOST_EVENTS_OF_JOBS = 100_000  # per micro-batch, because the driver keeps the ids of the jobs in memory
logger = logging.getLogger("millrace.spark")


class EventsLost(StoreError):
    """Retention has removed events that the stream had not read."""

    def __init__(self, expired: CursorExpired) -> None:
        self.lost = expired.lost
        super().__init__(
            f"{expired.lost} events after cursor {expired.cursor} were trimmed by retention before the stream read "
            "them. To continue without them, set the option failOnDataLoss to false; to lose none, run the stream more "
            "often, or keep events longer (keep_events)"
        )


class EventsReplaced(StoreError):
    """The store's feed is not the feed that the stream has read before. Continuing could skip events."""

    def __init__(self, unknown: CursorUnknown) -> None:
        super().__init__(
            f"the event before cursor {unknown.cursor} is not in the feed: the store was restored from a backup, "
            "a crash took its latest events, or it is another store. Begin with a new checkpoint and the option "
            "startingCursor; events that come again have the same (job, generation, n)"
        )


class FeedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, table: Table) -> None:
        self._options = options
        self._table = table
        self._ends_now = False  # the trigger availableNow: later events are for the next run
        self._end: str | None = None
        self._lag = Lag()

    def initialOffset(self) -> dict[str, Any]:
        async def first(store: Store) -> str:
            start = await start_of(store, self._options["startingCursor"])
            [span, *_] = await store.event_spans(start, 1, limit=1)
            return span.after

        with opened(url_from(self._options), reads=True) as found:
            return offset(found.run(first(found.store)))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options["maxEventsPerTrigger"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends_now, self._end = True, None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most: int | None = getattr(limit, "max_rows", None)

        async def latest(store: Store) -> str:
            if self._ends_now and self._end is None:
                self._end = (await self._spans(store, cursor_in(start), 1))[-1].until
            spans = await self._spans(store, cursor_in(start), 1, limit=most, until=self._end)
            await self._measure(store, spans, limited=most is not None)
            return spans[-1].until

        with opened(url_from(self._options), reads=True) as found:
            return offset(found.run(latest(found.store)))

    async def _measure(self, store: Store, batch: Sequence[EventSpan], limited: bool) -> None:
        """Measure how far the stream is behind. `batch` has the events of the next micro-batch."""
        after, count = batch[0].after, sum(span.count for span in batch)
        newest = batch
        if limited and self._lag.is_due():
            newest = await self._spans(store, after, 1, until=self._end)
        elif limited:
            newest = ()
        page = await self._after(lambda cursor: store.events(cursor, 1), after) if count else None
        oldest = page.events[0].at if page is not None and page.events else None
        self._lag.planned(after, count, newest, None if oldest is None else await store.now() - oldest)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest cursor and the lag, which Spark shows in its progress reports."""
        newest = self._lag.newest
        return None if newest is None else {**offset(newest), **self._lag.figures}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        tasks = self._options["partitions"]
        if cursor_in(start) == cursor_in(end):
            return []
        with opened(url_from(self._options), reads=True) as found:
            spans = found.run(
                self._spans(found.store, cursor_in(start), tasks or MOST_TASKS, until=cursor_in(end)),
            )
        return [Share(span=span) for span in (spans if tasks else merged(spans, WORTH_A_TASK))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share) and partition.span is not None
        batches = Batches(self._table)
        with opened(url_from(self._options), reads=True) as found:
            for events in found.each(self._events(found.store, partition.span)):
                batch = batches.batch(events)
                if batch is not None:
                    yield batch

    async def _spans(
        self, store: Store, after: str, n: int, *, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        return await self._after(lambda cursor: store.event_spans(cursor, n, limit, until), after)

    async def _after(self, read: Callable[[str], Awaitable[T]], cursor: str) -> T:
        """Return the result of `read` for the cursor; or, if events after it were trimmed and failOnDataLoss is false,
        for the cursor of the oldest event that is left.
        """
        while True:
            try:
                return await read(cursor)
            except CursorExpired as expired:
                cursor = self._past(expired)
            except CursorUnknown as unknown:
                raise EventsReplaced(unknown) from None

    async def _events(self, store: Store, span: EventSpan) -> AsyncIterator[Sequence[Event]]:
        while True:
            try:
                async for events in store.scan_events(span, self._options["batchRows"]):
                    yield events
                return
            except CursorExpired as expired:
                span = EventSpan(self._past(expired), span.until, 0)
            except CursorUnknown as unknown:
                raise EventsReplaced(unknown) from None

    def _past(self, expired: CursorExpired) -> str:
        """Return the cursor of the oldest event that is left. Raises EventsLost unless failOnDataLoss is false."""
        if self._options["failOnDataLoss"]:
            raise EventsLost(expired) from None
        logger.warning("%d events were trimmed before the stream read them; it continues without them", expired.lost)
        return expired.oldest


class JobStreamReader(FeedStreamReader):
    """A stream of jobs. A micro-batch has one row for each job with an event in it: the job's state when it is read.

    The driver reads the events, because a job may have several, in parts of the feed that different tasks would read.
    """

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options["maxEventsPerTrigger"] or MOST_EVENTS_OF_JOBS)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if cursor_in(start) == cursor_in(end):
            return []
        seen: dict[str, None] = {}
        with opened(url_from(self._options), reads=True) as found:
            [span] = found.run(self._spans(found.store, cursor_in(start), 1, until=cursor_in(end)))
            for events in found.each(self._events(found.store, span)):
                seen.update(dict.fromkeys(event.job for event in events))
        tasks = self._options["partitions"] or min(MOST_TASKS, -(-len(seen) // JOBS_WORTH_A_TASK))
        return [Share(ids=ids) for ids in _parts([*seen], -(-len(seen) // max(1, tasks)))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        batches = Batches(self._table)
        with opened(url_from(self._options), reads=True) as found:
            for ids in _parts(partition.ids, self._options["batchRows"]):
                jobs = found.run(found.store.get(ids))
                batch = batches.batch([job for job in jobs if job is not None])
                if batch is not None:
                    yield batch


def _parts(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (ids[at : at + size] for at in range(0, len(ids), max(1, size)))


def offset(cursor: str) -> dict[str, Any]:
    return {"version": OFFSET_VERSION, "cursor": cursor}


def cursor_in(given: dict[str, Any]) -> str:
    if given.get("version") != OFFSET_VERSION or not isinstance(given.get("cursor"), str):
        raise InvalidInput(
            f"the checkpoint holds an offset that this version cannot read: {given!r}. Begin with a new checkpoint, "
            "and the option startingCursor"
        )
    return str(given["cursor"])
