"""Writes the Parquet files of a table, on executors or on the driver. A commit makes them part of the table.

Each file contains rows of one day, or of one range of `seq`. Its name is new, so that a task which Spark runs twice
does not overwrite the file of the other run. A file that no commit names is ignored by readers; vacuum deletes it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from millrace.spark.lake.delta import DataFile
from millrace.spark.lake.errors import LakeBroken
from millrace.spark.lake.tables import DAY, TABLES
from millrace.spark.lake_location import LakeLocation

OPEN_FILES = 32  # days that a task writes at a time
WRITTEN = "path string, bytes bigint, rows bigint, day string, stats string"
_REPEATED = frozenset(
    {"kind", "queue", "task", "state", "worker", "reason", "error_type", "error_traceback", "outcome", "measure"}
    | {"cause", "fingerprint", "group"}
)  # columns with few different values
Source = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def write(rows: DataFrame, location: LakeLocation, table: str, by: str, source: Source = iter) -> list[DataFile]:
    """Write the rows on executors, and return the files. Rows with equal values in the column `by` are in the same
    file; the files do not contain this column. `source` replaces the batches of a task by those to write.
    """
    found = rows.mapInArrow(partial(_write_task, location, table, by, source), WRITTEN).collect()
    files = [DataFile(row["path"], row["bytes"], row["rows"], row["day"], stats=row["stats"]) for row in found]
    if location.is_local:
        _require_here(location, table, files)
    return files


def write_here(batches: Iterable[pa.RecordBatch], location: LakeLocation, table: str, by: str) -> list[DataFile]:
    """Write the rows in this process, and return the files."""
    return list(_written(batches, location, table, by))


def discard(location: LakeLocation, table: str, files: Iterable[DataFile]) -> None:
    """Delete files that are not part of the table."""
    system = location.file_system()
    for file in files:
        try:
            system.delete_file(f"{location.root}/{table}/{file.path}")
        except FileNotFoundError:
            continue


def _require_here(location: LakeLocation, table: str, files: list[DataFile]) -> None:
    """Raise LakeBroken unless this process sees the files that the executors wrote."""
    system, root = location.file_system(), f"{location.root}/{table}"
    infos = system.get_file_info([f"{root}/{file.path}" for file in files])
    lost = [file for file, info in zip(files, infos, strict=True) if info.size != file.bytes]
    if lost:
        rows, there = sum(file.rows for file in files), sum(file.rows for file in files if file not in lost)
        raise LakeBroken(
            f"Spark wrote {rows:,} rows to {root}, and {there:,} are there. Is it one directory for all machines? "
            "Executors must see the lake's under the same path, e.g. on a network file system. Nothing was changed"
        )


def _write_task(
    location: LakeLocation, table: str, by: str, source: Source, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    names = [part.split()[0] for part in WRITTEN.split(", ")]
    files = [{name: getattr(file, name) for name in names} for file in _written(source(batches), location, table, by)]
    if files:
        text, number = pa.string(), pa.int64()
        kinds = zip(names, (text, number, number, text, text), strict=True)
        yield pa.RecordBatch.from_pylist(files, schema=pa.schema(list(kinds)))


def _written(batches: Iterable[pa.RecordBatch], location: LakeLocation, table: str, by: str) -> Iterator[DataFile]:
    schema = TABLES[table].arrow
    files: dict[Any, _OpenFile] = {}
    for batch in batches:
        for value, part in _divided(batch, by):
            if value not in files:
                if len(files) == OPEN_FILES:
                    yield files.pop(next(iter(files))).close()
                files[value] = _OpenFile(location, table, str(value) if by == DAY else None, schema)
            files[value].write(part)
    for file in files.values():
        yield file.close()


def _divided(batch: pa.RecordBatch, by: str) -> Iterator[tuple[Any, pa.RecordBatch]]:
    column = batch[by]
    values = pc.unique(column).to_pylist()
    for value in values:
        yield value, batch if len(values) == 1 else batch.filter(pc.equal(column, value))


class _OpenFile:
    def __init__(self, location: LakeLocation, table: str, day: str | None, schema: pa.Schema) -> None:
        self._location, self._schema, self._day = location, schema, day
        folder = "" if day is None else f"{DAY}={day}/"
        self._path = f"{folder}part-{secrets.token_hex(16)}.zstd.parquet"
        self._full = f"{location.root}/{table}/{self._path}"
        self._rows = 0
        self._metadata: list[pq.FileMetaData] = []
        system = location.file_system()
        if location.is_local:
            system.create_dir(os.path.dirname(self._full))
        self._sink = system.open_output_stream(self._full)
        repeated = [name for name in schema.names if name in _REPEATED]
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression="zstd", use_dictionary=repeated, metadata_collector=self._metadata
        )

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [_cast(batch[field.name], field.type) for field in self._schema]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._rows += batch.num_rows

    def close(self) -> DataFile:
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        self._location.flush(self._full)
        return DataFile(self._path, size, self._rows, self._day, stats=_stats(self._metadata[0], self._rows))


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if values.type == kind else values.cast(kind)


def _stats(metadata: pq.FileMetaData, rows: int) -> str:
    """Return Delta's statistics of the file: for numbers and timestamps, the least and the greatest value."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for index in range(metadata.num_columns):
        parts = [group.column(index) for group in groups]
        name = parts[0].path_in_schema
        found = [part.statistics for part in parts]
        if "." in name or parts[0].physical_type not in ("INT32", "INT64") or any(one is None for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        known = [one for one in found if one.has_min_max]
        if known:
            least[name] = _json(min(one.min for one in known))
            greatest[name] = _json(max(one.max for one in known))
    return json.dumps({"numRecords": rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _json(value: Any) -> Any:
    return value if isinstance(value, int) else f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03}Z"
