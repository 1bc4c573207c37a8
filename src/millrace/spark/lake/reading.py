"""Reads files of a lake's tables as DataFrames, without Delta's jar.

Spark's own reader reads a local directory, and prunes partitions by `day`. In a bucket, which Spark cannot read without
the jars of hadoop-aws, executors read the files with pyarrow, as the data source `millrace_lake`. The source has
options instead of a function with the files, so that Spark does not take the result for small and broadcast it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from millrace.spark.lake.delta import DataFile
from millrace.spark.lake.tables import DAY, TABLES
from millrace.spark.lake_location import LakeLocation

FORMAT = "millrace_lake"
BYTES_PER_TASK = 64 << 20
FILES_PER_TASK = 200
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",  # a task per file costs too much
    "spark.sql.adaptive.enabled": "true",
}


@contextmanager
def settings(spark: SparkSession, **more: str) -> Iterator[None]:
    """Set the session settings that the lake's queries need, and restore the previous ones at the end of the block."""
    wanted = {**_SETTINGS, **{name.replace("_", "."): value for name, value in more.items()}}
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def read(spark: SparkSession, location: LakeLocation, name: str, files: Sequence[DataFile]) -> DataFrame:
    """Return the rows of these files. Columns that were added after a file was written are null."""
    table = TABLES[name]
    ddl = table.ddl if table.day_by is None else f"{table.ddl}, {DAY} date"
    if not files:
        return spark.createDataFrame([], ddl)
    root = f"{location.root}/{name}"
    if location.is_local:
        with settings(spark):
            return spark.read.schema(ddl).option("basePath", root).parquet(*(f"{root}/{one.path}" for one in files))
    spark.dataSource.register(LakeFiles)
    shares = json.dumps([[[file.path, file.day] for file in share] for share in _shares(files)])
    return spark.read.format(FORMAT).schema(ddl).options(lake=location.url, table=name, shares=shares).load()


def read_here(location: LakeLocation, name: str, files: Sequence[DataFile]) -> pa.Table:
    """Return the rows of these files in this process, without the day."""
    schema = TABLES[name].arrow
    system = location.file_system()
    tables = [_read(system, f"{location.root}/{name}/{file.path}", schema) for file in files]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _read(system: Any, path: str, schema: pa.Schema) -> pa.Table:
    with pq.ParquetFile(path, filesystem=system) as file:
        return conformed(file.read([name for name in schema.names if name in file.schema_arrow.names]), schema)


def conformed(rows: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return the rows with the columns of the schema. A missing column is null."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _shares(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Return the files in groups, one for each task."""
    shares: list[list[DataFile]] = [[]]
    size = 0
    for file in files:
        if shares[-1] and (size + file.bytes > BYTES_PER_TASK or len(shares[-1]) == FILES_PER_TASK):
            shares.append([])
            size = 0
        shares[-1].append(file)
        size += file.bytes
    return shares


class LakeFiles(DataSource):
    """Reads files of a lake's table. It finds the credentials of the bucket in the environment of each process."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: Any) -> DataSourceReader:
        return LakeFilesReader(dict(self.options))


class FilesOfATask(InputPartition):
    def __init__(self, files: Sequence[Sequence[str]]) -> None:
        super().__init__(None)
        self.files = files


class LakeFilesReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._location, self._table = LakeLocation(options["lake"]), options["table"]
        self._shares = json.loads(options["shares"])

    def partitions(self) -> Sequence[InputPartition]:
        return [FilesOfATask(share) for share in self._shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilesOfATask)
        schema, system = TABLES[self._table].arrow, self._location.file_system()
        for path, day in partition.files:
            with pq.ParquetFile(f"{self._location.root}/{self._table}/{path}", filesystem=system) as file:
                there = [name for name in schema.names if name in file.schema_arrow.names]
                for batch in file.iter_batches(columns=there):
                    rows = conformed(batch, schema)
                    if day is not None:
                        days = pa.array([date.fromisoformat(day)] * rows.num_rows, pa.date32())
                        rows = rows.append_column(DAY, days)
                    yield from rows.to_batches()
