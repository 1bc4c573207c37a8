"""Reads a table. The driver plans the read once; then each task opens the store itself and reads one share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from millrace.domain.errors import InvalidInput
from millrace.domain.job import State
from millrace.domain.request import EventSpan, JobSelection, Partition, Query
from millrace.spark.archive.read import Compacted, CompactedRows, SeenJobs, pinned
from millrace.spark.batches import Batches
from millrace.spark.cursors import EARLIEST, LATEST, start_of
from millrace.spark.filters import Condition, condition
from millrace.spark.open import OpenedStore, opened, url_from
from millrace.spark.options import SourceOptions
from millrace.spark.schema import DEAD, EVENTS, JOBS, WORKERS
from millrace.spark.table import Table
from millrace.store.protocol import Store

MOST_TASKS = 32
WORTH_A_TASK = 50_000  # events; a task costs about as much as reading a few thousand
JOBS_WORTH_A_TASK = 10_000  # a bucket needs a request for each job
MOST_JOB_TASKS = 256
_QUERIED = ("queue", "task", "group", "key", "state")  # columns by which a store can select jobs
MOST_IDS = 1_000  # above this, the whole table is scanned


class Share(InputPartition):
    """What one task reads, given by one of the first four arguments. Without any of them, the task reads the table
    `workers`.

    `known` is set if the store has compacted jobs. It lists the parts of the archive that other tasks read.
    """

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
        """Return whether this task reads the job with this id."""
        if self.part is None:
            return job_id in self.ids
        is_in = getattr(store, "is_in", None)
        return is_in is not None and bool(is_in(self.part, job_id))


class TableReader(DataSourceReader):
    def __init__(self, options: SourceOptions, table: Table) -> None:
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
        with opened(url_from(self._options), reads=True) as found:
            files = None if self._compacted == "without" else pinned(found, self._tasks(MOST_JOB_TASKS))
            in_files = [] if files is None else [Share(parts=parts) for parts in files.shares]
            if self._compacted == "only":
                return [*in_files]
            if self._table.name == EVENTS.name:
                return [Share(span=span) for span in found.run(self._spans(found.store))]
            known = None if files is None else files.parts
            ids = self._ids()
            if ids is not None:
                return [Share(ids=ids, known=known), *in_files]
            parts = found.run(self._parts(found.store))
            return [*(Share(part=part, known=known) for part in parts), *in_files]

    def _tasks(self, usual: int) -> int:
        return int(self._options["partitions"] or usual)

    async def _parts(self, store: Store) -> list[Partition]:
        """Return the partitions of the store: as many as the option says, or one for every few thousand jobs."""
        if self._options["partitions"]:
            return await store.partitions(self._options["partitions"])
        counts = await store.count()
        jobs = sum(one.dead for one in counts)
        if self._table.name != DEAD.name:
            jobs += sum(one.waiting + one.running + one.completed + one.cancelled for one in counts)
        return await store.partitions(max(1, min(MOST_JOB_TASKS, -(-jobs // JOBS_WORTH_A_TASK))))

    def _selection(self) -> JobSelection:
        """Return what the tasks need of the jobs: those that can match, and payloads and results if there is a column
        for them.
        """
        wanted = {one.column: one.wanted or () for one in self._conditions}
        single = {name: wanted[name][0] for name in _QUERIED if len(wanted.get(name, ())) == 1}
        single = {name: value for name, value in single.items() if value.isprintable()}
        if self._table.name == DEAD.name:
            single["state"] = State.DEAD.value
        if single.get("state", State.DEAD) not in list(State):
            del single["state"]  # matches no job, or is a word that means something else in a query
        used = {*self._table.names, *wanted}
        return JobSelection(Query(archived=None, **single) if single else None, "payload" in used, "result" in used)

    async def _spans(self, store: Store) -> list[EventSpan]:
        after = await start_of(store, self._options["startingCursor"])
        spans = await store.event_spans(after, self._tasks(MOST_TASKS), until=self._options["endingCursor"])
        return spans if self._options["partitions"] else merged(spans, WORTH_A_TASK)

    def _ids(self) -> Sequence[str] | None:
        """Return the ids to which a filter limits the read; None if no filter does this, or if there are too many
        ids.
        """
        if self._table.name not in (JOBS.name, DEAD.name):
            return None
        listed = [one.wanted for one in self._conditions if one.column == "id"]
        few = [ids for ids in listed if ids is not None and len(ids) <= MOST_IDS]
        return min(few, key=len) if few else None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Share):  # Spark's placeholder for a table without partitions
            return
        batches = Batches(self._table, self._conditions)
        compacted = CompactedRows(self._table, self._conditions, self._options["batchRows"])
        seen = None if partition.known is None else SeenJobs()
        with opened(url_from(self._options), reads=True) as found:
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

    def _records(self, found: OpenedStore, share: Share) -> Iterator[Sequence[Any]]:
        store, rows = found.store, self._options["batchRows"]
        if share.span is not None:
            yield from found.each(store.scan_events(share.span, rows))
        elif share.part is not None:
            yield from found.each(store.scan(share.part, rows, self._selection()))
        elif share.ids:
            yield [job for job in found.run(store.get([*dict.fromkeys(share.ids)])) if job is not None]
        else:
            yield found.run(store.workers())

    def _kept(self, records: Sequence[Any]) -> Sequence[Any]:
        return [job for job in records if job.state is State.DEAD] if self._table.name == DEAD.name else records


class FilteringReader(TableReader):
    """A reader with filter pushdown. It is used only if both the session and the option `pushFilters` turn pushdown on.

    If the session has not turned it on, Spark refuses such a reader. The option is off by default, because Spark
    applies the filters of one query also to the next query on the same DataFrame.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        for one in filters:
            found = condition(one, self._table)
            if found is None:
                yield one
            else:
                self._conditions = (*self._conditions, found)


def _which(table: str, option: Compacted | None) -> Compacted:
    """Return which jobs to read: with compacted jobs, without them, or only them. The default is with them for `jobs`
    and `dead`, and without them for other tables. Raises InvalidInput if the table does not support the option.
    """
    if table in (JOBS.name, DEAD.name):
        return option or "also"
    if option == "also" or (option is not None and table == WORKERS.name):
        raise InvalidInput(
            f"option compacted={option} is not for the table {table}. With table=events, compacted=only reads the "
            "history of compacted jobs; the feed itself keeps their events until it is trimmed"
        )
    return option or "without"


def merged(spans: Sequence[EventSpan], least: int) -> list[EventSpan]:
    """Merge neighbouring spans until each has at least `least` events, and return them. The last one may have fewer."""
    found: list[EventSpan] = []
    for span in spans:
        if found and found[-1].count < least:
            span = EventSpan(found[-1].after, span.until, found.pop().count + span.count)
        found.append(span)
    return found
