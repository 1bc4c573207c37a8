"""Builds the table that a frame handler takes, and reads the outcomes from the table that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from typing import Any, Literal, cast

import msgspec

from millrace.app.frames.columns import arrow_type
from millrace.app.frames.row import JOB_ID, Row
from millrace.app.handler.batch_results import AnswerMissing, answers
from millrace.app.handler.verdict import Bury
from millrace.domain.errors import MissingExtra
from millrace.domain.outcome import Buried, Failure, Outcome

Frame = Literal["arrow", "pandas"]
FRAMES: tuple[Frame, ...] = ("arrow", "pandas")
RESULT, ERROR = "result", "error"  # the columns of a returned table that are read
_AS_THEY_ARE = (bytes, bytearray, memoryview, datetime, date, time, timedelta, Decimal)


class RowUnfit(Bury):
    """A verdict that buries a job because a value in its payload does not fit the column, such as a 70-bit integer."""

    def outcome(self) -> Outcome:
        return Buried(Failure.from_exception(self), "payload_invalid")


class RowFailed(Exception):
    """The failure of one job, with the text that the handler returned in the `error` column of its row."""


def library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        raise MissingExtra("batch tasks that take tables", "spark") from missing


class FrameTables:
    """The builder of one task's tables."""

    def __init__(self, task: str, frame: Frame, row: Row) -> None:
        self._task = task
        self._frame = frame
        self._row = row
        self._schema: Any = None

    def of(self, ids: Sequence[str], rows: Sequence[dict[str, Any]]) -> Any:
        """Return a table with one row per job, in order. Raises Arrow's error if a value does not fit its column."""
        pa = library("pyarrow")
        if self._schema is None:
            self._schema = self._arrow_schema(pa)
        plain = msgspec.to_builtins([self._row.complete(row) for row in rows], builtin_types=_AS_THEY_ARE)
        arrays = [pa.array(ids, pa.string())]
        for field in list(self._schema)[1:]:
            arrays.append(pa.array([row[field.name] for row in plain], field.type))
        table = pa.Table.from_arrays(arrays, schema=self._schema)
        return table if self._frame == "arrow" else self._as_pandas(table)

    def misfits(self, ids: Sequence[str], rows: Sequence[dict[str, Any]]) -> dict[int, RowUnfit]:
        """Return the rows that cannot be converted, as a dict from the index of the row to its error."""
        found: dict[int, RowUnfit] = {}
        for index, (job, row) in enumerate(zip(ids, rows, strict=True)):
            try:
                self.of([job], [row])
            except MissingExtra:
                raise
            except Exception as error:
                found[index] = RowUnfit(f"the payload does not fit the table of task {self._task!r}: {error}")
        return found

    def _arrow_schema(self, pa: Any) -> Any:
        job_id = pa.field(JOB_ID, pa.string(), nullable=False)
        if self._row.schema is not None:
            return pa.schema([job_id, *cast("Any", self._row.schema)])
        fields = [pa.field(name, arrow_type(one), one.nullable) for name, one in self._row.columns.items()]
        return pa.schema([job_id, *fields])

    def _as_pandas(self, table: Any) -> Any:
        """Return the table as a pandas frame. Nullable integers and booleans keep their types."""
        pa, pd = library("pyarrow"), library("pandas")
        gapped = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
        columns = {
            field.name: table[field.name].to_pandas(types_mapper=gapped.get if field.nullable else None)
            for field in table.schema
        }
        return pd.DataFrame(columns)


# ── the answer ────────────────────────────────────────────────────────────────────────────────


def ends_of(task: str, ids: Sequence[str], value: Any) -> list[object]:
    """Convert the handler's return value to one outcome per job, in the order of `ids`.

    An outcome is a failure if it is an exception, a verdict if it is Retry, Snooze or Bury, and a result otherwise.
    """
    kind = type(value)
    library_of = kind.__module__.partition(".")[0]
    if library_of == "pyarrow" and kind.__name__ in ("Table", "RecordBatch"):
        return _by_row(task, ids, {name: value.column(name).to_pylist() for name in value.schema.names})
    if library_of == "pandas" and kind.__name__ == "DataFrame":
        named = JOB_ID in value.columns
        ordered = value if named else _in_order(value, len(ids))
        return _by_row(task, ids, {str(name): _values(ordered[name]) for name in ordered.columns}, len(ordered))
    if library_of == "pandas" and kind.__name__ == "Series":
        return answers(task, ids, _values(_in_order(value, len(ids))))
    if library_of == "pyarrow" and hasattr(value, "to_pylist"):
        return answers(task, ids, value.to_pylist())
    if library_of == "numpy" and hasattr(value, "tolist"):
        return answers(task, ids, value.tolist())
    return answers(task, ids, value)


def _by_row(task: str, ids: Sequence[str], columns: Mapping[str, list[Any]], rows: int | None = None) -> list[object]:
    count = len(next(iter(columns.values()), [])) if rows is None else rows
    ends = [_end(columns, index) for index in range(count)]
    if JOB_ID not in columns:
        if count == len(ids):
            return ends
        problem = AnswerMissing(
            f"the handler of task {task!r} got {len(ids)} rows and returned {count}. It must return one row for each "
            f"job, in the same order, or with a column {JOB_ID!r}."
        )
        return [problem] * len(ids)
    by_job: dict[str, list[object]] = {}
    for job, end in zip(columns[JOB_ID], ends, strict=True):
        by_job.setdefault(job, []).append(end)
    return [_only(job, by_job.get(job, [])) for job in ids]


def _only(job: str, ends: list[object]) -> object:
    match ends:
        case [end]:
            return end
        case []:
            return AnswerMissing(f"the table that the batch handler returned has no row for job {job!r}")
        case _:
            return AnswerMissing(f"the table that the batch handler returned has {len(ends)} rows for job {job!r}")


def _end(columns: Mapping[str, list[Any]], index: int) -> object:
    error = columns[ERROR][index] if ERROR in columns else None
    if error is not None:
        return error if isinstance(error, BaseException) else RowFailed(str(error))
    if RESULT in columns:
        return columns[RESULT][index]
    rest = {name: values[index] for name, values in columns.items() if name not in (JOB_ID, ERROR)}
    return rest or None


def _in_order(value: Any, count: int) -> Any:
    """Restore the original order of a frame that the handler may have sorted, if its index allows this."""
    labels = list(value.index)
    if len(labels) == count and set(labels) == set(range(count)):
        return value.sort_index()
    return value


def _values(series: Any) -> list[Any]:
    """Return the values of a series as Python objects, with None for missing values."""
    pa, pd = library("pyarrow"), library("pandas")
    try:
        found: list[Any] = pa.Array.from_pandas(series).to_pylist()
        return found
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return [None if pd.api.types.is_scalar(one) and pd.isna(one) else one for one in series.tolist()]
