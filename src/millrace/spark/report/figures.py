"""Computes the figures of a `Report` from a lake, with the queries of `frames`.

Spark computes all sums, so only a limited amount of data reaches this process, whatever the size of the lake.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.domain.errors import InvalidInput
from millrace.domain.event import Kind
from millrace.domain.job import State
from millrace.spark.analytics import Objective
from millrace.spark.lake import Lake
from millrace.spark.lake.analysis import fairness
from millrace.spark.lake.audit import audit
from millrace.spark.lake.audit_store import FeedWithRecords, audit_store
from millrace.spark.lake.histogram import measured
from millrace.spark.lake.instants import millis
from millrace.spark.lake.reading import settings
from millrace.spark.lake.verdict import AuditResult
from millrace.spark.report import frames, model, values
from millrace.spark.report.analytics import analytics_of
from millrace.spark.report.model import Report
from millrace.spark.report.period import DAY, HOUR, MINUTE, Period

QUEUES, WORKERS, TASKS, CAUSES, GROUPS, GROUPED_QUEUES = 40, 20, 15, 15, 10, 6
AT_ONCE = 3
WEEK = 7 * DAY
TITLE = "Job history"


@dataclass(frozen=True)
class Wanted:
    """The options of a report. `since` and `until` are extended to full hours. If `feed` is given, the lake is compared
    with this store.
    """

    since: datetime | None = None
    until: datetime | None = None
    title: str = TITLE
    audit: bool = True
    feed: FeedWithRecords | None = None
    objectives: Sequence[Objective] = ()


ALL = Wanted()


def report_of(lake: Lake, wanted: Wanted = ALL) -> Report:
    """Compute the report and return it. With `wanted.audit`, every event of the lake is also checked, which takes most
    of the time.
    """
    made_at = int(time.time() * 1000)
    with settings(lake.spark):
        reading = _Reading(lake, *_hours(wanted))
        period = reading.period
        report = {} if period is None else reading.parts(period)
        if period is not None:
            whole = wanted.since is None
            report["analytics"] = analytics_of(lake, period, wanted.objectives, WEEK if whole else period.length)
        judged = _judged(lake, wanted.feed) if wanted.audit else None
        source = _source(lake, reading.newest_at, wanted.feed)
    return Report(wanted.title, made_at, source, period, audit=judged, **report)


class _Reading:
    """Queries a lake between two times, for the sections of a report."""

    def __init__(self, lake: Lake, since: datetime | None, until: datetime | None) -> None:
        self._lake = lake
        self._bounds = since, until
        self.newest_at: int | None = None
        self.period = self._find_period()

    def parts(self, period: Period) -> dict[str, Any]:
        """Return the figures of all sections. The queries run in parallel, because most of their time is planning."""
        with ThreadPoolExecutor(AT_ONCE) as beside:
            others: dict[str, Future[Any]] = {
                "workers": beside.submit(self._workers, period),
                "tasks": beside.submit(self._tasks),
                "fairness": beside.submit(self._fairness, period),
            }
            queues = [row["queue"] for row in frames.busiest_queues(self._counts(period), QUEUES).collect()]
            lengths = beside.submit(self._lengths, period, queues)
            flow = frames.flow(self._counts(period), period.step, queues).collect()
            others |= {
                "totals": beside.submit(self._totals, flow),
                "failures": beside.submit(self._failures, period, flow),
            }
            waits, runs = lengths.result()
            found = {name: other.result() for name, other in others.items()}
        known = bool(self._lake.snapshot.of("groups"))
        return found | {"queues": values.flows(flow, period), "waits": waits, "runs": runs, "groups_known": known}

    # ── what there is ─────────────────────────────────────────────────────────────────────────

    def _find_period(self) -> Period | None:
        """Return the period from the first event to the last; None if there are no events. The bounds are exact to the
        minute. If the period is shorter than two hours, they are exact to the millisecond.
        """
        known = _bounds(self._lake.throughput("minute"))
        if known is None:
            return None
        self.newest_at = _last_event(self._lake, known[1])
        bounds = _bounds(self._lake.throughput("minute", *self._bounds))
        if bounds is None:
            return None
        since, until = bounds[0], min(bounds[1] + MINUTE, self.newest_at + 1)
        if until - since < 2 * HOUR:
            exact = _bounds(self._lake.events(*self._bounds))
            since, until = (since, until) if exact is None else (exact[0], exact[1] + 1)
        return Period.of(since, until)

    def _counts(self, period: Period) -> DataFrame:
        if period.step < MINUTE:
            return frames.counted(self._lake.events(*self._bounds))
        return self._lake.throughput("minute", *self._bounds)

    def _attempts(self) -> DataFrame:
        return self._lake.attempts(*self._bounds)

    # ── sections ──────────────────────────────────────────────────────────────────────────────

    def _totals(self, flow: Sequence[Any]) -> model.Totals:
        there = self._lake.jobs().where("pruned_at IS NULL").groupBy("state").agg(F.count("*").alias("jobs"))
        now = {row["state"]: row["jobs"] for row in there.collect()}
        happened = {kind: sum(row[kind.value] for row in flow) for kind in frames.COUNTED}
        return model.Totals(
            accepted=happened[Kind.ENQUEUED],
            completed=happened[Kind.COMPLETED],
            died=happened[Kind.BURIED],
            retries=happened[Kind.RETRIED],
            cancelled=happened[Kind.CANCELLED],
            reclaimed=happened[Kind.RECLAIMED],
            waiting=now.get(State.WAITING, 0),
            running=now.get(State.RUNNING, 0),
            dead_now=now.get(State.DEAD, 0),
        )

    def _lengths(self, period: Period, queues: Sequence[str]) -> tuple[model.Lengths, model.Lengths]:
        if period.step < HOUR:
            lengths = measured(self._attempts(), "queue")
        else:
            lengths = frames.lengths_by_hour(self._lake.rows("durations", *self._bounds))
        rows = frames.quantiles(lengths, period.step, queues).collect()
        return values.measured(rows, "wait", period), values.measured(rows, "run", period)

    def _failures(self, period: Period, flow: Sequence[Any]) -> model.Failures:
        errors = self._lake.errors(*self._bounds)
        rows = (
            errors.withColumn("first", millis("first_at")).withColumn("last", millis("last_at")).limit(CAUSES).collect()
        )
        every = errors.agg(F.count("*").alias("causes"), F.sum("failures").alias("failures")).collect()[0]
        marks = [row["fingerprint"] for row in rows]
        said = {row[0]: row[1] for row in frames.samples(self._attempts(), marks).collect()} if marks else {}
        series = self._failures_over_time(period, marks)
        return model.Failures(
            values.added(flow, period, "retried"),
            values.added(flow, period, "buried"),
            [values.cause(row, said.get(row["fingerprint"]), series.get(row["fingerprint"], ())) for row in rows],
            every["causes"] - len(rows),
            (every["failures"] or 0) - sum(row["failures"] for row in rows),
        )

    def _failures_over_time(self, period: Period, marks: Sequence[str]) -> dict[str, list[int]]:
        if not marks:
            return {}
        if period.step < HOUR:
            found = frames.failures_of(self._attempts(), marks, period.step)
        else:
            found = frames.failures_by_hour(self._lake.errors_over_time("hour", *self._bounds), marks, period.step)
        series: dict[str, list[int]] = {}
        for row in found.collect():
            mine = series.setdefault(row["fingerprint"], [0] * len(period.starts))
            values.put(mine, period, row["start"], row["failures"])
        return series

    def _workers(self, period: Period) -> model.WorkerTable:
        if period.step < MINUTE:
            use = frames.held(self._attempts(), period.step)
        else:
            use = frames.held_by_minute(self._lake.worker_use("minute", *self._bounds), period.step)
        ranked = frames.busiest_workers(use)
        rows = ranked.limit(WORKERS).collect()
        every = ranked.agg(F.count("*").alias("workers"), F.sum("busy_ms").alias("busy_ms")).collect()[0]
        busy = every["busy_ms"] or 0
        over_time = {row["worker"]: [0.0] * len(period.starts) for row in rows}
        for row in frames.use_of(use, list(over_time)).collect() if rows else ():
            start = row["start"]
            covered = min(start + period.step, period.until) - max(start, period.since)
            values.put(over_time[row["worker"]], period, start, row["busy_ms"] / max(1, covered))
        found = [values.worker(row, busy, over_time[row["worker"]], period.step) for row in rows]
        return model.WorkerTable(found, every["workers"] - len(rows), busy - sum(one.busy for one in found))

    def _tasks(self) -> model.Tasks:
        ranked = self._lake.slowest(*self._bounds)
        rows = ranked.limit(TASKS).collect()
        every = ranked.agg(F.count("*").alias("tasks"), F.sum("total_ms").alias("total_ms")).collect()[0]
        found = [model.TaskFigures(row["queue"], row["task"], row["total_ms"], values.quantiles(row)) for row in rows]
        return model.Tasks(
            found, every["tasks"] - len(rows), (every["total_ms"] or 0) - sum(one.total for one in found)
        )

    def _fairness(self, period: Period) -> list[model.Fairness]:
        """Return the fairness of each queue over the whole period."""
        at_once = self._attempts().withColumn("ended_at", F.timestamp_millis(F.lit(period.since)))
        shares = fairness(at_once, self._lake.groups(), "day")
        rows = frames.greatest_groups(shares, GROUPS, GROUPED_QUEUES).collect()
        return [
            values.fair(queue, [row for row in rows if row["queue"] == queue])
            for queue in dict.fromkeys(r["queue"] for r in rows)
        ]


# ── the lake ──────────────────────────────────────────────────────────────────────────────────


def _hours(wanted: Wanted) -> tuple[datetime | None, datetime | None]:
    """Return `since` and `until` of `wanted`, extended to full hours, because the lake keeps durations and errors by
    the hour. Raises InvalidInput if the period is empty.
    """
    since, until = (None if at is None else int(at.timestamp() * 1000) for at in (wanted.since, wanted.until))
    if since is not None and until is not None and since >= until:
        raise InvalidInput("the report's period ends before it begins: --since must be earlier than --until")
    first = None if since is None else since - since % HOUR
    last = None if until is None else -(-until // HOUR) * HOUR
    begin, end = (None if at is None else datetime.fromtimestamp(at / 1000, UTC) for at in (first, last))
    return begin, end


def _bounds(rows: DataFrame) -> tuple[int, int] | None:
    first, last = rows.agg(F.min(millis("at")), F.max(millis("at"))).collect()[0]
    return None if first is None else (first, last)


def _last_event(lake: Lake, minute: int) -> int:
    """Return the time of the last event, which happened in the given minute. If retention has removed this event,
    return the end of the minute.
    """
    found = _bounds(lake.events(since=datetime.fromtimestamp(minute / 1000, UTC)))
    return minute + MINUTE - 1 if found is None else found[1]


def _judged(lake: Lake, feed: FeedWithRecords | None) -> model.AuditFigures:
    verdict: AuditResult = audit(lake)
    if feed is not None:
        audit_store(verdict, lake, feed)
    return model.AuditFigures(
        [model.Promise(check.name, check.sound, check.text) for check in verdict.checks],
        [model.BrokenPromise(found.rule, found.job, found.text) for found in verdict.findings],
        sum(verdict.broken.values()),
    )


def _source(lake: Lake, newest_at: int | None, feed: FeedWithRecords | None) -> model.Source:
    state = lake.state
    return model.Source(
        state.store,
        state.take,
        state.at,
        state.taken,
        newest_at,
        None if feed is None else feed.ahead(state.cursor, None).count,
        state.whole,
        [model.FeedGap(gap.take, gap.lost) for gap in state.gaps],
        sorted(lake.snapshot.dropped.items()),
    )
