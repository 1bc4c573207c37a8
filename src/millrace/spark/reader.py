"""Reading a table: planned once on the driver, then each share by a task that opens the store for itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from millrace.domain.errors import InvalidInput
from millrace.domain.event import Event
from millrace.domain.job import State
from millrace.domain.request import EventSpan, Partition
from millrace.spark.archive_read import Compacted, CompactedRows, Seen, pinned
from millrace.spark.batches import Batches
from millrace.spark.cursors import EARLIEST, LATEST, starting_cursor
from millrace.spark.filters import Condition, condition
from millrace.spark.open import Opened, opened, url_from
from millrace.spark.options import Options
from millrace.spark.schema import DEAD, EVENTS, JOBS, WORKERS
from millrace.spark.table import Table
from millrace.store.protocol import Raw, Store

MOST_TASKS = 32
WORTH_A_TASK = 50_000  # events; a task costs about as much as reading a few thousand
JOB_TASKS = 8
MOST_IDS = 1_000  # more than that are scanned for


class Share(InputPartition):
    """What one task reads. One of them is set; none: all there is. `known`: files that others read, on a store where
    jobs are compacted into files."""

    def __init__(
        self,
        span: EventSpan | None = None,
        part: Partition | None = None,
        ids: Sequence[str] = (),
        parts: Sequence[str] = (),
        known: Sequence[str] | None = None,
    ) -> None:
        super().__init__(None)
        self.span = span
        self.part = part
        self.ids = tuple(ids)
        self.parts = tuple(parts)
        self.known = known

    def holds(self, store: Store, job_id: str) -> bool:
        """Is this one of the jobs that it reads?"""
        if self.part is None:
            return job_id in self.ids
        is_in = getattr(store, "is_in", None)
        return is_in is not None and bool(is_in(self.part, job_id))


class TableReader(DataSourceReader):
    def __init__(self, options: Options, table: Table) -> None:
        self._options = options
        self._table = table
        self._conditions: tuple[Condition, ...] = ()
        if table.name != EVENTS.name and (options["startingCursor"] != EARLIEST or options["endingCursor"] is not None):
            raise InvalidInput(f"startingCursor and endingCursor are for the table events; {table.name} has no cursors")
        if options["startingCursor"] == LATEST:
            raise InvalidInput("startingCursor=latest is for streams: a batch read from there would be empty")
        self._compacted = _which(table.name, options["compacted"])

    def partitions(self) -> list[InputPartition]:
        if self._table.name == WORKERS.name:
            return [Share()]
        with opened(url_from(self._options)) as found:
            files = None if self._compacted == "without" else pinned(found, self._tasks(JOB_TASKS))
            in_files = [] if files is None else [Share(parts=parts) for parts in files.shares]
            if self._compacted == "only":
                return [*in_files]
            if self._table.name == EVENTS.name:
                return [Share(span=span) for span in found.run(self._spans(found.store))]
            known = None if files is None else files.parts
            ids = self._ids()
            if ids is not None:
                return [Share(ids=ids, known=known), *in_files]
            parts = found.run(found.store.partitions(self._tasks(JOB_TASKS)))
            return [*(Share(part=part, known=known) for part in parts), *in_files]

    def _tasks(self, usual: int) -> int:
        return int(self._options["partitions"] or usual)

    async def _spans(self, store: Store) -> list[EventSpan]:
        after = await starting_cursor(store, self._options["startingCursor"])
        spans = await store.event_spans(after, self._tasks(MOST_TASKS), until=self._options["endingCursor"])
        return spans if self._options["partitions"] else merged(spans, WORTH_A_TASK)

    def _ids(self) -> Sequence[str] | None:
        """The only ids that filters let through, if those are listed."""
        if self._table.name not in (JOBS.name, DEAD.name):
            return None
        listed = [one.wanted for one in self._conditions if one.column == "id"]
        few = [ids for ids in listed if ids is not None and len(ids) <= MOST_IDS]
        return min(few, key=len) if few else None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Share):  # Spark's stand-in for a table without shares
            return
        batches = Batches(self._table, self._conditions)
        compacted = CompactedRows(self._table, self._conditions, self._options["batchRows"])
        seen = None if partition.known is None else Seen()
        with opened(url_from(self._options)) as found:
            if partition.parts:
                yield from compacted.of(found, partition.parts)
                return
            for records in self._records(found, partition):
                if seen is not None:
                    seen.add(records)
                batch = batches.batch(self._kept(records))
                if batch is not None:
                    yield batch
            if seen is not None and partition.known is not None:
                yield from compacted.since(found, partition.known, seen, partial(partition.holds, found.store))

    def _records(self, found: Opened, share: Share) -> Iterator[Sequence[Any]]:
        store, rows = found.store, self._options["batchRows"]
        if share.span is not None:
            yield from found.each(events_of(store, share.span, rows))
        elif share.part is not None:
            yield from found.each(store.scan(share.part, rows))
        elif share.ids:
            yield [job for job in found.run(store.get([*dict.fromkeys(share.ids)])) if job is not None]
        else:
            yield found.run(store.workers())

    def _kept(self, records: Sequence[Any]) -> Sequence[Any]:
        return [job for job in records if job.state is State.DEAD] if self._table.name == DEAD.name else records


class FilteringReader(TableReader):
    """Chosen only where the session lets filters be pushed down, because elsewhere Spark refuses a reader that takes
    them; and only on request, because Spark keeps what was planned for one query on a DataFrame for the next one."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for asked in filters:
            found = condition(asked, self._table)
            if found is None:
                yield asked
            else:
                self._conditions = (*self._conditions, found)


def _which(table: str, asked: Compacted | None) -> Compacted:
    """Jobs that were compacted into files: of `jobs` and `dead` they are a part, of others only if asked for."""
    if table in (JOBS.name, DEAD.name):
        return asked or "also"
    if asked == "also" or (asked is not None and table == WORKERS.name):
        raise InvalidInput(
            f"option compacted={asked} is not for the table {table}. With table=events, compacted=only reads the "
            "history of compacted jobs; the feed itself keeps their events until it is trimmed"
        )
    return asked or "without"


def events_of(store: Store, span: EventSpan, batch: int) -> AsyncIterator[Sequence[Event]]:
    """By the shortest way that the store offers."""
    return store.scan_raw_events(span, batch) if isinstance(store, Raw) else store.scan_events(span, batch)


def merged(spans: Sequence[EventSpan], least: int) -> list[EventSpan]:
    """Neighbours put together until each is worth a task."""
    found: list[EventSpan] = []
    for span in spans:
        if found and found[-1].count < least:
            span = EventSpan(found[-1].after, span.until, found.pop().count + span.count)
        found.append(span)
    return found
