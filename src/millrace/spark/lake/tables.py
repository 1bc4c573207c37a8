"""The tables of a lake: their columns, the day a row belongs to, and how rows of several runs become fewer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.spark.lake.attempts import ATTEMPTS, PENDING, still_open
from millrace.spark.lake.gather import Parts
from millrace.spark.lake.instants import day_of, millis
from millrace.spark.lake.jobs import JOB_PARTS
from millrace.spark.lake.series import DURATIONS, ERRORS, THROUGHPUT, WORKER_USE
from millrace.spark.schema import EVENTS

Fold = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Table:
    """`day_by` names the instant whose day a row is filed under; a table without one is kept as a whole.

    `fold` brings rows of several runs together; a table without one only has its files joined, and keeps every row.
    `version` grows when columns are added.
    """

    name: str
    ddl: str
    day_by: str | None = None
    fold: Fold | None = None
    version: int = 1

    def day(self) -> Column:
        assert self.day_by is not None
        return day_of(millis(self.day_by)).cast("string")


def _parts(name: str, parts: Parts, day_by: str | None = None) -> Table:
    return Table(name, parts.ddl, day_by, parts.gathered)


GROUPS = "seq bigint, queue string, `group` string"


def _newest_of_each(rows: DataFrame) -> DataFrame:
    return rows.groupBy("seq").agg(F.max("queue").alias("queue"), F.max("group").alias("group"))


TABLES = {
    table.name: table
    for table in (
        Table("events", EVENTS.ddl.replace(" NOT NULL", ""), "at"),
        Table("attempts", ATTEMPTS, "ended_at"),
        _parts("jobs", JOB_PARTS),
        Table("pending", PENDING.ddl, None, still_open),
        _parts("throughput", THROUGHPUT, "minute"),
        _parts("durations", DURATIONS, "hour"),
        _parts("errors", ERRORS, "hour"),
        _parts("worker_use", WORKER_USE, "minute"),
        Table("groups", GROUPS, None, _newest_of_each),
    )
}
BY_DAY = tuple(name for name, table in TABLES.items() if table.day_by is not None)
