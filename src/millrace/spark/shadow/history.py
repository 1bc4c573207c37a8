"""The jobs of the past that a shadow replay runs: which finished in the period, how they ended, and their payloads.

With a lake, the lake says which jobs finished, how, and how long they ran. Payloads and results are those that the lake
keeps (`pipeline run --payloads`); those it does not have are read from the store. Without a lake, everything is read
from the store. The store is only read. Jobs of the lake and of the store are matched by id and generation: their `seq`
differs if the store was moved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.domain.event import Kind
from millrace.domain.job import State
from millrace.spark import FORMAT
from millrace.spark.lake.errors import OtherStore
from millrace.spark.lake.feed import store_name
from millrace.spark.shadow.sandbox import TO_RUN

if TYPE_CHECKING:
    from millrace.spark.lake import Lake

_OF_THE_STORE = "id,seq,generation,task,state,attempt,finished_at,error_type,error_message"
_BULKY = "serde,payload,result,headers"
_KEYS = ["id", "generation"]


class PastJobs(msgspec.Struct, frozen=True):
    """The jobs of `task` that finished from `since` until `until` (exclusive). `store` has the Spark options that name
    the store; it is None if only the lake is read. With `moved`, it is the store of the lake, although the lake knows
    it under another URL.
    """

    task: str
    since: datetime
    until: datetime
    store: Mapping[str, str] | None
    max_jobs: int | None = None
    moved: bool = False


def jobs_to_run(spark: SparkSession, past: PastJobs, lake: Lake | None) -> DataFrame:
    """Return the jobs, with the columns of `TO_RUN`."""
    if lake is None:
        bulky, runs = None, _runs_of_store(spark, past)
        ended = _limited(_of_store(spark, past, f"{_OF_THE_STORE},{_BULKY}"), past)
    else:
        bulky, runs = _bulky(spark, past, lake), lake.attempts(past.since, past.until)
        ended = _limited(_of_lake(past, lake), past)
    found = ended.join(runs.select("seq", "attempt", "duration_ms"), ["seq", "attempt"], "left")
    if bulky is not None:
        found = found.join(bulky, _KEYS, "left")
    completed = F.col("state") == State.COMPLETED.value
    columns = {"job": F.col("id"), "completed": completed, "result": F.when(completed, F.col("result"))}
    return found.select(*(columns.get(name, F.col(name)).alias(name) for name in TO_RUN.names))


def counted(spark: SparkSession, past: PastJobs, lake: Lake | None) -> dict[str, int]:
    """Return the number of jobs by their state, without reading payloads."""
    rows = _of_store(spark, past, _OF_THE_STORE) if lake is None else _of_lake(past, lake)
    found = _limited(rows, past).groupBy("state").count().collect()
    return {row["state"]: row["count"] for row in found}


def _of_store(spark: SparkSession, past: PastJobs, columns: str) -> DataFrame:
    rows = _table(spark, past, "jobs", columns=columns)
    return _ended(rows, past).where("attempt > 0").drop("task")


def _of_lake(past: PastJobs, lake: Lake) -> DataFrame:
    """Return the newest generation of each job, with the error of its last run."""
    jobs = _ended(lake.jobs(), past).where("attempts > 0")
    facts = F.struct("seq", "generation", "state", F.col("attempts").alias("attempt"), "finished_at")
    newest = jobs.groupBy("job").agg(F.max_by(facts, "seq").alias("newest"))
    ended = newest.select(F.col("job").alias("id"), "newest.*")
    errors = lake.attempts(past.since, past.until).select("seq", "attempt", "error_type", "error_message")
    return ended.join(errors, ["seq", "attempt"], "left")


def _ended(rows: DataFrame, past: PastJobs) -> DataFrame:
    """Return the jobs of the period that completed or died. Cancelled jobs have no outcome to compare with."""
    within = (F.col("finished_at") >= F.lit(past.since)) & (F.col("finished_at") < F.lit(past.until))
    states = F.col("state").isin(State.COMPLETED.value, State.DEAD.value)
    return rows.where((F.col("task") == past.task) & states & within)


def _limited(rows: DataFrame, past: PastJobs) -> DataFrame:
    """Return at most `max_jobs` jobs, spread over the period: those with the smallest hashes of their ids."""
    return rows if past.max_jobs is None else rows.orderBy(F.xxhash64("id"), "seq").limit(past.max_jobs)


def _runs_of_store(spark: SparkSession, past: PastJobs) -> DataFrame:
    """Return the durations of the runs, from the events that the store keeps."""
    since = past.since.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    columns = "seq,attempt,task,kind,duration_ms"
    events = _table(spark, past, "events", columns=columns, startingCursor=since)
    ends = F.col("kind").isin(Kind.COMPLETED.value, Kind.BURIED.value)
    return events.where((F.col("task") == past.task) & ends)


def _bulky(spark: SparkSession, past: PastJobs, lake: Lake) -> DataFrame:
    """Return serde, payload, result and headers by id and generation, from the lake if it keeps them, else from the
    store.
    """
    columns = _BULKY.split(",")
    rows = lake.payloads(past.since, past.until).where(F.col("task") == past.task)
    newest = F.max_by(F.struct(*columns), "finished_at").alias("newest")  # a replayed job is there more than once
    kept = rows.groupBy(F.col("job").alias("id"), "generation").agg(newest).select(*_KEYS, "newest.*")
    if past.store is None:
        return kept
    stored = _of_store(spark, past, f"{_OF_THE_STORE},{_BULKY}").select(*_KEYS, *columns)
    return kept.unionByName(stored.join(kept.select(*_KEYS), _KEYS, "left_anti"))


def refuse_other_store(past: PastJobs, lake: Lake) -> None:
    """Raise OtherStore if the lake has the history of another store. The user of the store may be another one."""
    if past.store is None or past.moved:
        return
    given = store_name(past.store)
    if _without_user(given) != _without_user(lake.state.store):
        raise OtherStore(str(lake.place.location), lake.state.store, given)


def _without_user(name: str) -> str:
    return re.sub(r"//[^/@]*@", "//", name)


def _table(spark: SparkSession, past: PastJobs, table: str, **options: str) -> DataFrame:
    assert past.store is not None
    return spark.read.format(FORMAT).options(**past.store, table=table, **options).load()
