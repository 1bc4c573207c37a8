"""Jobs: one row for each job and generation. Each pipeline run writes partial rows, which are merged when read."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.domain.job import FINISHED
from millrace.spark.lake.gather import How, Parts
from millrace.spark.lake.instants import instant
from millrace.spark.lake.steps import OF_THE_JOB

JOBS = (
    "job string, generation int, seq bigint, queue string, task string, state string, enqueued_at timestamp, "
    "first_claimed_at timestamp, finished_at timestamp, reason string, attempts int, failures int, retries bigint, "
    "snoozes bigint, releases bigint, reclaims bigint, replays bigint, error_fingerprint string, archived boolean, "
    "pruned_at timestamp, events bigint, first_n int, last_n int, oldest_at timestamp"
)
JOB_PARTS = Parts(
    {
        "seq": ("bigint", How.KEY),
        "job": ("string", How.LATEST),
        "generation": ("int", How.LATEST),
        "queue": ("string", How.LATEST),
        "task": ("string", How.LATEST),
        **OF_THE_JOB,
    }
)


def job_parts(steps: DataFrame) -> DataFrame:
    """Return partial rows about jobs, from rows about their runs (see `steps.py`). Rows without new events are left
    out.
    """
    return steps.where(F.col("events") > 0).select(*JOB_PARTS.names)


def jobs(parts: DataFrame) -> DataFrame:
    last = F.col("last")
    finished = last.state.isin([state.value for state in FINISHED])
    return JOB_PARTS.gathered(parts).select(
        "job",
        "generation",
        "seq",
        "queue",
        "task",
        last.state.alias("state"),
        instant("enqueued_at").alias("enqueued_at"),
        instant(F.col("first_claimed.at")).alias("first_claimed_at"),
        F.when(finished, instant(F.col("finished.at"))).alias("finished_at"),
        F.when(finished, F.col("finished.reason")).alias("reason"),
        last.attempt.alias("attempts"),
        last.failures.alias("failures"),
        "retries",
        "snoozes",
        "releases",
        F.col("takeovers").alias("reclaims"),
        "replays",
        F.col("failed.fingerprint").alias("error_fingerprint"),
        F.coalesce(F.col("hidden.archived"), F.lit(False)).alias("archived"),
        instant("pruned_at").alias("pruned_at"),
        "events",
        "first_n",
        last.n.alias("last_n"),
        instant("oldest_at").alias("oldest_at"),
    )
