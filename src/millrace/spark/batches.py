"""Turns pages of records into Arrow batches. The columns that filters use are built first. The other columns are built
only for rows that match the filters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.spark.columns import event_arrays, job_arrays, worker_arrays
from millrace.spark.filters import Condition, passing
from millrace.spark.schema import DEAD, EVENTS, JOBS, WORKERS
from millrace.spark.table import Column, Table

Build = Callable[[Sequence[Column], Sequence[Any]], list[pa.Array]]
_BUILD: dict[str, Build] = {
    JOBS.name: job_arrays,
    DEAD.name: job_arrays,
    EVENTS.name: event_arrays,
    WORKERS.name: worker_arrays,
}


class Batches:
    """Builds Arrow batches of `table`, which may have only some of its columns. It must have every column that
    `conditions` use.
    """

    def __init__(self, table: Table, conditions: Sequence[Condition] = ()) -> None:
        self._columns = table.columns
        self._schema = table.arrow()
        self._conditions = tuple(conditions)
        asked = {one.column for one in conditions}
        self._first = [column for column in table.columns if column.name in asked]
        self._rest = [column for column in table.columns if column.name not in asked]
        self._build = _BUILD[table.name]

    def batch(self, records: Sequence[Any]) -> pa.RecordBatch | None:
        """Return an Arrow batch of the records that match the conditions; None if no record matches."""
        if not records:
            return None
        made: dict[str, pa.Array] = {}
        if self._conditions:
            made = self._built(self._first, records)
            mask = passing(self._conditions, made)
            kept = pc.sum(mask).as_py() or 0
            if kept == 0:
                return None
            if kept < len(records):
                made = {name: values.filter(mask) for name, values in made.items()}
                records = list(compress(records, mask.to_pylist()))
        made.update(self._built(self._rest, records))
        return pa.RecordBatch.from_arrays([made[column.name] for column in self._columns], schema=self._schema)

    def _built(self, columns: list[Column], records: Sequence[Any]) -> dict[str, pa.Array]:
        arrays = self._build(columns, records)
        return {column.name: values for column, values in zip(columns, arrays, strict=True)}
