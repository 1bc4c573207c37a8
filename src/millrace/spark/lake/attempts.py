"""Attempts: one row for each run of a job that has ended. Other runs are carried into the next pipeline run.

A run row has everything that is known about one run of a job; see `steps.py`. A run is called open until it has ended.
"""

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


def pending(steps: DataFrame, run: int) -> DataFrame:
    """Return the rows that this pipeline run adds to the table `pending`: the runs that are open now, and the runs that
    were open after an earlier pipeline run and have ended since. `steps` has one row for each run (see `steps.py`).
    """
    kept = steps.where(is_open() | F.col("carried"))
    return PENDING.select(kept, {"run": F.lit(run), "closed": ~is_open()}, list(OF_THE_RUN))


def newest_of_each(rows: DataFrame) -> DataFrame:
    """Return the newest row of each run of a job.

    `rows` are rows of the table `pending`, in which several pipeline runs may each have written a row for the same run
    of a job. Rows of runs that have ended (`closed`) are kept.
    """
    newest = Window.partitionBy("seq", "attempt").orderBy(F.col("run").desc())
    return rows.withColumn("newest", F.row_number().over(newest)).where("newest = 1").drop("newest")


def still_open(rows: DataFrame) -> DataFrame:
    return newest_of_each(rows).where("NOT closed")


def carried(rows: DataFrame, said: DataFrame) -> DataFrame:
    """Return the open runs in `rows` for which `said` has new events. Their columns about the job are empty, because an
    earlier pipeline run has already written them.
    """
    keys = said.select("seq", F.col("about").alias("attempt")).distinct()
    wanted = rows.join(keys, ["seq", "attempt"], "left_semi")
    return STEPS.select(still_open(wanted), {"carried": F.lit(True)}, list(OF_THE_RUN))
