"""Attempts: one row per run of a job that has ended, and what is still open, to be carried into the next run."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millrace.domain.event import Kind
from millrace.spark.lake.gather import How, Parts
from millrace.spark.lake.instants import instant
from millrace.spark.lake.steps import OF_THE_RUN, STEPS

ATTEMPTS = (
    "job string, generation int, seq bigint, attempt int, queue string, task string, worker string, lease string, "
    "available_at timestamp, claimed_at timestamp, ended_at timestamp, wait_ms bigint, run_ms bigint, "
    "duration_ms bigint, outcome string, reason string, error_type string, error_message string, "
    "error_fingerprint string, reclaims int, reclaimed_at timestamp"
)
PENDING = Parts({**OF_THE_RUN, "run": ("bigint", How.LATEST), "closed": ("boolean", How.LATEST)})


def has_ended() -> Column:
    """By its holder, or cut off while somebody held it."""
    return F.col("ended").isNotNull() | (F.col("claimed_at").isNotNull() & F.col("cut_at").isNotNull())


def is_open() -> Column:
    """Somebody holds it, or it waits to be claimed."""
    held = F.col("claimed_at").isNotNull() | F.col("reclaimed_at").isNotNull()
    waits = F.col("due").isNotNull() & (F.col("gone_n").isNull() | (F.col("gone_n") < F.col("due.n")))
    return ~has_ended() & (held | waits)


def attempts(steps: DataFrame) -> DataFrame:
    """Runs that have ended. What lies before the beginning of the lake, or in a gap, is null."""
    due, unblocked = F.col("due"), F.col("unblocked")
    available = F.when(unblocked.n > due.n, F.greatest(due.at, unblocked.at)).otherwise(due.at)
    ended = F.coalesce(F.col("ended.at"), F.col("cut_at"))
    claimed = F.col("claimed_at")
    return steps.where(has_ended()).select(
        "job",
        "generation",
        "seq",
        "attempt",
        "queue",
        "task",
        "worker",
        "lease",
        instant(available).alias("available_at"),
        instant(claimed).alias("claimed_at"),
        instant(ended).alias("ended_at"),
        F.greatest(claimed - available, F.when(claimed.isNotNull() & available.isNotNull(), 0)).alias("wait_ms"),
        (ended - claimed).alias("run_ms"),
        F.col("ended.duration_ms").alias("duration_ms"),
        F.coalesce(F.col("ended.kind"), F.lit(Kind.CANCELLED.value)).alias("outcome"),
        F.col("ended.reason").alias("reason"),
        F.col("ended.error_type").alias("error_type"),
        F.col("ended.error_message").alias("error_message"),
        F.col("ended.error_fingerprint").alias("error_fingerprint"),
        F.col("reclaims").cast("int").alias("reclaims"),
        instant("reclaimed_at").alias("reclaimed_at"),
    )


def pending(steps: DataFrame, run: int) -> DataFrame:
    """What is open after this run of the pipeline; a row that was carried into it and is done with is closed."""
    kept = steps.where(is_open() | F.col("carried"))
    return PENDING.select(kept, {"run": F.lit(run), "closed": ~is_open()}, list(OF_THE_RUN))


def newest_of_each(rows: DataFrame) -> DataFrame:
    """Each step as it was last written, open or closed."""
    newest = Window.partitionBy("seq", "attempt").orderBy(F.col("run").desc())
    return rows.withColumn("newest", F.row_number().over(newest)).where("newest = 1").drop("newest")


def still_open(rows: DataFrame) -> DataFrame:
    return newest_of_each(rows).where("NOT closed")


def carried(rows: DataFrame, said: DataFrame) -> DataFrame:
    """The open steps that new events belong to. They say nothing new about their jobs."""
    keys = said.select("seq", F.col("about").alias("attempt")).distinct()
    wanted = rows.join(keys, ["seq", "attempt"], "left_semi")
    return STEPS.select(still_open(wanted), {"carried": F.lit(True)}, list(OF_THE_RUN))
