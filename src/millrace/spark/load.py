"""Makes jobs out of files, for `millrace pipeline load`. Spark reads the files, and the sink turns the rows into jobs.

The rows go through `mapInArrow` and not through `df.write`, because Spark does not return what a sink has counted.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from millrace.domain.errors import InvalidInput, QueueError, did_you_mean
from millrace.domain.job import Spec
from millrace.spark.drain.driver import reason
from millrace.spark.sink.ids import Scope
from millrace.spark.sink.rows import RowMaker
from millrace.spark.sink.tasks import Targets
from millrace.spark.sink.writer import BatchSink, Sink, Written, in_chunks, writer
from millrace.store.clock import system_clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
STRICT = {"mode": "FAILFAST"}  # by default, Spark makes nulls of a line that it cannot read
FORMATS: dict[str, tuple[str, dict[str, str]]] = {
    "parquet": ("parquet", {}),
    "csv": ("csv", {"header": "true", **STRICT}),
    "jsonl": ("json", STRICT),
    "delta": ("delta", {}),
}
MOST_SHOWN = 10
_ANSWER = "answer binary not null"


class LoadFailed(QueueError):
    """Spark could not read the files, or a row is invalid. Rows that became jobs before stay jobs."""


class LoadRequest(msgspec.Struct, frozen=True):
    """`source` is FORMAT:PATH. `fields` maps fields of the payload to SQL expressions over the columns of the files; if
    empty, all columns are fields. `options` are those of the sink.
    """

    source: str
    options: dict[str, str]
    fields: dict[str, str] = {}


class LoadCheck(msgspec.Struct):
    """What a load would do. `jobs` counts them by queue and task. `reasons` and `sample` have a few invalid rows and a
    few jobs.
    """

    rows: int = 0
    jobs: dict[str, dict[str, int]] = {}
    reasons: list[str] = []
    sample: list[Spec] = []

    @property
    def valid(self) -> int:
        return sum(count for tasks in self.jobs.values() for count in tasks.values())

    @property
    def invalid(self) -> int:
        return self.rows - self.valid


def check(spark: SparkSession, request: LoadRequest) -> LoadCheck:
    """Read all rows and build their jobs, but enqueue nothing."""
    frame = rows_of(spark, request)
    sink = writer(request.options, frame.schema, False)
    found = LoadCheck()
    for part in _on_executors(frame, Checking(sink), LoadCheck):
        found.rows += part.rows
        for queue, tasks in part.jobs.items():
            found.jobs[queue] = dict(Counter(found.jobs.get(queue, {})) + Counter(tasks))
        found.reasons = [*found.reasons, *part.reasons][:MOST_SHOWN]
        found.sample = [*found.sample, *part.sample][:MOST_SHOWN]
    return found


def load(spark: SparkSession, request: LoadRequest) -> Written:
    """Enqueue all rows, and return the counts. Raises LoadFailed for an invalid row, unless the options write such rows
    to a reject table.
    """
    frame = rows_of(spark, request)
    sink = writer(request.options, frame.schema, False)
    try:
        done = _on_executors(frame, Writing(sink), Written)
    except BaseException:
        sink.abort([])
        raise
    sink.commit(done)
    counted = ("rows", "queued", "duplicates", "differing", "rejected")
    return Written(sink.write_id, 0, **{name: sum(getattr(one, name) for one in done) for name in counted})


def rows_of(spark: SparkSession, request: LoadRequest) -> DataFrame:
    """Return the rows of the files, with the columns that the sink needs."""
    kind, _, path = request.source.partition(":")
    if kind not in FORMATS or not path:
        raise InvalidInput(f"--from {request.source!r} is not FORMAT:PATH. {did_you_mean(kind, FORMATS)}")
    name, options = FORMATS[kind]
    try:
        frame = spark.read.format(name).options(**options).load(path if "://" in path else os.path.abspath(path))
        return _mapped(frame, request) if request.fields else frame
    except Exception as error:  # errors of Spark, or of the bridge to its JVM
        raise InvalidInput(_refusal(kind, str(error))) from error


def _refusal(kind: str, text: str) -> str:
    if kind == "delta" and "DATA_SOURCE_NOT_FOUND" in text:
        return "this Spark has no Delta Lake. Add it by --packages io.delta:delta-spark_2.13:VERSION"
    found = re.search(r"\[[A-Z][A-Z_.]+\] [^\n]*", text)  # after the words of the bridge to the JVM, if there are any
    return f"Spark cannot read these rows: {found[0] if found else text.strip().splitlines()[0]}"


def _mapped(frame: DataFrame, request: LoadRequest) -> DataFrame:
    """Return the fields, and the columns that options of the sink name."""
    named = [
        column.strip()
        for option, value in request.options.items()
        if option.endswith(("Column", "Columns")) and option != "payloadColumns"
        for column in value.split(",")
    ]
    kept = [f"`{column}`" for column in dict.fromkeys(named) if column not in request.fields]
    return frame.selectExpr(*(f"{sql} as `{field}`" for field, sql in request.fields.items()), *kept)


def _on_executors(frame: DataFrame, work: Callable[..., Iterator[pa.RecordBatch]], kind: type[T]) -> list[T]:
    """Run `work` on each partition, and return the answers."""
    try:
        rows = frame.mapInArrow(work, _ANSWER).collect()
    except Exception as error:  # errors of Spark, or of the bridge to its JVM
        ours = re.search(r"^\s*millrace\.(?:\w+\.)*\w+: (.+)$", str(error), re.MULTILINE)
        raise LoadFailed(f"the load failed: {ours[1] if ours else reason(str(error))}") from error
    return [msgspec.json.decode(bytes(row.answer), type=kind) for row in rows]


class Writing:
    """Enqueues the rows of a partition. Spark sends this object to executors, so it holds nothing open."""

    def __init__(self, sink: BatchSink) -> None:
        self._sink = sink

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _answer(self._sink.write(batches))


class Checking:
    """Builds the jobs of a partition, and enqueues nothing."""

    def __init__(self, sink: BatchSink) -> None:
        self._sink = sink

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        yield _answer(checked(self._sink.sink, task.partitionId() if task is not None else 0, batches))


def checked(sink: Sink, partition: int, batches: Iterator[pa.RecordBatch]) -> LoadCheck:
    maker = RowMaker(sink.options, sink.plan, Scope("check", partition), Targets(sink.options, sink.plan))
    found = LoadCheck(jobs={}, reasons=[], sample=[])
    for rows in in_chunks(batches, sink.options["batchSize"]):
        made = maker.make(rows, system_clock())
        for spec in made.specs:
            tasks = found.jobs.setdefault(spec.queue, {})
            tasks[spec.task] = tasks.get(spec.task, 0) + 1
        found.sample += made.specs[: MOST_SHOWN - len(found.sample)]
        for place, why in islice(made.unfit.items(), MOST_SHOWN - len(found.reasons)):
            found.reasons.append(f"row {found.rows + place} of partition {partition}: {why}")
        found.rows += rows.num_rows
    return found


def _answer(value: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"answer": pa.array([msgspec.json.encode(value)], pa.binary())})
