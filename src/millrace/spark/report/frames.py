"""From the lake's tables to what a page shows, by steps of the period. Each is a function of DataFrames.

`start` is the beginning of a step in milliseconds. Tables that the lake keeps by minute or hour are read where the step
allows it; a period of minutes is read from events and attempts themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millrace.domain.event import Kind
from millrace.spark.lake.histogram import bucket_of, percentiles
from millrace.spark.lake.instants import begin_of, millis

OTHERS = "(other queues)"
COUNTED = (Kind.ENQUEUED, Kind.COMPLETED, Kind.BURIED, Kind.RETRIED, Kind.CANCELLED, Kind.RECLAIMED)
FAILED = (Kind.RETRIED.value, Kind.BURIED.value)


def start_of(at: str, step: int) -> Column:
    return begin_of(millis(at), step)


def counted(events: DataFrame) -> DataFrame:
    """Events as `Lake.throughput` gives counts of them, each at its own time: at, queue, and a column per kind."""
    return events.select(
        "at", "queue", *((F.col("kind") == kind.value).cast("long").alias(kind.value) for kind in COUNTED)
    )


def busiest_queues(counts: DataFrame, most: int) -> DataFrame:
    """queue, of those with the most jobs accepted and ended."""
    weight = sum((F.sum(kind.value) for kind in COUNTED[1:3]), F.sum(Kind.ENQUEUED.value))
    return counts.groupBy("queue").agg(weight.alias("weight")).orderBy(F.desc("weight"), "queue").limit(most)


def flow(counts: DataFrame, step: int, queues: Sequence[str]) -> DataFrame:
    """start, queue, and a column per kind; queues that are not named are one."""
    return counts.groupBy(start_of("at", step).alias("start"), _named(queues).alias("queue")).agg(
        *(F.sum(kind.value).alias(kind.value) for kind in COUNTED)
    )


def lengths_by_hour(parts: DataFrame) -> DataFrame:
    """The lake's histogram: ms, queue, measure, bucket, runs, total_ms, max_ms."""
    return parts.select(millis("hour").alias("ms"), "queue", "measure", "bucket", "runs", "total_ms", "max_ms")


def lengths_of(attempts: DataFrame) -> DataFrame:
    """The same from runs, each at its own time: waiting when it began, running when it ended."""
    both = [
        attempts.where(F.col(length).isNotNull()).select(
            millis(at).alias("ms"),
            "queue",
            F.lit(measure).alias("measure"),
            bucket_of(F.greatest(F.col(length), F.lit(0))).alias("bucket"),
            F.lit(1).cast("long").alias("runs"),
            F.greatest(F.col(length), F.lit(0)).alias("total_ms"),
            F.greatest(F.col(length), F.lit(0)).alias("max_ms"),
        )
        for measure, length, at in (("wait", "wait_ms", "claimed_at"), ("run", "run_ms", "ended_at"))
    ]
    return both[0].unionAll(both[1])


def quantiles(lengths: DataFrame, step: int, queues: Sequence[str]) -> DataFrame:
    """Percentiles of each step (queue is null), of each queue (start is null), and of all (both are)."""
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
    """How long each worker held jobs in each step: start, worker, busy_ms, runs, failed."""
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
    """The same from the lake's own table."""
    return use.select(start_of("at", step).alias("start"), "worker", "busy_ms", "runs", "failed")


def busiest_workers(use: DataFrame) -> DataFrame:
    """worker, busy_ms, runs, failed, first_start, last_start; the busiest first."""
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
    """start, worker, busy_ms."""
    chosen = use.where(F.col("worker").isin(list(workers)))
    return chosen.groupBy("start", "worker").agg(F.sum("busy_ms").alias("busy_ms"))


def samples(attempts: DataFrame, marks: Sequence[str]) -> DataFrame:
    """fingerprint, message: the first message of each cause, as it was written."""
    failed = attempts.where(F.col("error_fingerprint").isin(list(marks)) & F.col("error_message").isNotNull())
    first = F.min_by("error_message", F.struct("ended_at", "seq", "attempt")).alias("message")
    return failed.groupBy(F.col("error_fingerprint").alias("fingerprint")).agg(first)


def failures_of(attempts: DataFrame, marks: Sequence[str], step: int) -> DataFrame:
    """start, fingerprint, failures."""
    failed = attempts.where(F.col("error_fingerprint").isin(list(marks)))
    key = (start_of("ended_at", step).alias("start"), F.col("error_fingerprint").alias("fingerprint"))
    return failed.groupBy(*key).agg(F.count("*").alias("failures"))


def failures_by_hour(errors: DataFrame, marks: Sequence[str], step: int) -> DataFrame:
    """The same from the lake's own table."""
    chosen = errors.where(F.col("fingerprint").isin(list(marks)))
    return chosen.groupBy(start_of("at", step).alias("start"), "fingerprint").agg(F.sum("failures").alias("failures"))


def greatest_groups(shares: DataFrame, most: int, queues: int) -> DataFrame:
    """The rows of `Lake.fairness` of the groups that held most, in the queues whose groups did; `known` are there."""
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
