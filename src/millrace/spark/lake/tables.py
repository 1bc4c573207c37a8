"""The tables of a lake: their columns, and how they are divided into files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column

from millrace.spark.lake.attempts import ATTEMPTS, OPEN_RUNS
from millrace.spark.lake.gather import Parts
from millrace.spark.lake.instants import day_of, millis
from millrace.spark.lake.jobs import JOBS
from millrace.spark.lake.series import DURATIONS, ERRORS, THROUGHPUT, WORKER_USE
from millrace.spark.schema import EVENTS
from millrace.spark.table import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

DAY = "day"


@dataclass(frozen=True)
class LakeTable:
    """A table of a lake. `columns` maps each name to its type.

    If `day_by` is set, the table is partitioned by the day of the column that `day_by` names, and has the column `day`.
    Otherwise each of its files contains a range of `seq`.
    """

    name: str
    columns: Mapping[str, str]
    day_by: str | None = None

    @property
    def ddl(self) -> str:
        """The columns in SQL syntax, without the day."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self.columns.items())

    @property
    def arrow(self) -> pa.Schema:
        """The columns of the table's files, which do not contain the day."""
        import pyarrow as pa

        return pa.schema([(name, arrow_type(kind)) for name, kind in self.columns.items()])

    @property
    def whole_arrow(self) -> pa.Schema:
        """All columns, as Delta clients see them."""
        import pyarrow as pa

        return self.arrow if self.day_by is None else self.arrow.append(pa.field(DAY, pa.date32()))

    def day(self) -> Column:
        assert self.day_by is not None
        return day_of(millis(self.day_by))


def _columns(ddl: str) -> dict[str, str]:
    return {name: kind for name, _, kind in (part.partition(" ") for part in ddl.split(", "))}


def _series(name: str, parts: Parts, day_by: str) -> LakeTable:
    return LakeTable(name, {column: kind for column, (kind, _) in parts.columns.items()}, day_by)


GROUPS = {"seq": "bigint", "queue": "string", "group": "string"}
PAYLOADS = {
    "job": "string",
    "seq": "bigint",
    "generation": "int",
    "queue": "string",
    "task": "string",
    "state": "string",
    "finished_at": "timestamp",
    "serde": "string",
    "payload": "binary",
    "result": "binary",
    "headers": "map<string, string>",
}
SERIES = {"throughput": THROUGHPUT, "durations": DURATIONS, "errors": ERRORS, "worker_use": WORKER_USE}
TABLES = {
    table.name: table
    for table in (
        LakeTable("events", {**{column.name: column.type for column in EVENTS.columns}, "take": "int"}, "at"),
        LakeTable("attempts", _columns(ATTEMPTS), "ended_at"),
        _series("throughput", THROUGHPUT, "minute"),
        _series("durations", DURATIONS, "hour"),
        _series("errors", ERRORS, "hour"),
        _series("worker_use", WORKER_USE, "minute"),
        LakeTable("groups", GROUPS),
        LakeTable("jobs", _columns(JOBS)),
        LakeTable("open_runs", {name: kind for name, (kind, _) in OPEN_RUNS.items()}),
        LakeTable("payloads", PAYLOADS, "finished_at"),
    )
}
OPTIONAL = ("payloads",)  # a lake may lack them, and they have no part in its takes
REQUIRED = tuple(name for name in TABLES if name not in OPTIONAL)
DERIVED = tuple(name for name in REQUIRED if name != "events")  # in the order of their commits
BY_DAY = tuple(name for name, table in TABLES.items() if table.day_by is not None)
