"""Analyses of the history. Each function takes tables of the lake as DataFrames and returns a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millrace.domain.errors import InvalidInput
from millrace.domain.event import Kind
from millrace.spark.lake.histogram import measured, percentiles
from millrace.spark.lake.instants import DAY, HOUR, MINUTE, begin_of, instant, millis

By = Literal["minute", "hour", "day"]
STEPS_OF = {"minute": MINUTE, "hour": HOUR, "day": DAY}
KINDS = tuple(kind.value for kind in Kind)


def throughput(rows: DataFrame, by: By = "minute") -> DataFrame:
    """Return the number of events by interval, queue and task. The columns are at, queue, task, and one for each kind
    of event.
    """
    timed = rows.withColumn("at", _begin("minute", by))
    counts = [F.sum(F.when(F.col("kind") == kind, F.col("events")).otherwise(0)).alias(kind) for kind in KINDS]
    return timed.groupBy("at", "queue", "task").agg(*counts)


def durations(rows: DataFrame, by: By = "hour", of: Sequence[str] = ("queue", "task")) -> DataFrame:
    """Return waiting and running times by interval, queue and task. The columns are at, queue, task, measure (`wait` or
    `run`), runs, total, mean, percentiles and maximum. Raises InvalidInput for `by="minute"`; use `recent` instead.
    """
    if by == "minute":
        raise InvalidInput("durations are kept by the hour; by the minute they are read from attempts: see recent()")
    return _percentiles(rows.withColumn("at", _begin("hour", by)), ["at", *of, "measure"])


def recent(attempts: DataFrame, by: By = "minute", of: Sequence[str] = ("queue", "task")) -> DataFrame:
    """Return the columns of `durations`, computed from every single attempt. Use this by the minute, for short
    periods.
    """
    rows = measured(attempts, *of).withColumn("at", instant(begin_of(F.col("ms"), _step(by))))
    return _percentiles(rows, ["at", *of, "measure"])


def slowest(rows: DataFrame) -> DataFrame:
    """Return the tasks by total running time, the longest first, with percentiles of the duration of their
    runs.
    """
    runs = rows.where("measure = 'run'")
    return _percentiles(runs, ["queue", "task"]).orderBy(F.col("total_ms").desc(), "queue", "task")


def errors(rows: DataFrame) -> DataFrame:
    """Return the causes of failures, the most frequent first. Each row has the numbers of retries and deaths, the first
    and the last occurrence, and the id of an example job.
    """
    died = F.col("kind") == Kind.BURIED.value
    found = rows.groupBy("fingerprint", "task", "cause")
    return found.agg(
        F.max("error_type").alias("error_type"),
        F.sum(F.when(F.col("kind") == Kind.RETRIED.value, F.col("events")).otherwise(0)).alias("retries"),
        F.sum(F.when(died, F.col("events")).otherwise(0)).alias("deaths"),
        F.sum("events").alias("failures"),
        F.array_sort(F.collect_set("queue")).alias("queues"),
        F.array_sort(F.collect_set(F.when(died, F.col("reason")))).alias("reasons"),
        F.array_sort(F.collect_set("dead_fingerprint")).alias("dead_fingerprints"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
        F.min("sample_job").alias("sample_job"),
    ).orderBy(F.col("failures").desc(), "fingerprint")


def errors_over_time(rows: DataFrame, by: By = "hour") -> DataFrame:
    """Return the number of failures by interval and cause. The columns are at, fingerprint, task, cause, retries,
    deaths, failures.
    """
    timed = rows.withColumn("at", _begin("hour", by))
    return timed.groupBy("at", "fingerprint", "task", "cause").agg(
        F.sum(F.when(F.col("kind") == Kind.RETRIED.value, F.col("events")).otherwise(0)).alias("retries"),
        F.sum(F.when(F.col("kind") == Kind.BURIED.value, F.col("events")).otherwise(0)).alias("deaths"),
        F.sum("events").alias("failures"),
    )


def worker_use(rows: DataFrame, by: By = "minute") -> DataFrame:
    """Return how busy each worker was in each interval.

    `busy` is the average number of jobs that the worker held. `share` is its busy time divided by the sum of the busy
    times of all workers in that interval.
    """
    timed = rows.withColumn("at", _begin("minute", by))
    summed = timed.groupBy("at", "worker").agg(
        F.sum("busy_ms").alias("busy_ms"), F.sum("runs").alias("runs"), F.sum("failed").alias("failed")
    )
    all_of_them = F.sum("busy_ms").over(Window.partitionBy("at"))
    share = F.when(all_of_them > 0, F.col("busy_ms") / all_of_them).otherwise(F.lit(0.0))
    return summed.withColumn("busy", F.col("busy_ms") / STEPS_OF[by]).withColumn("share", share)


def fairness(attempts: DataFrame, groups: DataFrame, by: By = "hour") -> DataFrame:
    """Return for each group of a queue: its runs, running time, share of the queue's running time, and waiting time.

    `evenness` is Jain's index of the running times of a queue's groups, (Σx)² / (n·Σx²). It is 1 if all groups have the
    same running time.
    """
    grouped = attempts.join(groups.select("seq", "group"), "seq").withColumn("at", _begin("ended_at", by))
    key = ["at", "queue"]
    got = grouped.groupBy(*key, "group").agg(
        F.count("*").alias("runs"),
        F.coalesce(F.sum("run_ms"), F.lit(0)).alias("busy_ms"),
        F.avg("wait_ms").alias("mean_wait_ms"),
        F.percentile_approx("wait_ms", 0.95, 1000).alias("p95_wait_ms"),
    )
    together = Window.partitionBy(*key)
    total, squares = F.sum("busy_ms").over(together), F.sum(F.pow("busy_ms", F.lit(2))).over(together)
    number = F.count("*").over(together)
    return got.select(
        *key,
        "group",
        "runs",
        "busy_ms",
        F.when(total > 0, F.col("busy_ms") / total).otherwise(1 / number).alias("share"),
        "mean_wait_ms",
        "p95_wait_ms",
        F.when(squares > 0, F.pow(total, F.lit(2)) / (number * squares)).otherwise(F.lit(1.0)).alias("evenness"),
    )


def _begin(column: str, by: By) -> Column:
    return instant(begin_of(millis(column), _step(by)))


def _step(by: By) -> int:
    if by not in STEPS_OF:
        raise InvalidInput(f"by takes {', '.join(STEPS_OF)}, not {by!r}")
    return STEPS_OF[by]


def _percentiles(rows: DataFrame, key: list[str]) -> DataFrame:
    counted = rows.groupBy(*key, "bucket").agg(
        F.sum("runs").alias("runs"), F.sum("total_ms").alias("total_ms"), F.max("max_ms").alias("max_ms")
    )
    return percentiles(counted, key)
