"""Taking history into the lake: one stretch of the feed at a time, published by one step or not at all.

The cost of a stretch depends on its length, not on what the lake holds already: events and ended attempts are
appended, what else changes is written as parts that are brought together when read, and of what is open only the rows
that the new events belong to are looked up.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from millrace.domain.errors import CursorExpired
from millrace.spark.lake import attempts as runs
from millrace.spark.lake import series
from millrace.spark.lake.compaction import crowded, fold
from millrace.spark.lake.errors import HistoryLost, OtherStore
from millrace.spark.lake.feed import Feed, Stretch
from millrace.spark.lake.files import DAY, read, require_all, settings, write, written
from millrace.spark.lake.jobs import job_parts
from millrace.spark.lake.manifest import File, Gap, Manifest
from millrace.spark.lake.place import Place
from millrace.spark.lake.steps import gathered, sayings, with_carried
from millrace.spark.lake.tables import TABLES

STRETCH = 5_000_000  # events that are taken and published at a time
EVENTS_PER_PARTITION = 1_000_000
AT_ONCE = 2  # tables that are written beside the attempts
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """How to take. `since` (milliseconds) counts only when the lake is begun; `moved`: the store has a new address;
    `groups`: look up the groups of jobs, None: where that costs little."""

    limit: int | None = None
    since: int | None = None
    accept_gap: bool = False
    moved: bool = False
    groups: bool | None = None


@dataclass
class Taken:
    """What was taken. `manifest` is the newest one, None when there is nothing yet."""

    manifest: Manifest | None
    events: int = 0
    stretches: int = 0
    gaps: list[Gap] = field(default_factory=list)


def take(place: Place, spark: SparkSession, feed: Feed, asked: Asked | None = None, tell: Tell = print) -> Taken:
    """All that there is (or `asked.limit` events), a stretch at a time. Interrupted, it goes on where it was."""
    asked = asked or Asked()
    with place.writing() as newest:
        if newest is not None and newest.store != feed.name and not asked.moved:
            raise OtherStore(place.path, newest.store, feed.name)
        taken = Taken(newest)
        left = asked.limit
        while left is None or left > 0:
            stretch, gap = _ahead(feed, taken.manifest, STRETCH if left is None else min(left, STRETCH), asked)
            if stretch.until == stretch.after and gap is None:
                break
            manifest = Run(place, spark, feed, taken.manifest, stretch, gap, asked, tell).published()
            new = manifest.taken - (0 if taken.manifest is None else taken.manifest.taken)
            taken.manifest, taken.events, taken.stretches = manifest, taken.events + new, taken.stretches + 1
            taken.gaps += [] if gap is None else [gap]
            left = None if left is None else left - max(new, 1)
            if not stretch.more:
                break
        if taken.stretches and taken.manifest is not None and (chosen := crowded(taken.manifest)):
            taken.manifest = fold(place, spark, taken.manifest, chosen, tell).manifest
    return taken


def _ahead(feed: Feed, newest: Manifest | None, limit: int, asked: Asked) -> tuple[Stretch, Gap | None]:
    after = None if newest is None else newest.cursor
    try:
        return feed.ahead(after, limit, asked.since), None
    except CursorExpired as expired:
        if not asked.accept_gap:
            raise HistoryLost(expired) from None
        run = 1 if newest is None else newest.run + 1
        gap = Gap(expired.cursor, expired.oldest, expired.lost, run)
        return feed.ahead(expired.oldest, limit), gap


class Run:
    """One stretch: its tables are written into a directory of its own, and published by one manifest."""

    def __init__(
        self,
        place: Place,
        spark: SparkSession,
        feed: Feed,
        newest: Manifest | None,
        stretch: Stretch,
        gap: Gap | None,
        asked: Asked,
        tell: Tell,
    ) -> None:
        self._place, self._spark, self._feed, self._newest = place, spark, feed, newest
        self._stretch, self._gap, self._asked, self._tell = stretch, gap, asked, tell
        self._number = 1 if newest is None else newest.run + 1
        self._partitions = max(2, -(-stretch.count // EVENTS_PER_PARTITION))
        self._files: dict[str, list[File]] = {}

    def published(self) -> Manifest:
        self._directory = self._place.directory_for(self._number)
        try:
            with settings(self._spark, spark_sql_shuffle_partitions=str(self._partitions)):
                self._write_all()
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        manifest = self._manifest()
        self._place.publish(manifest)
        return manifest

    def _write_all(self) -> None:
        """Every table's new rows. The store is read once; the rest works on the events that were written."""
        self._keep("events", self._feed.events(self._stretch))
        events = self._back("events")
        with ThreadPoolExecutor(AT_ONCE) as beside:  # small runs are more planning than work, which goes side by side
            others = [
                beside.submit(self._keep, "throughput", series.throughput_parts(events)),
                beside.submit(self._keep, "errors", series.error_parts(events)),
            ]
            steps = self._steps(events).persist()
            try:
                self._keep("attempts", runs.attempts(steps))
                attempts = self._back("attempts")
                others += [
                    beside.submit(self._keep, "durations", series.duration_parts(attempts)),
                    beside.submit(self._keep, "worker_use", series.worker_parts(attempts)),
                ]
                self._keep("pending", runs.pending(steps, self._number))
                self._keep("jobs", job_parts(steps))
            finally:
                steps.unpersist()
            if self._feed.has_few_jobs() if self._asked.groups is None else self._asked.groups:
                self._keep("groups", _of_these(self._feed.groups(), self._back("jobs")))
            for other in others:
                other.result()

    def _keep(self, name: str, rows: DataFrame) -> None:
        began = time.monotonic()
        table = TABLES[name]
        by_day = rows if table.day_by is None else rows.withColumn(DAY, table.day())
        sent = write(by_day, self._directory, name, by=() if table.day_by is None else (DAY,))
        files = self._files[name] = written(self._place.path, self._directory / name, self._number)
        require_all(files, sent, self._directory / name)
        count, seconds = sum(file.rows for file in files), time.monotonic() - began
        self._tell(f"run {self._number}: {count:,} rows of {name} in {seconds:.1f} s")

    def _back(self, name: str) -> DataFrame:
        return read(self._spark, self._place.path, self._files[name], TABLES[name].ddl)

    def _steps(self, events: DataFrame) -> DataFrame:
        said = sayings(events)
        new = gathered(said, self._partitions)
        files = [] if self._newest is None else self._newest.of("pending")
        if not files:
            return new
        pending = read(self._spark, self._place.path, files, TABLES["pending"].ddl)
        return with_carried(new, runs.carried(pending, said), self._partitions)

    def _manifest(self) -> Manifest:
        newest, gap = self._newest, self._gap
        before = {} if newest is None else newest.files
        return Manifest(
            self._number,
            "take",
            int(time.time() * 1000),
            self._stretch.after,
            self._stretch.until,
            self._feed.name,
            {name: (*before.get(name, ()), *self._files.get(name, ())) for name in TABLES},
            whole=self._stretch.whole and gap is None if newest is None else newest.whole,
            taken=(0 if newest is None else newest.taken) + sum(file.rows for file in self._files["events"]),
            gaps=(() if newest is None else newest.gaps) + (() if gap is None else (gap,)),
            dropped={} if newest is None else newest.dropped,
            schemas={name: table.version for name, table in TABLES.items()},
        )


def _of_these(groups: DataFrame, jobs: DataFrame) -> DataFrame:
    """The groups of the jobs that this run is about: others were written before, or are not part of the history."""
    return groups.join(jobs.select("seq"), "seq", "left_semi").select("seq", "queue", "group")
