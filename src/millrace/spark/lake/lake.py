"""Reads a lake: its tables and analyses, as DataFrames of the given session.

A `Lake` object shows all tables as they were after one take, even while pipelines run. `refresh()` reads the newest
take.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.spark.lake import analysis
from millrace.spark.lake.analysis import By
from millrace.spark.lake.delta import TableSnapshot, snapshot
from millrace.spark.lake.instants import instant
from millrace.spark.lake.place import AsOf, LakePlace, LakeSnapshot, LakeState
from millrace.spark.lake.reading import read
from millrace.spark.lake.tables import DAY, TABLES

When = datetime | None


class Lake:
    """Reads a lake: `Lake("lake", spark).throughput(by="hour").show()`. Instants are UTC. `since` is inclusive, `until`
    exclusive.
    """

    def __init__(self, path: str | os.PathLike[str], spark: SparkSession, as_of: AsOf | None = None) -> None:
        """Open the lake after its newest take; with `as_of`, after the take with this number, or after the newest take
        that was complete at this time.
        """
        self.place = LakePlace(path)
        self.spark = spark
        self.snapshot: LakeSnapshot = self.place.require(as_of)

    @property
    def state(self) -> LakeState:
        return self.snapshot.state

    def refresh(self) -> Lake:
        self.snapshot = self.place.require()
        return self

    # ── tables ────────────────────────────────────────────────────────────────────────────────

    def events(self, since: When = None, until: When = None) -> DataFrame:
        """Return the events of all jobs, with the columns `take` and `day`."""
        return self._between("events", since, until)

    def attempts(self, since: When = None, until: When = None) -> DataFrame:
        """Return the runs that ended between `since` and `until`, with the column `day`."""
        return self._between("attempts", since, until)

    def jobs(self) -> DataFrame:
        """Return one row for each job in the copied history."""
        return self._all("jobs")

    def open_runs(self) -> DataFrame:
        """Return the runs that have not ended at the end of the copied history: they wait to be claimed, or a worker
        holds them.
        """
        return self._all("open_runs").select(
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
        return self._all("groups")

    def payloads(self, since: When = None, until: When = None) -> DataFrame:
        """Return payload and result of the jobs that finished between `since` and `until`, as far as the lake keeps
        them (`--payloads`). The table is read in its newest version, also with `as_of`.
        """
        return self._days_of("payloads", snapshot(self.place.location, "payloads"), since, until)

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

    def rows(self, name: str, since: When, until: When) -> DataFrame:
        """Return the rows between `since` and `until` of a table that is divided by days, without the day. Only files
        of these days are opened.
        """
        return self._between(name, since, until).drop(DAY)

    def _between(self, name: str, since: When, until: When) -> DataFrame:
        return self._days_of(name, self.snapshot.tables[name], since, until)

    def _days_of(self, name: str, found: TableSnapshot | None, since: When, until: When) -> DataFrame:
        table = TABLES[name]
        assert table.day_by is not None
        first, last = _utc(since), _utc(until)
        days = (None if at is None else at.date().isoformat() for at in (first, last))
        rows = read(self.spark, self.place.location, name, [] if found is None else found.between(*days))
        if first is not None:
            rows = rows.where(F.col(table.day_by) >= F.lit(first))
        if last is not None:
            rows = rows.where(F.col(table.day_by) < F.lit(last))
        return rows

    def _all(self, name: str) -> DataFrame:
        return read(self.spark, self.place.location, name, self.snapshot.of(name))


def _utc(at: When) -> When:
    return None if at is None else (at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC))
