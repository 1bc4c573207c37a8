"""Merges partial rows with the same key into one row. Several takes can each have a partial row.

`Parts` defines for each column how its values are merged. The result does not depend on the order of the partial rows,
nor on the number of takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

if TYPE_CHECKING:
    import pyarrow as pa


class How(Enum):
    """How the values of a column are merged. `LATEST` takes the greatest value, `EARLIEST` the least, `TOTAL` the sum.
    Nulls are ignored. Rows with equal `KEY` columns are merged.

    Structs are compared by their first field. This is the number of an event and not its time, because clocks can be
    set back.
    """

    KEY = "key"
    LATEST = "latest"
    EARLIEST = "earliest"
    TOTAL = "total"


_ARROW = {How.LATEST: "max", How.EARLIEST: "min", How.TOTAL: "sum"}


@dataclass(frozen=True)
class Parts:
    """The columns of a table of partial rows. `columns` maps each name to its type and to how its values are merged."""

    columns: Mapping[str, tuple[str, How]]

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    @property
    def key(self) -> list[str]:
        return [name for name, (_, how) in self.columns.items() if how is How.KEY]

    @property
    def ddl(self) -> str:
        return ", ".join(f"{name} {kind}" for name, (kind, _) in self.columns.items())

    def gathered(self, rows: DataFrame) -> DataFrame:
        """Return the rows merged into one row for each key."""
        values_by_name = [
            gather(F.col(name), how).alias(name) for name, (_, how) in self.columns.items() if how is not How.KEY
        ]
        return rows.groupBy(*self.key).agg(*values_by_name).select(*self.names)

    def merged(self, rows: pa.Table) -> pa.Table:
        """Do the same as `gathered` to an Arrow table. Columns must not be structs."""
        values = [(name, _ARROW[how]) for name, (_, how) in self.columns.items() if how is not How.KEY]
        found = rows.group_by(self.key).aggregate(values)
        return found.select([*self.key, *(f"{name}_{how}" for name, how in values)]).rename_columns(
            [*self.key, *(name for name, _ in values)]
        )

    def select(self, rows: DataFrame, values_by_name: Mapping[str, Column], carried: Sequence[str] = ()) -> DataFrame:
        """Return `rows` with the columns of this table. A column has the value in `values_by_name`, or, if it is in
        `carried`, its value in `rows`; otherwise it is null or 0.
        """
        return rows.select(*(self._column(name, values_by_name, carried) for name in self.columns))

    def _column(self, name: str, values_by_name: Mapping[str, Column], carried: Sequence[str]) -> Column:
        kind, how = self.columns[name]
        if name in values_by_name:
            return values_by_name[name].cast(kind).alias(name)
        if name in carried:
            return F.col(name)
        return F.lit(0 if how is How.TOTAL else None).cast(kind).alias(name)


def gather(values: Column, how: How) -> Column:
    match how:
        case How.EARLIEST:
            return F.min(values)
        case How.TOTAL:
            return F.sum(values)
        case _:
            return F.max(values)
