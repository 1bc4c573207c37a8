"""The tables of a lake: their columns, the day of a row, and how rows of several pipeline runs are merged."""

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
class LakeTable:
    """A table of a lake.

    If `day_by` is set, the table is divided by days: each row is stored under the day of the column that `day_by`
    names. If `fold` is set, compaction calls it to merge the rows of several pipeline runs; otherwise every row is
    kept. `version` is incremented when columns are added.
    """

    name: str
    ddl: str
    day_by: str | None = None
    fold: Fold | None = None
    version: int = 1

    def day(self) -> Column:
        assert self.day_by is not None
        return day_of(millis(self.day_by)).cast("string")


def _parts(name: str, parts: Parts, day_by: str | None = None) -> LakeTable:
    return LakeTable(name, parts.ddl, day_by, parts.gathered)


GROUPS = "seq bigint, queue string, `group` string"


def _newest_of_each(rows: DataFrame) -> DataFrame:
    return rows.groupBy("seq").agg(F.max("queue").alias("queue"), F.max("group").alias("group"))


TABLES = {
    table.name: table
    for table in (
        LakeTable("events", EVENTS.ddl.replace(" NOT NULL", ""), "at"),
        LakeTable("attempts", ATTEMPTS, "ended_at"),
        _parts("jobs", JOB_PARTS),
        LakeTable("pending", PENDING.ddl, None, still_open),
        _parts("throughput", THROUGHPUT, "minute"),
        _parts("durations", DURATIONS, "hour"),
        _parts("errors", ERRORS, "hour"),
        _parts("worker_use", WORKER_USE, "minute"),
        LakeTable("groups", GROUPS, None, _newest_of_each),
    )
}
BY_DAY = tuple(name for name, table in TABLES.items() if table.day_by is not None)
