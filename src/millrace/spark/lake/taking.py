"""Copies history into the lake, one part of the feed (a stretch) at a time. A stretch is published completely or not at
all.

The cost of a stretch depends on its length, not on the size of the lake. Events and ended attempts are appended. Other
changes are written as partial rows, which are merged when they are read. Open runs are looked up only for new events.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from millrace.domain.errors import CursorExpired, CursorUnknown
from millrace.spark.lake import attempts as runs
from millrace.spark.lake import series
from millrace.spark.lake.compaction import crowded, fold
from millrace.spark.lake.errors import HistoryLost, HistoryReplaced, OtherStore
from millrace.spark.lake.feed import EventFeed, Stretch
from millrace.spark.lake.files import DAY, read, require_all, settings, write, written
from millrace.spark.lake.jobs import job_parts
from millrace.spark.lake.manifest import File, LakeGap, LakeManifest
from millrace.spark.lake.place import LakePlace
from millrace.spark.lake.steps import by_run, gathered, with_carried
from millrace.spark.lake.tables import TABLES

STRETCH = 5_000_000  # events that are copied and published at a time
EVENTS_PER_PARTITION = 1_000_000
AT_ONCE = 2  # tables that are written in parallel to the attempts
OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class TakeRequest:
    """The options of a pipeline run. `since`, in milliseconds, applies only to a new lake. `accept_gap` lets the run
    continue after events that were removed before they were copied. `moved` allows a store with another address.
    `groups` says whether to look up the groups of jobs; None means only if that costs little.
    """

    limit: int | None = None
    since: int | None = None
    accept_gap: bool = False
    moved: bool = False
    groups: bool | None = None


@dataclass
class Taken:
    """The result of a pipeline run. `manifest` is the newest manifest of the lake; None if the lake has none yet."""

    manifest: LakeManifest | None
    events: int = 0
    stretches: int = 0
    gaps: list[LakeGap] = field(default_factory=list)


def take(
    place: LakePlace,
    spark: SparkSession,
    feed: EventFeed,
    request: TakeRequest | None = None,
    on_progress: OnProgress = print,
) -> Taken:
    """Copy all new events, or at most `request.limit`, one stretch of the feed at a time. After an interruption, the
    next call continues after the last published stretch.
    """
    request = request or TakeRequest()
    with place.writing() as newest:
        if newest is not None and newest.store != feed.name and not request.moved:
            raise OtherStore(place.path, newest.store, feed.name)
        taken = Taken(newest)
        left = request.limit
        while left is None or left > 0:
            stretch, gap = _ahead(feed, taken.manifest, STRETCH if left is None else min(left, STRETCH), request)
            if stretch.until == stretch.after and gap is None:
                break
            manifest = LakeRun(place, spark, feed, taken.manifest, stretch, gap, request, on_progress).published()
            new = manifest.taken - (0 if taken.manifest is None else taken.manifest.taken)
            taken.manifest, taken.events, taken.stretches = manifest, taken.events + new, taken.stretches + 1
            taken.gaps += [] if gap is None else [gap]
            left = None if left is None else left - max(new, 1)
            if not stretch.more:
                break
        if taken.stretches and taken.manifest is not None and (chosen := crowded(taken.manifest)):
            taken.manifest = fold(place, spark, taken.manifest, chosen, on_progress).manifest
    return taken


def _ahead(
    feed: EventFeed, newest: LakeManifest | None, limit: int, request: TakeRequest
) -> tuple[Stretch, LakeGap | None]:
    after = None if newest is None else newest.cursor
    try:
        return feed.ahead(after, limit, request.since), None
    except CursorExpired as expired:
        if not request.accept_gap:
            raise HistoryLost(expired) from None
        run = 1 if newest is None else newest.run + 1
        gap = LakeGap(expired.cursor, expired.oldest, expired.lost, run)
        return feed.ahead(expired.oldest, limit), gap
    except CursorUnknown as unknown:
        raise HistoryReplaced(unknown) from None


class LakeRun:
    """Copies one stretch of the feed: writes its tables to a new directory, and publishes them with one manifest."""

    def __init__(
        self,
        place: LakePlace,
        spark: SparkSession,
        feed: EventFeed,
        newest: LakeManifest | None,
        stretch: Stretch,
        gap: LakeGap | None,
        request: TakeRequest,
        on_progress: OnProgress,
    ) -> None:
        self._place, self._spark, self._feed, self._newest = place, spark, feed, newest
        self._stretch, self._gap, self._request, self._on_progress = stretch, gap, request, on_progress
        self._number = 1 if newest is None else newest.run + 1
        self._partitions = max(2, -(-stretch.count // EVENTS_PER_PARTITION))
        self._files: dict[str, list[File]] = {}

    def published(self) -> LakeManifest:
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
        """Write the new rows of all tables. Events are read from the store once; the other tables are computed from the
        written events.
        """
        self._keep("events", self._feed.events(self._stretch))
        events = self._back("events")
        with ThreadPoolExecutor(AT_ONCE) as beside:  # small runs are mostly query planning, which runs in parallel
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
            if self._feed.has_few_jobs() if self._request.groups is None else self._request.groups:
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
        self._on_progress(f"run {self._number}: {count:,} rows of {name} in {seconds:.1f} s")

    def _back(self, name: str) -> DataFrame:
        return read(self._spark, self._place.path, self._files[name], TABLES[name].ddl)

    def _steps(self, events: DataFrame) -> DataFrame:
        said = by_run(events)
        new = gathered(said, self._partitions)
        files = [] if self._newest is None else self._newest.of("pending")
        if not files:
            return new
        pending = read(self._spark, self._place.path, files, TABLES["pending"].ddl)
        return with_carried(new, runs.carried(pending, said), self._partitions)

    def _manifest(self) -> LakeManifest:
        newest, gap = self._newest, self._gap
        before = {} if newest is None else newest.files
        return LakeManifest(
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
    """Return the groups of the jobs in `jobs`, which are the jobs of this pipeline run. The other groups are already in
    the lake, or their jobs are not in the lake.
    """
    return groups.join(jobs.select("seq"), "seq", "left_semi").select("seq", "queue", "group")
