"""Writes rows of a DataFrame or a stream as jobs: `df.write.format("millrace")` and `df.writeStream`.

The tasks of a write enqueue directly, in chunks. They do not wait for Spark's commit; only the table of rejected rows
does. This is safe because of `sink/ids.py`: if a row is written again, the store finds the existing job.
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

from millrace.app.duration import milliseconds
from millrace.app.ids import sorted_ids
from millrace.domain.errors import InvalidInput, PayloadInvalid
from millrace.spark.open import opened, url_from
from millrace.spark.options import SourceOptions, Use, read_options
from millrace.spark.sink.enqueue import ChunkEnqueuer
from millrace.spark.sink.ids import Scope
from millrace.spark.sink.plan import SinkPlan, read_plan
from millrace.spark.sink.rejects import RejectFolder, refuse_taken_names
from millrace.spark.sink.rows import RowMaker
from millrace.spark.sink.tasks import Targets

logger = logging.getLogger("millrace.spark")
LONGEST_VALUE, LONGEST_ROW = 60, 400
_OF_THE_QUERY = (
    "checkpointlocation",
    "queryname",
    "asyncprogress",
)  # Spark's own options, which Spark passes to sinks too


class RowInvalid(PayloadInvalid):
    """A row cannot become a job, and the option onInvalid is `fail`."""


class Written(WriterCommitMessage, msgspec.Struct, frozen=True):
    """The result of one Spark task: how many rows became jobs, and the file with the rejected rows."""

    write: str
    partition: int
    rows: int = 0
    queued: int = 0
    duplicates: int = 0
    differing: int = 0
    rejected: int = 0
    reject_file: str | None = None


class Sink:
    """The options and the plan of a write. Spark sends this object to tasks, so it holds nothing open."""

    def __init__(self, options: SourceOptions, plan: SinkPlan) -> None:
        self.options = options
        self.plan = plan

    def write(self, write: str, partition: int, batches: Iterator[pa.RecordBatch]) -> Written:
        """Enqueue the rows of one Spark task and return the result. All rows of a chunk are checked before its first
        job is enqueued. Raises RowInvalid for an invalid row, unless the options write invalid rows to a reject table.
        """
        options = self.options
        scope, targets = Scope(write, partition), Targets(options, self.plan)
        maker = RowMaker(options, self.plan, scope, targets)
        rejects = None if (folder := self.rejects()) is None else folder.open(write, partition)
        seen = 0
        patience = milliseconds("queueFullTimeout", options["queueFullTimeout"]) / 1000
        try:
            with opened(url_from(options)) as found, ChunkEnqueuer(found, targets, patience) as putter:
                for rows in in_chunks(batches, options["batchSize"]):
                    now = 0 if self.plan.run_at is None else found.run(found.store.now())
                    made = maker.make(rows, now)
                    if made.unfit and rejects is None:
                        place, reason = next(iter(made.unfit.items()))
                        raise RowInvalid(describe_row(rows, place, seen, partition, reason))
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
        """Delete the unpublished rejected rows. Enqueued jobs stay; if the write is repeated under the same name, only
        the missing jobs are added.
        """
        folder = self.rejects()
        if folder is not None:
            folder.forget(write)


class BatchSink(DataSourceArrowWriter):
    """Writes a DataFrame. The driver chooses the name of the write, so the name is the same for all tasks and their
    reruns.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.write_id: str = sink.options["writeId"] or sorted_ids(1)[0]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self.sink.write(self.write_id, _task().partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.sink.commit(self.write_id, _written(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self.sink.abort(self.write_id)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes micro-batches. The name of a write consists of the query id and the batch number. So a batch that Spark
    repeats has the same name, and enqueues nothing twice.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query, batch = (task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if query is None or batch is None:
            raise InvalidInput("this Spark version does not pass the micro-batch to tasks; use foreachBatch")
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
    """Return the sink. Options and schema are checked here, on the driver, as far as possible without rows. Raises
    InvalidInput if they are invalid.
    """
    options = read_options(given, use)
    if overwrite:
        raise InvalidInput(
            "jobs can only be added: write with mode('append'), or outputMode('append') for a stream. To empty a queue "
            "first, drain it: millrace drain NAME"
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
    """Yield the same rows in chunks of `size` rows; the last chunk may be shorter."""
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


def describe_row(rows: pa.RecordBatch, place: int, before: int, partition: int, reason: str) -> str:
    """Return a message that describes an invalid row, so that a user can find it. Long values are cut."""
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
