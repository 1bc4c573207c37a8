"""A lake to read: its tables and what follows from them, as DataFrames of the session it was given.

It shows the lake as it was when it was opened, whatever runs meanwhile; `refresh()` looks again.
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
from millrace.spark.lake.manifest import Manifest
from millrace.spark.lake.place import Place
from millrace.spark.lake.tables import TABLES

When = datetime | None


class Lake:
    """`Lake("lake", spark).throughput(by="hour").show()`; every instant is UTC, and `since`/`until` are half open."""

    def __init__(self, path: str | os.PathLike[str], spark: SparkSession) -> None:
        self.place = Place(path)
        self.spark = spark
        self.manifest: Manifest = self.place.require()

    def refresh(self) -> Lake:
        self.manifest = self.place.require()
        return self

    # ── tables ────────────────────────────────────────────────────────────────────────────────

    def events(self, since: When = None, until: When = None) -> DataFrame:
        """Every transition of every job, with the `day` it happened."""
        return self._rows("events", since, until).withColumn("day", day_of(millis("at")))

    def attempts(self, since: When = None, until: When = None) -> DataFrame:
        """Every run that has ended, by the time it ended."""
        return self._rows("attempts", since, until)

    def jobs(self) -> DataFrame:
        """Every job, as far as it is known."""
        return jobs(self.parts("jobs"))

    def open_runs(self) -> DataFrame:
        """What waits to be claimed, or is held, at the end of what was taken."""
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
        """Jobs that belong to a group, where the pipeline was asked to look them up (`--groups`)."""
        fold = TABLES["groups"].fold
        assert fold is not None
        return fold(self.parts("groups"))

    # ── analysis ──────────────────────────────────────────────────────────────────────────────

    def throughput(self, by: By = "minute", since: When = None, until: When = None) -> DataFrame:
        return analysis.throughput(self._rows("throughput", since, until), by)

    def durations(self, by: By = "hour", since: When = None, until: When = None) -> DataFrame:
        """By the minute it reads attempts, so name a short span then."""
        if by == "minute":
            return analysis.recent(self.attempts(since, until), by)
        return analysis.durations(self._rows("durations", since, until), by)

    def slowest(self, since: When = None, until: When = None) -> DataFrame:
        return analysis.slowest(self._rows("durations", since, until))

    def errors(self, since: When = None, until: When = None) -> DataFrame:
        return analysis.errors(self._rows("errors", since, until))

    def errors_over_time(self, by: By = "hour", since: When = None, until: When = None) -> DataFrame:
        return analysis.errors_over_time(self._rows("errors", since, until), by)

    def worker_use(self, by: By = "minute", since: When = None, until: When = None) -> DataFrame:
        return analysis.worker_use(self._rows("worker_use", since, until), by)

    def fairness(self, by: By = "hour", since: When = None, until: When = None) -> DataFrame:
        return analysis.fairness(self.attempts(since, until), self.groups(), by)

    # ── files ─────────────────────────────────────────────────────────────────────────────────

    def parts(self, name: str) -> DataFrame:
        """The rows of a table as they were written, by all runs."""
        return read(self.spark, self.place.path, self.manifest.of(name), TABLES[name].ddl)

    def _rows(self, name: str, since: When, until: When) -> DataFrame:
        """Rows of a table that is kept by days; files of other days are not opened."""
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
