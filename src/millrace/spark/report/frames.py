"""Queries that compute the figures of a report from the lake's tables. Each function takes and returns DataFrames.

The period of a report is divided into intervals of equal length. The column `start` is the start of an interval, in
milliseconds. If the intervals are long enough, the lake's tables by minute or hour are read; otherwise its events and
attempts.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millrace.domain.event import Kind
from millrace.spark.lake.histogram import percentiles
from millrace.spark.lake.instants import begin_of, millis

OTHERS = "(other queues)"
COUNTED = (Kind.ENQUEUED, Kind.COMPLETED, Kind.BURIED, Kind.RETRIED, Kind.CANCELLED, Kind.RECLAIMED)
FAILED = (Kind.RETRIED.value, Kind.BURIED.value)


def start_of(at: str, step: int) -> Column:
    return begin_of(millis(at), step)


def counted(events: DataFrame) -> DataFrame:
    """Return one row for each event, with the columns of `Lake.throughput`: at, queue, and a column for each kind of
    event.
    """
    return events.select(
        "at", "queue", *((F.col("kind") == kind.value).cast("long").alias(kind.value) for kind in COUNTED)
    )


def busiest_queues(counts: DataFrame, most: int) -> DataFrame:
    """Return the queues in which the most jobs were accepted, completed or buried."""
    weight = sum((F.sum(kind.value) for kind in COUNTED[1:3]), F.sum(Kind.ENQUEUED.value))
    return counts.groupBy("queue").agg(weight.alias("weight")).orderBy(F.desc("weight"), "queue").limit(most)


def flow(counts: DataFrame, step: int, queues: Sequence[str]) -> DataFrame:
    """Return the number of events in each interval, by queue. The columns are start, queue, and one for each kind of
    event. Queues that are not in `queues` are combined into one.
    """
    return counts.groupBy(start_of("at", step).alias("start"), _named(queues).alias("queue")).agg(
        *(F.sum(kind.value).alias(kind.value) for kind in COUNTED)
    )


def lengths_by_hour(parts: DataFrame) -> DataFrame:
    """Return the lake's histogram of durations, with the columns of `histogram.measured`."""
    return parts.select(millis("hour").alias("ms"), "queue", "measure", "bucket", "runs", "total_ms", "max_ms")


def quantiles(lengths: DataFrame, step: int, queues: Sequence[str]) -> DataFrame:
    """Return percentiles of durations for each interval (`queue` is null), for each queue (`start` is null), and for
    the whole period (both are null).
    """
    nothing = {"start": F.lit(None).cast("long"), "queue": F.lit(None).cast("string")}
    key = {"start": begin_of(F.col("ms"), step), "queue": _named(queues)}
    rest = ("measure", "bucket", "runs", "total_ms", "max_ms")
    cuts = [
        lengths.select(*((key if name in kept else nothing)[name].alias(name) for name in key), *rest)
        for kept in ((), ("start",), ("queue",))
    ]
    every = cuts[0].unionAll(cuts[1]).unionAll(cuts[2])
    summed = every.groupBy("start", "queue", "measure", "bucket").agg(
        F.sum("runs").alias("runs"), F.sum("total_ms").alias("total_ms"), F.max("max_ms").alias("max_ms")
    )
    return percentiles(summed, ["start", "queue", "measure"])


def held(attempts: DataFrame, step: int) -> DataFrame:
    """Return how long each worker held jobs in each interval of the period. The columns are start, worker, busy_ms,
    runs, failed.
    """
    mine = attempts.where("worker IS NOT NULL AND claimed_at IS NOT NULL").select(
        "worker",
        millis("claimed_at").alias("since"),
        F.greatest(millis("claimed_at"), millis(F.least("ended_at", "reclaimed_at"))).alias("until"),
        F.col("outcome").isin(*FAILED).cast("long").alias("failed"),
    )
    first, last = begin_of(F.col("since"), step), begin_of(F.col("until"), step)
    spread = mine.withColumn("start", F.explode(F.sequence(first, last, F.lit(step))))
    ends_here = (F.col("start") == last).cast("long")
    return spread.select(
        "start",
        "worker",
        (F.least(F.col("until"), F.col("start") + step) - F.greatest("since", "start")).alias("busy_ms"),
        ends_here.alias("runs"),
        (ends_here * F.col("failed")).alias("failed"),
    )


