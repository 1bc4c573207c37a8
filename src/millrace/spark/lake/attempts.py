"""Attempts: one row for each run of a job that has ended. Other runs are in `open_runs`, until a later take ends them.

A run row has everything that is known about one run of a job; see `steps.py`. A run is called open until it has ended.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.domain.event import Kind
from millrace.spark.lake.instants import instant
from millrace.spark.lake.steps import OF_THE_RUN, STEPS

ATTEMPTS = (
    "job string, generation int, seq bigint, attempt int, queue string, task string, worker string, lease string, "
    "available_at timestamp, claimed_at timestamp, ended_at timestamp, wait_ms bigint, run_ms bigint, "
    "duration_ms bigint, outcome string, reason string, error_type string, error_message string, "
    "error_fingerprint string, reclaims int, reclaimed_at timestamp"
)
OPEN_RUNS = OF_THE_RUN


def has_ended() -> Column:
    """Return a boolean column: whether the run has ended, because it was settled, or cancelled while a worker held
    it.
    """
    return F.col("ended").isNotNull() | (F.col("claimed_at").isNotNull() & F.col("cut_at").isNotNull())


def is_open() -> Column:
    """Return a boolean column: whether a worker holds the run, or the run waits to be claimed."""
    held = F.col("claimed_at").isNotNull() | F.col("reclaimed_at").isNotNull()
    waits = F.col("due").isNotNull() & (F.col("gone_n").isNull() | (F.col("gone_n") < F.col("due.n")))
    return ~has_ended() & (held | waits)


def attempts(steps: DataFrame) -> DataFrame:
    """Return the ended runs. Columns are null if their event is missing: it was before the lake's first event, or in a
    gap.
    """
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


def open_runs(steps: DataFrame) -> DataFrame:
    """Return the runs that have not ended, with the columns of the table `open_runs`."""
    return steps.where(is_open()).select(*OPEN_RUNS)


def carried(rows: DataFrame) -> DataFrame:
    """Return rows of the table `open_runs` as run rows. Their columns about the job are empty, because an earlier take
    has already written them.
    """
    return STEPS.select(rows, {}, list(OF_THE_RUN))
