"""The driver's side of a shadow replay: it selects the jobs, has executors run them, and adds up the comparisons."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.domain.errors import InvalidInput, QueueError
from millrace.spark.drain.app import address_of
from millrace.spark.drain.driver import parallelism, reason
from millrace.spark.lake.reading import settings
from millrace.spark.shadow.comparing import DIFFERENT
from millrace.spark.shadow.history import PastJobs, counted, jobs_to_run, refuse_other_store
from millrace.spark.shadow.sandbox import COMPARED, RunAgain, SandboxPlan

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.spark.lake import Lake

EXAMPLES = 3  # of each outcome
_SHOWN = ("same_result", "other_result", "unknown_result", "same_error", "other_error", "now_succeeds", "now_fails")
_IN_ORDER = (*_SHOWN, "unfinished", "no_payload", "no_inputs")


class ShadowFailed(QueueError):
    """Spark could not run the shadow replay."""


class ShadowRequest(msgspec.Struct, frozen=True):
    """What to run, and how: `slots` jobs at once in each of `partitions` (None: one for each core of Spark). `address`
    names the app as module:name, if it cannot be found in the imported modules.
    """

    past: PastJobs
    slots: int = 10
    partitions: int | None = None
    address: str | None = None


class OutcomeCount(msgspec.Struct, frozen=True):
    """The jobs with one outcome. Durations are milliseconds of the jobs that completed both times; None if there are
    none.
    """

    outcome: str
    jobs: int
    share: float
    faster: int
    slower: int
    p50_before: int | None
    p50_after: int | None
    p95_before: int | None
    p95_after: int | None


class ShadowResult(msgspec.Struct, frozen=True):
    """The result of a shadow replay. `total` is over all outcomes; `examples` has a few jobs of each outcome that
    differs, as rows of the table `compared`.
    """

    outcomes: Sequence[OutcomeCount]
    total: OutcomeCount
    examples: Sequence[dict[str, Any]]

    @property
    def differing(self) -> int:
        """Number of jobs that now fail, or that have another result or another error."""
        return sum(one.jobs for one in self.outcomes if one.outcome in DIFFERENT)


def candidates(spark: SparkSession, past: PastJobs, lake: Lake | None = None) -> dict[str, int]:
    """Return how many jobs a shadow replay would run, by the state in which they finished."""
    if lake is not None:
        refuse_other_store(past, lake)
    try:
        with settings(spark):
            return counted(spark, past, lake)
    except Exception as error:  # errors of Spark, or of the bridge to its JVM
        raise _explained(error) from error


def shadow(
    spark: SparkSession, app: App, request: ShadowRequest, lake: Lake | None = None, out: str | None = None
) -> ShadowResult:
    """Run jobs of the past again, and compare. The store is only read. With `out`, write one row for each job as a
    Delta table to this directory or `s3://` address.

    The handlers' own effects are real. `ctx.is_shadow` tells a handler that it runs in a shadow replay.
    """
    app.find_task(request.past.task)
    if request.past.store is None and lake is None:
        raise InvalidInput("a shadow replay needs jobs: name a store, a lake, or both")
    if lake is not None:
        refuse_other_store(request.past, lake)
    plan = SandboxPlan(address_of(app, request.address), request.past.task, request.slots, store=request.past.store)
    partitions = request.partitions or parallelism(spark)
    try:
        with settings(spark):
            jobs = jobs_to_run(spark, request.past, lake).repartition(partitions)
            compared = jobs.mapInArrow(RunAgain(plan), COMPARED.spark()).persist()
            try:
                result = _summed(compared)
                if out is not None:
                    _write(compared, out)
                return result
            finally:
                compared.unpersist()
    except QueueError:
        raise
    except Exception as error:  # errors of Spark, or of the bridge to its JVM
        raise _explained(error) from error


def _explained(error: Exception) -> ShadowFailed:
    ours = re.search(r"^\s*millrace\.(?:\w+\.)*\w+: (.+)$", str(error), re.MULTILINE)
    return ShadowFailed(f"the shadow replay failed: {ours[1] if ours else reason(str(error))}. The store is unchanged")


def _summed(compared: DataFrame) -> ShadowResult:
    both = F.col("speed").isNotNull()
    times = [
        F.percentile_approx(F.when(both, F.col(f"duration_ms_{when}")), share, 10_000).alias(f"{name}_{when}")
        for name, share in (("p50", 0.5), ("p95", 0.95))
        for when in ("before", "after")
    ]
    of_speed = [F.count_if(F.col("speed") == speed).alias(speed) for speed in ("faster", "slower")]
    rows = compared.rollup("outcome").agg(F.count("*").alias("jobs"), *of_speed, *times).collect()
    found = {row["outcome"]: row.asDict() for row in rows}
    all_jobs = found.pop(None, {"jobs": 0, "faster": 0, "slower": 0})
    counts = [_count(name, found[name], all_jobs["jobs"]) for name in _IN_ORDER if name in found]
    return ShadowResult(counts, _count("all", all_jobs, all_jobs["jobs"]), _examples(compared))


def _count(outcome: str, row: dict[str, Any], total: int) -> OutcomeCount:
    times = {f"{name}_{when}": row.get(f"{name}_{when}") for name in ("p50", "p95") for when in ("before", "after")}
    share = row["jobs"] / total if total else 0.0
    return OutcomeCount(outcome, row["jobs"], round(share, 6), row["faster"], row["slower"], **times)


def _examples(compared: DataFrame) -> list[dict[str, Any]]:
    """Return the jobs with the smallest `seq` of each outcome that differs."""
    from pyspark.sql import Window

    differing = compared.where(
        F.col("outcome").isin(*DIFFERENT, "now_succeeds", "unfinished", "no_payload", "no_inputs")
    )
    number = F.row_number().over(Window.partitionBy("outcome").orderBy("seq"))
    rows = differing.withColumn("number", number).where(F.col("number") <= EXAMPLES).drop("number", "finished_at")
    found = [row.asDict() for row in rows.collect()]
    return sorted(found, key=lambda row: (_IN_ORDER.index(row["outcome"]), row["seq"]))


def _write(compared: DataFrame, out: str) -> None:
    """Write the rows as a Delta table. The driver writes them: they contain no payloads."""
    from deltalake import write_deltalake

    from millrace.spark.lake_location import LakeLocation

    location = LakeLocation.parse(out)
    options = location.storage_options()
    write_deltalake(location.table_uri(COMPARED.name), compared.toArrow(), mode="overwrite", storage_options=options)