def held_by_minute(use: DataFrame, step: int) -> DataFrame:
    """Return the same columns as `held`, from the lake's table `worker_use`."""
    return use.select(start_of("at", step).alias("start"), "worker", "busy_ms", "runs", "failed")


def busiest_workers(use: DataFrame) -> DataFrame:
    """Return the workers, the busiest first. The columns are worker, busy_ms, runs, failed, first_start, last_start."""
    return (
        use.groupBy("worker")
        .agg(
            F.sum("busy_ms").alias("busy_ms"),
            F.sum("runs").alias("runs"),
            F.sum("failed").alias("failed"),
            F.min("start").alias("first_start"),
            F.max("start").alias("last_start"),
        )
        .orderBy(F.desc("busy_ms"), "worker")
    )


def use_of(use: DataFrame, workers: Sequence[str]) -> DataFrame:
    """Return how long these workers held jobs in each interval. The columns are start, worker, busy_ms."""
    chosen = use.where(F.col("worker").isin(list(workers)))
    return chosen.groupBy("start", "worker").agg(F.sum("busy_ms").alias("busy_ms"))


def samples(attempts: DataFrame, marks: Sequence[str]) -> DataFrame:
    """Return the first original message of each cause. The columns are fingerprint and message."""
    failed = attempts.where(F.col("error_fingerprint").isin(list(marks)) & F.col("error_message").isNotNull())
    first = F.min_by("error_message", F.struct("ended_at", "seq", "attempt")).alias("message")
    return failed.groupBy(F.col("error_fingerprint").alias("fingerprint")).agg(first)


def failures_of(attempts: DataFrame, marks: Sequence[str], step: int) -> DataFrame:
    """Return the number of failures with these fingerprints in each interval of the period. The columns are start,
    fingerprint, failures.
    """
    failed = attempts.where(F.col("error_fingerprint").isin(list(marks)))
    key = (start_of("ended_at", step).alias("start"), F.col("error_fingerprint").alias("fingerprint"))
    return failed.groupBy(*key).agg(F.count("*").alias("failures"))


def failures_by_hour(errors: DataFrame, marks: Sequence[str], step: int) -> DataFrame:
    """Return the same columns as `failures_of`, from the lake's table `errors`."""
    chosen = errors.where(F.col("fingerprint").isin(list(marks)))
    return chosen.groupBy(start_of("at", step).alias("start"), "fingerprint").agg(F.sum("failures").alias("failures"))


def greatest_groups(shares: DataFrame, most: int, queues: int) -> DataFrame:
    """Return the rows of `Lake.fairness` for the groups with the most running time: at most `most` groups of each
    queue, from at most `queues` queues. The column `known` is the number of all groups of the queue.
    """
    per_queue = Window.partitionBy("queue")
    ranked = (
        shares.withColumn("place", F.row_number().over(per_queue.orderBy(F.desc("busy_ms"), F.desc("runs"), "group")))
        .withColumn("known", F.count("*").over(per_queue))
        .withColumn("held", F.sum("busy_ms").over(per_queue))
    )
    largest = F.dense_rank().over(Window.orderBy(F.desc("held"), "queue"))
    few = ranked.where(F.col("place") <= most)
    return few.withColumn("queue_place", largest).where(F.col("queue_place") <= queues).orderBy("queue_place", "place")


def _named(queues: Sequence[str]) -> Column:
    return F.when(F.col("queue").isin(list(queues)), F.col("queue")).otherwise(F.lit(OTHERS))
