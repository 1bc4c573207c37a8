"""Time series: counts and sums by minute or hour. Each pipeline run writes the sums of its own events; readers add them
up.

Events count for the time at which they happened, even if they are copied later.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.domain.event import Kind
from millrace.spark.lake.fingerprint import cause, fingerprint
from millrace.spark.lake.gather import How, Parts
from millrace.spark.lake.histogram import measured
from millrace.spark.lake.instants import HOUR, MINUTE, begin_of, instant, millis
from millrace.spark.lake.steps import is_of

THROUGHPUT = Parts(
    {
        "minute": ("timestamp", How.KEY),
        "queue": ("string", How.KEY),
        "task": ("string", How.KEY),
        "kind": ("string", How.KEY),
        "events": ("bigint", How.TOTAL),
    }
)
DURATIONS = Parts(
    {
        "hour": ("timestamp", How.KEY),
        "queue": ("string", How.KEY),
        "task": ("string", How.KEY),
        "measure": ("string", How.KEY),
        "bucket": ("int", How.KEY),
        "runs": ("bigint", How.TOTAL),
        "total_ms": ("bigint", How.TOTAL),
        "max_ms": ("bigint", How.LATEST),
    }
)
ERRORS = Parts(
    {
        "hour": ("timestamp", How.KEY),
        "queue": ("string", How.KEY),
        "task": ("string", How.KEY),
        "kind": ("string", How.KEY),
        "reason": ("string", How.KEY),
        "error_type": ("string", How.KEY),
        "cause": ("string", How.KEY),
        "fingerprint": ("string", How.KEY),
        "dead_fingerprint": ("string", How.KEY),
        "events": ("bigint", How.TOTAL),
        "first_at": ("timestamp", How.EARLIEST),
        "last_at": ("timestamp", How.LATEST),
        "sample_job": ("string", How.EARLIEST),
    }
)
WORKER_USE = Parts(
    {
        "minute": ("timestamp", How.KEY),
        "worker": ("string", How.KEY),
        "busy_ms": ("bigint", How.TOTAL),
        "runs": ("bigint", How.TOTAL),
        "failed": ("bigint", How.TOTAL),
    }
)
LONGEST_RUN = 7 * 24 * 60  # minutes of one run that are counted separately; of a longer run, only the last ones


def throughput_parts(events: DataFrame) -> DataFrame:
    counted = events.withColumn("minute", instant(begin_of(millis("at"), MINUTE))).withColumn("events", F.lit(1))
    return THROUGHPUT.gathered(counted.select(*THROUGHPUT.names))


def duration_parts(attempts: DataFrame) -> DataFrame:
    """Return the waiting and running times of ended runs, as partial rows of a histogram by hour."""
    hour = instant(begin_of(F.col("ms"), HOUR))
    return DURATIONS.gathered(measured(attempts, "queue", "task").withColumn("hour", hour).select(*DURATIONS.names))


def error_parts(events: DataFrame) -> DataFrame:
    """Return the numbers of failed runs and dead jobs by hour and cause. If a job died without an error, the cause is
    the reason of its death.
    """
    why = F.coalesce(cause(F.col("error_type"), F.col("error_message")), F.col("reason"), F.lit(""))
    died = is_of(Kind.BURIED)
    nothing = F.lit(None).cast("string")
    of_the_dead = fingerprint(F.col("task"), F.col("reason"), _cause_of_the_dead())
    parts = ERRORS.select(
        events.where(died | F.col("error_type").isNotNull()),
        {
            "hour": instant(begin_of(millis("at"), HOUR)),
            "cause": why,
            "fingerprint": fingerprint(F.col("task"), nothing, why),
            "dead_fingerprint": F.when(died, of_the_dead),
            "events": F.lit(1),
            "first_at": F.col("at"),
            "last_at": F.col("at"),
            "sample_job": F.col("job"),
        },
        ("queue", "task", "kind", "reason", "error_type"),
    )
    return ERRORS.gathered(parts)


def _cause_of_the_dead() -> Column:
    return F.coalesce(cause(F.col("error_type"), F.col("error_message")), F.lit(""))


def worker_parts(attempts: DataFrame) -> DataFrame:
    """Return how long each worker held jobs in each minute. The time of a reclaimed job counts up to the reclaim."""
    held = attempts.where("worker IS NOT NULL AND claimed_at IS NOT NULL").select(
        "worker",
        millis("claimed_at").alias("since"),
        millis(F.least("ended_at", "reclaimed_at")).alias("until"),
        F.col("outcome").isin([Kind.RETRIED.value, Kind.BURIED.value]).cast("bigint").alias("failed"),
    )
    until = F.greatest("since", "until")
    bounded = held.withColumn("until", until).withColumn("last", begin_of(F.col("until"), MINUTE))
    first = F.greatest(begin_of(F.col("since"), MINUTE), F.col("last") - LONGEST_RUN * MINUTE)
    minutes = bounded.withColumn("at", F.explode(F.sequence(first, F.col("last"), F.lit(MINUTE))))
    busy = F.least(F.col("until"), F.col("at") + MINUTE) - F.greatest(F.col("since"), F.col("at"))
    ends_here = F.col("at") == F.col("last")
    return WORKER_USE.gathered(
        WORKER_USE.select(
            minutes,
            {
                "minute": instant("at"),
                "busy_ms": busy,
                "runs": ends_here.cast("bigint"),
                "failed": F.when(ends_here, F.col("failed")).otherwise(0),
            },
            ("worker",),
        )
    )
