"""Brings the derived tables of a lake up to its events.

The commit to `events` decides what a take contains. The other tables are computed from the events that they lack, which
are read from the lake and not from the store. If a run dies between the commits, the next run completes them in the
same way, with the same result. Only `groups` also reads the store.

`open_runs` is committed last, because the other tables are computed from its previous version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.spark.lake import attempts as runs
from millrace.spark.lake import series
from millrace.spark.lake.delta import CommitConflict, DataFile, TableSnapshot, commit, snapshot
from millrace.spark.lake.errors import LakeBroken
from millrace.spark.lake.feed import EventFeed
from millrace.spark.lake.jobs import job_parts, jobs, parts_of
from millrace.spark.lake.place import LakePlace
from millrace.spark.lake.ranges import RangePlan, Seqs, plan
from millrace.spark.lake.reading import conformed, read, read_here, settings
from millrace.spark.lake.steps import by_run, gathered, with_carried
from millrace.spark.lake.tables import DAY, DERIVED, SERIES, TABLES
from millrace.spark.lake.writing import discard, write, write_here

EVENTS_PER_PARTITION = 500_000
AT_ONCE = 3  # tables that are computed at a time; small ones are mostly query planning
ATTEMPTS = 5  # compactions may intervene
RANGE = "range"
OnProgress = Callable[[str], None]


@dataclass
class TableChange:
    """The change of one table: its new files, and the files that they replace."""

    add: list[DataFile] = field(default_factory=list)
    remove: list[DataFile] = field(default_factory=list)


def derive(
    place: LakePlace,
    spark: SparkSession,
    feed: EventFeed,
    groups: bool,
    on_progress: OnProgress,
    tables: Mapping[str, TableSnapshot] | None = None,
) -> None:
    """Commit the newest take to all tables that lack it. Another process may do the same at the same time: then the
    table keeps the files of the process that commits first.
    """
    for _ in range(ATTEMPTS):
        found = (place.tables() if tables is None else tables) or {}
        tables = None
        take = found["events"].take
        behind = {name: found[name] for name in DERIVED if found[name].take < take}
        if not behind:
            return
        if len({table.take for table in behind.values()}) > 1:
            takes = ", ".join(f"{table.name} {table.take}" for table in behind.values())
            raise LakeBroken(f"tables of the lake at {place.location} are behind by different takes ({takes})")
        changes = Derivation(place, spark, feed, found, groups, on_progress).changes(behind)
        if _committed(place, take, behind, changes):
            return
    raise LakeBroken(f"the lake at {place.location} is changed again and again by another process. Run again later")


def _committed(
    place: LakePlace, take: int, behind: Mapping[str, TableSnapshot], changes: Mapping[str, TableChange]
) -> bool:
    """Commit the changes in order. Return False if a table was changed, but does not include the take yet."""
    for number, (name, table) in enumerate(behind.items()):
        try:
            commit(place.location, table, take, changes[name].add, changes[name].remove)
        except CommitConflict:
            discard(place.location, name, changes[name].add)
            newer = snapshot(place.location, name)
            if newer is None or newer.take < take:
                for rest in [*behind][number + 1 :]:
                    discard(place.location, rest, changes[rest].add)
                return False
    return True


class Derivation:
    """Computes the changes of the derived tables from the events that they lack."""

    def __init__(
        self,
        place: LakePlace,
        spark: SparkSession,
        feed: EventFeed,
        tables: Mapping[str, TableSnapshot],
        groups: bool,
        on_progress: OnProgress,
    ) -> None:
        self._location, self._spark, self._feed, self._tables = place.location, spark, feed, tables
        self._groups, self._on_progress = groups, on_progress
        self._take = tables["events"].take

    def changes(self, behind: Mapping[str, TableSnapshot]) -> dict[str, TableChange]:
        after = next(iter(behind.values())).take
        new = [file for file in self._tables["events"].files if file.takes is None or file.takes[1] > after]
        partitions = max(2, -(-sum(file.rows for file in new) // EVENTS_PER_PARTITION))
        with settings(self._spark, spark_sql_shuffle_partitions=str(partitions)):
            events = self._read("events", new).where(F.col("take") > after)
            return self._computed(events, partitions, set(behind))

    def _computed(self, events: DataFrame, partitions: int, wanted: set[str]) -> dict[str, TableChange]:
        touched = np.unique(_numbers(events.select("seq").distinct(), "seq"))
        open_plan = plan(self._tables["open_runs"].files, touched)
        steps = gathered(by_run(events), partitions)
        if open_plan.replaced:
            steps = with_carried(steps, runs.carried(self._read("open_runs", open_plan.replaced)), partitions)
        steps = steps.persist()
        ended = runs.attempts(steps)
        computed: dict[str, Callable[[], TableChange]] = {
            "attempts": lambda: TableChange(
                self._write(ended.withColumn(DAY, TABLES["attempts"].day()), "attempts", DAY)
            ),
            "throughput": lambda: self._merged("throughput", series.throughput_parts(events)),
            "durations": lambda: self._merged("durations", series.duration_parts(ended)),
            "errors": lambda: self._merged("errors", series.error_parts(events)),
            "worker_use": lambda: self._merged("worker_use", series.worker_parts(ended)),
            "groups": lambda: self._changed_groups(touched) if self._groups else TableChange(),
            "jobs": lambda: self._changed_jobs(steps, touched, partitions),
            "open_runs": lambda: self._rewritten("open_runs", runs.open_runs(steps), open_plan),
        }
        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                found = {name: pool.submit(self._timed, name, computed[name]) for name in DERIVED if name in wanted}
            return {name: change.result() for name, change in found.items()}
        finally:
            steps.unpersist()

    def _timed(self, name: str, compute: Callable[[], TableChange]) -> TableChange:
        began = time.monotonic()
        change = compute()
        rows = sum(file.rows for file in change.add)
        self._on_progress(f"take {self._take}: {rows:,} rows of {name} in {time.monotonic() - began:.1f} s")
        return change

    def _appended(self, name: str, rows: DataFrame) -> TableChange:
        return TableChange(self._write(rows.withColumn(DAY, TABLES[name].day()), name, DAY))

    def _changed_jobs(self, steps: DataFrame, touched: Seqs, partitions: int) -> TableChange:
        planned = plan(self._tables["jobs"].files, touched)
        parts = job_parts(steps)  # the runs of a job are in the same partition, so nothing is moved
        if planned.replaced:
            parts = parts.unionByName(parts_of(self._read("jobs", planned.replaced))).repartition(partitions, "seq")
        return self._rewritten("jobs", jobs(parts), planned)

    def _changed_groups(self, touched: Seqs) -> TableChange:
        planned = plan(self._tables["groups"].files, touched)
        seqs = self._spark.createDataFrame(pa.table({"seq": touched}))
        new = self._feed.groups().join(seqs, "seq", "left_semi").select("seq", "queue", "group")
        both = self._read("groups", planned.replaced).unionByName(new)
        found = both.groupBy("seq").agg(F.max("queue").alias("queue"), F.max("group").alias("group"))
        return self._rewritten("groups", found, planned)

    def _rewritten(self, name: str, rows: DataFrame, planned: RangePlan) -> TableChange:
        return TableChange(self._write(rows.withColumn(RANGE, planned.number()), name, RANGE), planned.replaced)

    def _merged(self, name: str, parts: DataFrame) -> TableChange:
        """Merge partial rows into the rows of their days, and rewrite these days. This process does it, because
        a day has few rows: counts by minute or hour.
        """
        table = TABLES[name]
        new = conformed(parts.toArrow(), table.arrow)
        days = {str(day) for day in pc.unique(_days(new, table.day_by)).to_pylist()}
        old = [file for file in self._tables[name].files if file.day in days]
        rows = SERIES[name].merged(pa.concat_tables([read_here(self._location, name, old), new]))
        rows = conformed(rows, table.arrow).append_column(DAY, _days(rows, table.day_by))
        return TableChange(write_here(rows.to_batches(), self._location, name, DAY), old)

    def _read(self, name: str, files: list[DataFile]) -> DataFrame:
        return read(self._spark, self._location, name, files)

    def _write(self, rows: DataFrame, name: str, by: str) -> list[DataFile]:
        return write(rows, self._location, name, by)


def _numbers(rows: DataFrame, column: str) -> Seqs:
    found: Seqs = rows.toArrow()[column].to_numpy().astype(np.int64)
    return found


def _days(rows: pa.Table, column: str | None) -> pa.ChunkedArray:
    return rows[column].cast(pa.date32())
