"""The feed as a stream. The stream's offsets are cursors, so a restarted query reads exactly the events that it had
planned.

If a stream stops for too long, retention may remove events that it has not read. If that happens, the query fails and
reports how many events are lost. If the option failOnDataLoss is false, it logs a warning and continues.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

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
from millrace.spark.table import Table
from millrace.store.protocol import Store

OFFSET_VERSION = 1
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

    def initialOffset(self) -> dict[str, Any]:
        async def first(store: Store) -> str:
            start = await start_of(store, self._options["startingCursor"])
            [span, *_] = await store.event_spans(start, 1, limit=1)
            return span.after

        with opened(url_from(self._options), reads=True) as found:
            return offset(found.run(first(found.store)))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options["maxEventsPerBatch"]
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends_now, self._end = True, None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most: int | None = getattr(limit, "max_rows", None)

        async def latest(store: Store) -> str:
            if self._ends_now and self._end is None:
                self._end = (await self._spans(store, cursor_in(start), 1))[-1].until
            spans = await self._spans(store, cursor_in(start), 1, limit=most, until=self._end)
            return spans[-1].until

        with opened(url_from(self._options), reads=True) as found:
            return offset(found.run(latest(found.store)))

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
        while True:
            try:
                return await store.event_spans(after, n, limit, until)
            except CursorExpired as expired:
                after = self._past(expired)
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


def offset(cursor: str) -> dict[str, Any]:
    return {"version": OFFSET_VERSION, "cursor": cursor}


def cursor_in(given: dict[str, Any]) -> str:
    if given.get("version") != OFFSET_VERSION or not isinstance(given.get("cursor"), str):
        raise InvalidInput(
            f"the checkpoint holds an offset that this version cannot read: {given!r}. Begin with a new checkpoint, "
            "and the option startingCursor"
        )
    return str(given["cursor"])
