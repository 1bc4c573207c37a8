"""Defines tables by their columns. The Arrow type and the Spark type of a column are derived from one definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from millrace.domain.errors import InvalidInput, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


class Column(msgspec.Struct, frozen=True):
    """A column of a table; `type` is in SQL syntax."""

    name: str
    type: str
    help: str
    nullable: bool = False


class Table(msgspec.Struct, frozen=True):
    name: str
    help: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def ddl(self) -> str:
        """The columns in SQL syntax, as `spark.createDataFrame(rows, schema)` and `StructType.fromDDL` accept them."""
        return ", ".join(
            f"{column.name} {column.type}{'' if column.nullable else ' NOT NULL'}" for column in self.columns
        )

    def pruned(self, names: Sequence[str]) -> Table:
        """Return the table with only these columns, in this order. Raises InvalidInput for an unknown or repeated
        column.
        """
        by_name = {column.name: column for column in self.columns}
        for name in names:
            if name not in by_name:
                raise InvalidInput(f"table {self.name} has no column {name!r}. {did_you_mean(name, by_name)}")
        if not names or len(set(names)) < len(names):
            raise InvalidInput(f"name at least one column of {self.name}, and each only once; not {', '.join(names)!r}")
        return Table(self.name, self.help, tuple(by_name[name] for name in names))

    def arrow(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([pa.field(one.name, arrow_type(one.type), one.nullable) for one in self.columns])

    def spark(self) -> StructType:
        from pyspark.sql.types import StructField, StructType

        return StructType([StructField(one.name, spark_type(one.type), one.nullable) for one in self.columns])


def arrow_type(written: str) -> pa.DataType:
    import pyarrow as pa

    if written.startswith("array<"):
        return pa.list_(pa.field("element", arrow_type(_inside(written))))
    if written.startswith("map<"):
        key, value = _inside(written).split(", ")
        return pa.map_(pa.field("key", arrow_type(key), False), pa.field("value", arrow_type(value)))
    if written.startswith("struct<"):
        return pa.struct([pa.field(name, arrow_type(kind)) for name, kind in _fields(written)])
    plain: dict[str, pa.DataType] = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    return plain[written]


def spark_type(written: str) -> DataType:
    from pyspark.sql import types

    if written.startswith("array<"):
        return types.ArrayType(spark_type(_inside(written)))
    if written.startswith("map<"):
        key, value = _inside(written).split(", ")
        return types.MapType(spark_type(key), spark_type(value))
    if written.startswith("struct<"):
        return types.StructType([types.StructField(name, spark_type(kind)) for name, kind in _fields(written)])
    plain: dict[str, DataType] = {
        "string": types.StringType(),
        "bigint": types.LongType(),
        "int": types.IntegerType(),
        "boolean": types.BooleanType(),
        "binary": types.BinaryType(),
        "timestamp": types.TimestampType(),
    }
    return plain[written]


def _inside(written: str) -> str:
    return written[written.index("<") + 1 : -1]


def _fields(written: str) -> list[tuple[str, str]]:
    """Return the names and types of the fields of a struct. Nested types are not supported."""
    parts = (part.partition(": ") for part in _inside(written).split(", "))
    return [(name, kind) for name, _, kind in parts]
