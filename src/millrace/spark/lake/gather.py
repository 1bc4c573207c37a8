"""Gathering: how rows that each tell a part of something become one row that tells it all.

A table of parts says for each column how its values come together. None of the ways minds the order of the parts, nor
in how many runs of the pipeline they were written, so a lake built in slices equals one built at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


class How(Enum):
    """`LATEST` and `EARLIEST` compare structs by their first field, the number of an event: clocks may be set back,
    numbers are not. Both also serve for what only one part says."""

    KEY = "key"
    LATEST = "latest"
    EARLIEST = "earliest"
    TOTAL = "total"


@dataclass(frozen=True)
class Parts:
    """Columns of a table of parts: name → (type, how its values come together)."""

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
        """One row per key."""
        told = [gather(F.col(name), how).alias(name) for name, (_, how) in self.columns.items() if how is not How.KEY]
        return rows.groupBy(*self.key).agg(*told).select(*self.names)

    def select(self, rows: DataFrame, told: Mapping[str, Column], carried: Sequence[str] = ()) -> DataFrame:
        """Rows in this shape: `told` as given, `carried` under their own names, the others null or nothing yet."""
        return rows.select(*(self._column(name, told, carried) for name in self.columns))

    def _column(self, name: str, told: Mapping[str, Column], carried: Sequence[str]) -> Column:
        kind, how = self.columns[name]
        if name in told:
            return told[name].cast(kind).alias(name)
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
