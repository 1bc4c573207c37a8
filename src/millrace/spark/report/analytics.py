"""Reads the analytics views (`spark/analytics`) for a report."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.spark.analytics import Objective, register_views
from millrace.spark.analytics.register import drop_views
from millrace.spark.lake import Lake
from millrace.spark.lake.instants import begin_of, millis
from millrace.spark.report import analytics_model as model
from millrace.spark.report.period import DAY, HOUR, Period

PREFIX = "millrace_report_"  # so that no view of the caller's session is replaced
SHARED = ("slo_counts", "backlog_hours")  # small, and read by several views
AT_ONCE = 3
BUDGET_DAYS = 28
TRENDS, COSTS, CAUSES, QUEUES = 12, 8, 10, 40


def analytics_of(lake: Lake, period: Period, objectives: Sequence[Objective], length: int) -> model.Analytics:
    """Return the rows of the views for at most `length` milliseconds before the end of the period, in full hours."""
    length = -(-min(length, period.length) // HOUR) * HOUR
    until = datetime.fromtimestamp(period.until / 1000, UTC)
    register_views(lake, objectives, until=until, length=timedelta(milliseconds=length), prefix=PREFIX)
    try:
        return _read(lake, period, bool(objectives), length)
    finally:
        drop_views(lake, PREFIX)


def _read(lake: Lake, period: Period, has_objectives: bool, length: int) -> model.Analytics:
    hourly = Period(period.since, period.until, max(period.step, HOUR))
    for name in SHARED:
        lake.spark.catalog.cacheTable(PREFIX + name)
    with ThreadPoolExecutor(AT_ONCE) as beside:
        trends = beside.submit(_trends, _view(lake, "task_trends"))
        causes = beside.submit(_causes, _view(lake, "failure_trends"))
        backlog = beside.submit(_backlog, lake, hourly)
        tasks = beside.submit(_costs, _view(lake, "task_cost").withColumnRenamed("task", "name"))
        groups = beside.submit(_costs, _view(lake, "group_cost").withColumnRenamed("group_name", "name"))
        objectives = _objectives(lake, period) if has_objectives else []
        compared, changed = trends.result()
        open_at, forecasts = backlog.result()
        costs = tasks.result(), groups.result()
        return model.Analytics(
            length, hourly, open_at, forecasts, objectives, changed, compared, *costs, causes.result()
        )


def _view(lake: Lake, name: str) -> DataFrame:
    return lake.spark.table(PREFIX + name)


def _objectives(lake: Lake, period: Period) -> list[model.ObjectiveFigures]:
    days = range((period.until - 1) // DAY - BUDGET_DAYS + 1, (period.until - 1) // DAY + 1)
    missed: dict[tuple[Any, ...], list[int]] = {}
    key = ("task", "measure", "within_ms", "target")
    for row in _view(lake, "slo_daily").withColumn("at", millis("day")).collect():
        if row["at"] // DAY in days:
            mine = missed.setdefault(tuple(row[name] for name in key), [0] * BUDGET_DAYS)
            mine[row["at"] // DAY - days.start] = row["missed"]
    return [
        model.ObjectiveFigures(
            task=row["task"],
            measure=row["measure"],
            within=row["within_ms"],
            target=row["target"],
            jobs=row["jobs"],
            missed=row["missed"],
            kept=row["kept_share"],
            budget_left=row["budget_left"],
            burn=[row["burn_1h"], row["burn_6h"], row["burn_3d"]],
            alert=row["alert"],
            missed_by_day=missed[tuple(row[name] for name in key)],
        )
        for row in _view(lake, "slo_status").orderBy("budget_left", *key).collect()
    ]


def _trends(view: DataFrame) -> tuple[int, list[model.TaskTrend]]:
    """Return the number of compared tasks, and those that changed: the slowest first."""
    rows = view.collect()
    changed = sorted((row for row in rows if row["trend"] != "steady"), key=lambda row: -row["slower_share"])
    columns = ("task", "trend", "p50_ms", "previous_p50_ms", "p95_ms", "previous_p95_ms", "slower_share")
    return len(rows), [model.TaskTrend(*(row[name] for name in columns)) for row in changed[:TRENDS]]


def _costs(view: DataFrame) -> list[model.Cost]:
    rows = view.orderBy(F.desc("busy_ms"), "name").limit(COSTS).collect()
    has_queue = "queue" in view.columns
    return [
        model.Cost(
            name="no group" if row["name"] is None else row["name"],
            queue=row["queue"] if has_queue else None,
            runs=row["runs"],
            busy=row["busy_ms"],
            failed=row["failed_ms"],
            share=row["share"] or 0.0,
        )
        for row in rows
    ]


def _backlog(lake: Lake, period: Period) -> tuple[list[tuple[str, list[int]]], list[model.Forecast]]:
    """Return the open jobs of each queue at the end of each interval, and the forecasts. An interval without a row has
    the value of the one before it.
    """
    starts = period.starts
    begin = F.greatest(begin_of(F.col("at"), period.step), F.lit(starts[0] - period.step))
    hours = _view(lake, "backlog_hourly").withColumn("at", millis("hour")).groupBy("queue", begin.alias("start"))
    found: dict[str, list[int]] = {}
    for row in hours.agg(F.max_by("open_jobs", "at").alias("open_jobs")).orderBy("start").collect():
        values = found.setdefault(row["queue"], [0] * len(starts))
        place = max(0, period.place_of(row["start"]))
        values[place:] = [row["open_jobs"]] * (len(starts) - place)
    ends = {name: millis(name) for name in ("empty_at", "earliest_empty_at", "latest_empty_at")}
    ahead = _view(lake, "backlog_forecast").where("open_jobs > 0").withColumns(ends)
    rows = ahead.orderBy(F.desc("open_jobs"), "queue").limit(QUEUES).collect()
    series = sorted(found.items(), key=lambda one: (-max(one[1]), one[0]))[:QUEUES]
    return series, [model.Forecast(*row) for row in rows]


def _causes(view: DataFrame) -> list[model.CauseTrend]:
    named = ("fingerprint", "task", "error_type", "sample_message", "sample_job", "trend", "jobs", "expected_jobs")
    rows = (
        view.where("trend IN ('new', 'rising')")
        .withColumns({"first_at": millis("first_at"), "last_at": millis("last_at")})
        .orderBy(F.desc("jobs"), "fingerprint")
        .limit(CAUSES)
        .collect()
    )
    return [model.CauseTrend(*(row[name] for name in (*named, "first_at", "last_at"))) for row in rows]
