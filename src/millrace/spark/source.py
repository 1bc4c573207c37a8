"""The data source `millrace`, which creates the readers and writers for Spark.

Every process that plans or runs a part of a query creates its own source from the options. A source holds nothing open.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from millrace.domain.errors import InvalidInput
from millrace.spark import FORMAT
from millrace.spark.options import READS, SourceOptions, read_options
from millrace.spark.schema import EVENTS, JOBS, TABLES, table_named
from millrace.spark.table import Table

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"


class MillraceSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return _table(read_options(self.options, *READS)).spark()

    def reader(self, schema: StructType) -> DataSourceReader:
        from millrace.spark.reader import FilteringReader, TableReader

        options = read_options(self.options, "batch")
        pushing = options["pushFilters"] and filters_are_pushed()
        return (FilteringReader if pushing else TableReader)(options, _requested(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from millrace.spark.stream import FeedStreamReader, JobStreamReader

        options = read_options(self.options, "stream")
        table = _requested(options, schema)
        if table.name not in (EVENTS.name, JOBS.name):
            raise InvalidInput(f"the tables events and jobs can be read as a stream, not {table.name}")
        return (FeedStreamReader if table.name == EVENTS.name else JobStreamReader)(options, table)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from millrace.spark.sink.writer import writer

        return writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from millrace.spark.sink.writer import stream_writer

        return stream_writer(self.options, schema, overwrite)


def filters_are_pushed() -> bool:
    """Return whether the session has turned filter pushdown on. With pushdown on, Spark plans the read with a program
    of its own, so this function checks whether the module of that program is loaded in this process.
    """
    return _PUSHDOWN in sys.modules


def _table(options: SourceOptions) -> Table:
    name = options["table"]
    if name is None:
        raise InvalidInput(f"name the table by option('table', …): {', '.join(TABLES)}")
    table = table_named(name)
    return table if options["columns"] is None else table.pruned(options["columns"])


def _requested(options: SourceOptions, schema: StructType) -> Table:
    """Return the requested table. A schema given by the user selects columns, like the option `columns`. It may make
    columns nullable. Raises InvalidInput if it changes a type, or makes a nullable column not null.
    """
    chosen = _table(options).pruned([field.name for field in schema.fields])
    for ours, theirs in zip(chosen.spark().fields, schema.fields, strict=True):
        if ours.dataType != theirs.dataType or (ours.nullable and not theirs.nullable):
            said = f"{theirs.dataType.simpleString()}{'' if theirs.nullable else ' not null'}"
            raise InvalidInput(
                f"column {ours.name} of {chosen.name} is {ours.dataType.simpleString()}, not {said}. Read it as it is, "
                "and change it afterwards"
            )
    columns = tuple(
        msgspec.structs.replace(ours, nullable=theirs.nullable)
        for ours, theirs in zip(chosen.columns, schema.fields, strict=True)
    )
    return msgspec.structs.replace(chosen, columns=columns)
