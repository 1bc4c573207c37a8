"""Rows of a DataFrame, or of a stream, as jobs: `df.write.format("millrace")` and `df.writeStream`.

The tasks of a write enqueue as they go, in chunks; there is nothing to commit but the table of rejected rows. What
makes that safe is in `sink_ids`: whoever writes a row a second time asks for the job that is there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace.domain.errors import InvalidInput, PayloadInvalid
from millrace.runtime.duration import milliseconds
from millrace.runtime.ids import sorted_ids
from millrace.spark.open import opened, url_from
from millrace.spark.options import Options, Use, read_options
from millrace.spark.sink_ids import Scope
from millrace.spark.sink_plan import Plan, read_plan
from millrace.spark.sink_put import Putter
from millrace.spark.sink_rejects import RejectFolder, refuse_taken_names
from millrace.spark.sink_rows import Maker
from millrace.spark.sink_tasks import Targets

logger = logging.getLogger("millrace.spark")
LONGEST_VALUE, LONGEST_ROW = 60, 400
_OF_THE_QUERY = ("checkpointlocation", "queryname", "asyncprogress")  # Spark's own options, which sinks are shown too


class RowInvalid(PayloadInvalid):
    """A row that cannot become a job, and a write that was told to fail then."""


class Written(WriterCommitMessage, msgspec.Struct, frozen=True):
    """What one task did."""

    write: str
    partition: int
    rows: int = 0
    queued: int = 0
    duplicates: int = 0
    differing: int = 0
    rejected: int = 0
    reject_file: str | None = None


class Sink:
    """What tasks need to know; it holds nothing open, because it is sent to them."""

    def __init__(self, options: Options, plan: Plan) -> None:
        self.options = options
        self.plan = plan

    def write(self, write: str, partition: int, batches: Iterator[pa.RecordBatch]) -> Written:
        """One task's rows. Nothing of a chunk is enqueued before all its rows were looked at."""
        options = self.options
        scope, targets = Scope(write, partition), Targets(options, self.plan)
        maker = Maker(options, self.plan, scope, targets)
        rejects = None if (folder := self.rejects()) is None else folder.open(write, partition)
        seen = 0
        patience = milliseconds("queueFullTimeout", options["queueFullTimeout"]) / 1000
        try:
            with opened(url_from(options)) as found, Putter(found, targets, patience) as putter:
                for rows in in_chunks(batches, options["batchSize"]):
                    now = 0 if self.plan.run_at is None else found.run(found.store.now())
                    made = maker.make(rows, now)
                    if made.unfit and rejects is None:
                        place, reason = next(iter(made.unfit.items()))
                        raise RowInvalid(said(rows, place, seen, partition, reason))
                    if made.unfit and rejects is not None:
                        rejects.add(rows, made.unfit)
                    putter.put(made.specs)
                    seen += rows.num_rows
        finally:
            if rejects is not None:
                rejects.close()
        counts = msgspec.structs.asdict(putter.counts)
        if rejects is None:
            return Written(write, partition, seen, **counts)
        return Written(write, partition, seen, **counts, rejected=rejects.rows, reject_file=rejects.path)

    def rejects(self) -> RejectFolder | None:
        path = self.options["rejectPath"]
        return None if path is None else RejectFolder(path)

    def commit(self, write: str, done: Sequence[Written]) -> None:
        folder = self.rejects()
        if folder is not None:
            folder.publish(write, {one.partition: one.reject_file for one in done if one.reject_file is not None})
        names = ("rows", "queued", "duplicates", "differing", "rejected")
        rows, queued, duplicates, differing, rejected = (sum(getattr(one, name) for one in done) for name in names)
        level = logging.WARNING if rejected or differing else logging.INFO
        logger.log(
            level,
            "write %s: %d rows, %d enqueued, %d had a job already (%d of these with another payload), %d rejected",
            *(write, rows, queued, duplicates, differing, rejected),
        )

    def abort(self, write: str) -> None:
        """Jobs that are in stay in: their ids are known, so doing the write again under its name adds the others."""
        folder = self.rejects()
        if folder is not None:
            folder.forget(write)


class BatchSink(DataSourceArrowWriter):
    """One write. Its name is made here, on the driver, so it is the same for all tasks and all their attempts."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.write_id: str = sink.options["writeId"] or sorted_ids(1)[0]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._sink.write(self.write_id, _task().partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._sink.commit(self.write_id, _written(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._sink.abort(self.write_id)


class StreamSink(DataSourceStreamArrowWriter):
    """Every micro-batch is a write, named by the query and its number: done again after a restart, it is the same."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query, batch = (task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if query is None or batch is None:
            raise InvalidInput("this Spark does not tell tasks which micro-batch they are for; use foreachBatch")
        return self._sink.write(f"{query}/{batch}", task.partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        done = _written(messages)
        for write in dict.fromkeys(one.write for one in done):
            self._sink.commit(write, done)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        for write in dict.fromkeys(one.write for one in _written(messages)):
            self._sink.abort(write)


def writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    return BatchSink(_sink(given, schema, overwrite, "write"))


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamSink:
    ours = {name: value for name, value in given.items() if not name.lower().startswith(_OF_THE_QUERY)}
    return StreamSink(_sink(ours, schema, overwrite, "writeStream"))


def _sink(given: Mapping[str, str], schema: StructType, overwrite: bool, use: Use) -> Sink:
    """Whatever can be known to be wrong without a row is said here, on the driver."""
    options = read_options(given, use)
    if overwrite:
        raise InvalidInput(
            "jobs can only be added: write with mode('append'), or outputMode('append') for a stream. To empty a queue "
            "first, drain it: millrace queue drain NAME"
        )
    url_from(options)
    plan = read_plan(options, schema)
    sink = Sink(options, plan)
    if sink.rejects() is not None:
        refuse_taken_names(schema.names)
    targets = Targets(options, plan)
    if options["task"] is not None:
        targets[options["task"]]
    return sink


def in_chunks(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """The same rows in chunks of `size`, whatever the sizes in which they come; the last one is shorter."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows < size:
            continue
        whole = _joined(held)
        full = rows - rows % size
        for first in range(0, full, size):
            yield whole.slice(first, size)
        held, rows = ([whole.slice(full)], rows - full) if full < rows else ([], 0)
    if rows:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def said(rows: pa.RecordBatch, place: int, before: int, partition: int, reason: str) -> str:
    """The row at fault, for the one who has to find it; long values are cut."""
    values: dict[str, Any] = rows.slice(place, 1).to_pylist()[0]
    shown = ", ".join(f"{name}={_cut(repr(value), LONGEST_VALUE)}" for name, value in values.items())
    return (
        f"row {before + place} of partition {partition} ({_cut(shown, LONGEST_ROW)}) cannot become a job: {reason}. "
        "Nothing of its chunk was enqueued. Correct it, or let such rows go to a table: onInvalid=reject, rejectPath=…"
    )


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise InvalidInput("a sink writes inside a Spark task; there is none here")
    return task


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [one for one in messages if isinstance(one, Written)]
