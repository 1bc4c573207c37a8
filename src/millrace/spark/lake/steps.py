"""Run rows: one row with everything that is known about one run of a job, merged from its events.

An event describes its own run (number `attempt`), or the time from which the next run (`attempt` + 1) may start, or
both. Events are grouped by seq and run, so each event can be used without the events before and after it. The events of
a run may be copied by different takes. So the rows of runs that have not ended are carried into the next take
(`attempts.py`).

The same rows also have columns about the job as a whole (`jobs.py`), so that events are grouped only once.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from millrace.domain.event import Kind
from millrace.spark.lake.fingerprint import cause, fingerprint
from millrace.spark.lake.gather import How, Parts, gather
from millrace.spark.lake.instants import millis

_AT = "struct<n: int, at: bigint>"
_ENDED = (
    "struct<at: bigint, kind: string, reason: string, duration_ms: bigint, error_type: string, error_message: string, "
    "error_fingerprint: string>"
)
OF_THE_RUN = {
    "seq": ("bigint", How.KEY),
    "attempt": ("int", How.KEY),
    "job": ("string", How.LATEST),
    "generation": ("int", How.LATEST),
    "queue": ("string", How.LATEST),
    "task": ("string", How.LATEST),
    "due": (_AT, How.LATEST),
    "unblocked": (_AT, How.LATEST),
    "gone_n": ("int", How.LATEST),
    "claimed_at": ("bigint", How.EARLIEST),
    "worker": ("string", How.LATEST),
    "lease": ("string", How.LATEST),
    "reclaims": ("bigint", How.TOTAL),
    "reclaimed_at": ("bigint", How.EARLIEST),
    "cut_at": ("bigint", How.EARLIEST),
    "ended": (_ENDED, How.LATEST),
}
OF_THE_JOB = {
    "enqueued_at": ("bigint", How.EARLIEST),
    "first_claimed": (_AT, How.EARLIEST),
    "last": ("struct<n: int, state: string, attempt: int, failures: int>", How.LATEST),
    "finished": ("struct<n: int, at: bigint, reason: string>", How.LATEST),
    "failed": ("struct<n: int, fingerprint: string>", How.LATEST),
    "hidden": ("struct<n: int, archived: boolean>", How.LATEST),
    "pruned_at": ("bigint", How.LATEST),
    "first_n": ("int", How.EARLIEST),
    "oldest_at": ("bigint", How.EARLIEST),
    "events": ("bigint", How.TOTAL),
    "retries": ("bigint", How.TOTAL),
    "snoozes": ("bigint", How.TOTAL),
    "releases": ("bigint", How.TOTAL),
    "takeovers": ("bigint", How.TOTAL),
    "replays": ("bigint", How.TOTAL),
}
STEPS = Parts({**OF_THE_RUN, **OF_THE_JOB})

BEGINS_WAITING = (Kind.ENQUEUED, Kind.RETRIED, Kind.SNOOZED, Kind.RELEASED, Kind.REPLAYED)
ONLY_OF_THE_NEXT_RUN = (Kind.ENQUEUED, Kind.UNBLOCKED, Kind.REPLAYED)
ENDS_A_RUN = (Kind.COMPLETED, Kind.RETRIED, Kind.SNOOZED, Kind.RELEASED, Kind.BURIED, Kind.CANCELLED)
FINISHES = (Kind.COMPLETED, Kind.BURIED, Kind.CANCELLED)
ENDS_WAITING = (Kind.BURIED, Kind.CANCELLED)
REMOVES = (Kind.PRUNED, Kind.EVICTED)
_NAMES = ("job", "generation", "queue", "task")
_SAID = (
    *("job", "seq", "generation", "n", "kind", "queue", "task", "state", "attempt", "failures", "worker", "lease"),
    *("delay_ms", "reason", "error_type", "error_message", "duration_ms"),
)
_HERE, _NEXT, _ALSO_NEXT = 0, 1, 2  # about its own run; about the next run; about the next run as a second row


def by_run(events: DataFrame) -> DataFrame:
    """Return the events with the column `about`, the number of the run that an event describes. An event that describes
    two runs has two rows.

    Events are grouped before they are split into columns, because that moves fewer bytes.
    """
    described = events.select(*_SAID, millis("at").alias("ms"))
    only_next = is_of(*ONLY_OF_THE_NEXT_RUN)
    also_next = (is_of(*BEGINS_WAITING) & ~only_next) | (is_of(*ENDS_WAITING) & F.col("lease").isNull())
    own = _about(F.col("attempt"), _HERE)
    following = F.col("attempt") + 1
    rows = (
        F.when(only_next, F.array(_about(following, _NEXT)))
        .when(also_next, F.array(own, _about(following, _ALSO_NEXT)))
        .otherwise(F.array(own))
    )
    return described.select("*", F.inline(rows))


def _about(run: Column, role: int) -> Column:
    return F.struct(run.alias("about"), F.lit(role).alias("role"))


def gathered(rows: DataFrame, partitions: int) -> DataFrame:
    """Return one row for each run of a job, merged from the rows of `by_run`. All rows of a job are in the same
    partition.
    """
    facts = {
        **{name: F.col(name) for name in _NAMES},
        **_this_run(),
        **_next_run(),
        **_job(),
    }
    columns = [
        gather(facts[name].cast(kind), how).alias(name)
        for name, (kind, how) in STEPS.columns.items()
        if how is not How.KEY
    ]
    runs = rows.repartition(partitions, "seq").groupBy("seq", "about").agg(*columns)
    return runs.withColumnRenamed("about", "attempt").select(*STEPS.names)


def with_carried(steps: DataFrame, carried: DataFrame, partitions: int) -> DataFrame:
    """Return the run rows of both. If `carried` has a row of the same run from an earlier take, both are merged."""
    return STEPS.gathered(steps.unionByName(carried).repartition(partitions, "seq"))


def is_of(*kinds: Kind) -> Column:
    return F.col("kind").isin([kind.value for kind in kinds])


def _this_run() -> dict[str, Column]:
    here, leased = F.col("role") == _HERE, F.col("lease").isNotNull()
    claimed, reclaimed = here & is_of(Kind.CLAIMED), here & is_of(Kind.RECLAIMED)
    ended = F.struct(
        F.col("ms").alias("at"),
        F.col("kind"),
        F.col("reason"),
        F.col("duration_ms"),
        F.col("error_type"),
        F.col("error_message"),
        _fingerprint().alias("error_fingerprint"),
    )
    return {
        "claimed_at": F.when(claimed, F.col("ms")),
        "worker": F.when(claimed, F.col("worker")),
        "lease": F.when(claimed, F.col("lease")),
        "reclaims": F.when(reclaimed, 1).otherwise(0),
        "reclaimed_at": F.when(reclaimed, F.col("ms")),
        # An interruption without a lease ends an open run; otherwise it only ends the wait for the next one.
        "cut_at": F.when(here & is_of(Kind.CANCELLED) & ~leased, F.col("ms")),
        "ended": F.when(here & is_of(*ENDS_A_RUN) & leased, ended),
    }


def _next_run() -> dict[str, Column]:
    due_at = F.col("ms") + F.coalesce(F.col("delay_ms"), F.lit(0))
    of_the_next = F.col("role") != _HERE
    return {
        "due": F.when(of_the_next & is_of(*BEGINS_WAITING), F.struct(F.col("n"), due_at.alias("at"))),
        "unblocked": F.when(is_of(Kind.UNBLOCKED), F.struct(F.col("n"), F.col("ms").alias("at"))),
        "gone_n": F.when(of_the_next & is_of(*ENDS_WAITING), F.col("n")),
    }


def _job() -> dict[str, Column]:
    """Return the columns about the job. If `by_run` made two rows of an event, the event counts in the first row
    only.
    """
    n, ms, first = F.col("n"), F.col("ms"), F.col("role") != _ALSO_NEXT
    hides = is_of(Kind.ARCHIVED, Kind.UNARCHIVED, Kind.REPLAYED)
    return {
        "enqueued_at": F.when(is_of(Kind.ENQUEUED), ms),
        "first_claimed": F.when(is_of(Kind.CLAIMED), F.struct(n, ms.alias("at"))),
        "last": F.when(first, F.struct(n, F.col("state"), F.col("attempt"), F.col("failures"))),
        "finished": F.when(first & is_of(*FINISHES), F.struct(n, ms.alias("at"), F.col("reason"))),
        "failed": F.when(first & F.col("error_type").isNotNull(), F.struct(n, _fingerprint().alias("fingerprint"))),
        "hidden": F.when(hides, F.struct(n, is_of(Kind.ARCHIVED).alias("archived"))),
        "pruned_at": F.when(is_of(*REMOVES), ms),
        "first_n": F.when(first, n),
        "oldest_at": F.when(first, ms),
        "events": F.when(first, 1).otherwise(0),
        "retries": F.when(first & is_of(Kind.RETRIED), 1).otherwise(0),
        "snoozes": F.when(first & is_of(Kind.SNOOZED), 1).otherwise(0),
        "releases": F.when(first & is_of(Kind.RELEASED), 1).otherwise(0),
        "takeovers": F.when(is_of(Kind.RECLAIMED), 1).otherwise(0),
        "replays": F.when(is_of(Kind.REPLAYED), 1).otherwise(0),
    }


def _fingerprint() -> Column:
    """Return the error's fingerprint. It does not include the reason, so that retries of a job and its death from the
    same cause have the same fingerprint.
    """
    return fingerprint(F.col("task"), F.lit(None).cast("string"), cause(F.col("error_type"), F.col("error_message")))
