"""Reads a lake: its tables and analyses, as DataFrames of the given session.

A `Lake` object shows the lake as it was when the object was created, even while pipelines run. `refresh()` reads the
newest state.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.spark.lake import analysis
from millrace.spark.lake.analysis import By
from millrace.spark.lake.attempts import still_open
from millrace.spark.lake.files import read
from millrace.spark.lake.instants import day_of, instant, millis
from millrace.spark.lake.jobs import jobs
from millrace.spark.lake.manifest import LakeManifest
from millrace.spark.lake.place import LakePlace
from millrace.spark.lake.tables import TABLES

When = datetime | None


class Lake:
    """Reads a lake: `Lake("lake", spark).throughput(by="hour").show()`. Instants are UTC. `since` is inclusive, `until`
    exclusive.
    """

    def __init__(self, path: str | os.PathLike[str], spark: SparkSession) -> None:
        self.place = LakePlace(path)
        self.spark = spark
        self.manifest: LakeManifest = self.place.require()

    def refresh(self) -> Lake:
        self.manifest = self.place.require()
        return self

    # ── tables ────────────────────────────────────────────────────────────────────────────────

    def events(self, since: When = None, until: When = None) -> DataFrame:
        """Return the events of all jobs, with the column `day`."""
        return self.rows("events", since, until).withColumn("day", day_of(millis("at")))

    def attempts(self, since: When = None, until: When = None) -> DataFrame:
        """Return the runs that ended between `since` and `until`."""
        return self.rows("attempts", since, until)

    def jobs(self) -> DataFrame:
        """Return one row for each job in the copied history."""
        return jobs(self.parts("jobs"))

    def open_runs(self) -> DataFrame:
        """Return the runs that have not ended at the end of the copied history: they wait to be claimed, or a worker
        holds them.
        """
        rows = still_open(self.parts("pending"))
        return rows.select(
            "job",
            "generation",
            "seq",
            "attempt",
            "queue",
            "task",
            "worker",
            instant(F.col("due.at")).alias("available_at"),
            instant("claimed_at").alias("claimed_at"),
        )

    def groups(self) -> DataFrame:
        """Return the group of each job that has one. The table is empty unless the pipeline has looked up groups
        (`--groups`).
        """
        fold = TABLES["groups"].fold
        assert fold is not None
        return fold(self.parts("groups"))

    # ── analysis ──────────────────────────────────────────────────────────────────────────────

    def throughput(self, by: By = "minute", since: When = None, until: When = None) -> DataFrame:
        return analysis.throughput(self.rows("throughput", since, until), by)

    def durations(self, by: By = "hour", since: When = None, until: When = None) -> DataFrame:
        """Return waiting and running times. With `by="minute"`, every attempt of the period is read, so keep the period
        short.
        """
        if by == "minute":
            return analysis.recent(self.attempts(since, until), by)
        return analysis.durations(self.rows("durations", since, until), by)

    def slowest(self, since: When = None, until: When = None) -> DataFrame:
        return analysis.slowest(self.rows("durations", since, until))

    def errors(self, since: When = None, until: When = None) -> DataFrame:
        return analysis.errors(self.rows("errors", since, until))

    def errors_over_time(self, by: By = "hour", since: When = None, until: When = None) -> DataFrame:
        return analysis.errors_over_time(self.rows("errors", since, until), by)

    def worker_use(self, by: By = "minute", since: When = None, until: When = None) -> DataFrame:
        return analysis.worker_use(self.rows("worker_use", since, until), by)

    def fairness(self, by: By = "hour", since: When = None, until: When = None) -> DataFrame:
        return analysis.fairness(self.attempts(since, until), self.groups(), by)

    # ── files ─────────────────────────────────────────────────────────────────────────────────

    def parts(self, name: str) -> DataFrame:
        """Return the rows of a table as the pipeline runs wrote them, without merging partial rows."""
        return read(self.spark, self.place.path, self.manifest.of(name), TABLES[name].ddl)

    def rows(self, name: str, since: When, until: When) -> DataFrame:
        """Return the rows between `since` and `until` of a table that is divided by days, without merging partial rows.
        Only files of these days are opened.
        """
        table = TABLES[name]
        assert table.day_by is not None
        first, last = _utc(since), _utc(until)
        files = self.manifest.of(name, *(None if at is None else at.date().isoformat() for at in (first, last)))
        rows = read(self.spark, self.place.path, files, table.ddl)
        if first is not None:
            rows = rows.where(F.col(table.day_by) >= F.lit(first))
        if last is not None:
            rows = rows.where(F.col(table.day_by) < F.lit(last))
        return rows


def _utc(at: When) -> When:
    return None if at is None else (at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC))
