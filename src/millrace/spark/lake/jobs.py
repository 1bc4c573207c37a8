"""Jobs: one row for each job and generation. A take merges the rows of the jobs that have new events.

A partial row has what some of a job's events say about it. A row of the table `jobs` can be turned back into a partial
row, because the feed has the events of a job in order: all new events come after those that the row was computed from.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.domain.job import FINISHED
from millrace.spark.lake.gather import How, Parts
from millrace.spark.lake.instants import instant, millis
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


def parts_of(rows: DataFrame) -> DataFrame:
    """Return rows of the table `jobs` as partial rows."""
    first, last = F.col("first_n").alias("n"), F.col("last_n").alias("n")
    known = {
        "enqueued_at": millis("enqueued_at"),
        "first_claimed": _if_known("first_claimed_at", first, millis("first_claimed_at").alias("at")),
        "last": F.struct(last, "state", F.col("attempts").alias("attempt"), "failures"),
        "finished": _if_known("finished_at", last, millis("finished_at").alias("at"), F.col("reason")),
        "failed": _if_known("error_fingerprint", last, F.col("error_fingerprint").alias("fingerprint")),
        "hidden": F.struct(last, "archived"),
        "pruned_at": millis("pruned_at"),
        "oldest_at": millis("oldest_at"),
        "takeovers": F.col("reclaims"),
    }
    return JOB_PARTS.select(rows, known, [name for name in JOB_PARTS.names if name not in known])


def _if_known(column: str, *fields: Column) -> Column:
    return F.when(F.col(column).isNotNull(), F.struct(*fields))


def jobs(parts: DataFrame) -> DataFrame:
    """Return the rows of the table `jobs`, from partial rows."""
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
