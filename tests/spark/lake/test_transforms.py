"""Each transformation on rows made by hand."""

from __future__ import annotations

import random
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.domain.event import Event, Kind
from millrace.domain.job import Job, State
from millrace.domain.outcome import Failure
from millrace.spark.lake import analysis, fingerprint
from millrace.spark.lake.attempts import ATTEMPTS, attempts, open_runs
from millrace.spark.lake.histogram import PERCENTILES, bucket_of, percentiles
from millrace.spark.lake.series import error_parts, worker_parts
from millrace.spark.lake.steps import by_run, gathered
from millrace.testing.builders import a_spec
from millrace.views.fingerprint import cause as cause_of
from millrace.views.fingerprint import fingerprint as fingerprint_of
from tests.spark.lake.history import BEGIN, an_event, frame

MINUTE = 60_000
HELD: dict[str, Any] = {"attempt": 1, "lease": "a", "worker": "w"}


def steps_of(spark: SparkSession, events: list[Event]) -> DataFrame:
    return gathered(by_run(frame(spark, events)), 1)


def test_when_a_run_could_have_begun(spark: SparkSession) -> None:
    """Delays count, being unblocked counts, and after a replay only the replay does."""
    lives = [
        [an_event(1, Kind.ENQUEUED, seq=1, delay=20_000), an_event(2, Kind.CLAIMED, seq=1, **HELD)],
        [
            an_event(1, Kind.ENQUEUED, seq=2),
            an_event(2, Kind.UNBLOCKED, seq=2),
            an_event(3, Kind.CLAIMED, seq=2, **HELD),
        ],
        [
            an_event(1, Kind.ENQUEUED, seq=3, delay=10 * MINUTE),
            an_event(2, Kind.UNBLOCKED, seq=3),
            an_event(3, Kind.CLAIMED, seq=3, at=BEGIN + 12 * MINUTE, **HELD),
        ],
        [
            an_event(1, Kind.ENQUEUED, seq=4, delay=99 * MINUTE),
            an_event(2, Kind.CANCELLED, seq=4),
            an_event(3, Kind.REPLAYED, seq=4),
            an_event(4, Kind.CLAIMED, seq=4, **HELD),
        ],
    ]
    ends = [an_event(5, Kind.COMPLETED, seq=seq, at=BEGIN + 20 * MINUTE, **HELD) for seq in (1, 2, 3, 4)]

    found = attempts(steps_of(spark, [event for life in lives for event in [*life]] + ends))

    waits = {row["seq"]: row["wait_ms"] for row in found.collect()}
    assert waits == {1: 40_000, 2: MINUTE, 3: MINUTE, 4: MINUTE}
    assert found.schema.simpleString() == spark.createDataFrame([], ATTEMPTS).schema.simpleString()


def test_a_run_cut_off_has_ended_and_waiting_cut_off_is_no_run(spark: SparkSession) -> None:
    events = [
        an_event(1, Kind.ENQUEUED, seq=1),
        an_event(2, Kind.CLAIMED, seq=1, **HELD),
        an_event(3, Kind.CANCELLED, seq=1, attempt=1),
        an_event(1, Kind.ENQUEUED, seq=2),
        an_event(2, Kind.CLAIMED, seq=2, **HELD),
        an_event(3, Kind.RETRIED, seq=2, failures=1, **HELD),
        an_event(4, Kind.CANCELLED, seq=2, attempt=1),
        an_event(1, Kind.ENQUEUED, seq=3),
        an_event(2, Kind.BURIED, seq=3, reason="ttl_expired"),
    ]
    steps = steps_of(spark, events)

    found = {(row["seq"], row["attempt"]): row["outcome"] for row in attempts(steps).collect()}

    assert found == {(1, 1): "cancelled", (2, 1): "retried"}
    assert open_runs(steps).collect() == []


def test_a_run_that_was_taken_over_is_its_workers_until_then(spark: SparkSession) -> None:
    events = [
        an_event(1, Kind.ENQUEUED),
        an_event(2, Kind.CLAIMED, at=BEGIN, **HELD),
        an_event(3, Kind.RECLAIMED, attempt=1, lease="r", worker="reaper", at=BEGIN + 90_000),
        an_event(4, Kind.BURIED, attempt=1, lease="r", worker="reaper", failures=1, at=BEGIN + 300_000),
    ]
    [row] = attempts(steps_of(spark, events)).collect()
    busy = worker_parts(attempts(steps_of(spark, events))).orderBy("minute").collect()

    assert (row["worker"], row["lease"], row["reclaims"], row["outcome"]) == ("w", "a", 1, "buried")
    # BEGIN is 20 s into a minute
    assert [(one["worker"], one["busy_ms"], one["runs"], one["failed"]) for one in busy] == [
        ("w", 40_000, 0, 0),
        ("w", 50_000, 1, 1),
    ]
    assert sum(one["busy_ms"] for one in busy) == 90_000


def test_errors_of_one_cause_have_one_fingerprint_which_is_that_of_the_dead(spark: SparkSession) -> None:
    texts = [
        "no answer from 10.0.0.17 within 30 s",
        "no answer from 10.0.0.9 within 31 s",
        "order 'A-1' of \"ann\" (0x7f3a) is odd\nsecond line 7",
        "  deadbeef01 and 123e4567-e89b-12d3-a456-426614174000 ",
        "größe ٣ is Ünknown: abcdefabcdef",
        "",
        "x" * 600 + "1",
    ]
    events = [
        an_event(3, Kind.BURIED, seq=seq, failures=1, reason="explicit_fail", error=Failure("ValueError", text), **HELD)
        for seq, text in enumerate(texts, 1)
    ]
    found = {row["sample_job"]: row for row in error_parts(frame(spark, events)).collect()}
    dead = [_dead(event) for event in events]

    named = frame(spark, events).select(
        "job",
        fingerprint.cause(F.col("error_type"), F.col("error_message")).alias("cause"),
        fingerprint.fingerprint(F.col("task"), F.col("reason"), F.col("cause")).alias("fingerprint"),
    )
    assert {row["job"]: (row["cause"], row["fingerprint"]) for row in named.collect()} == {
        event.job: (cause_of(job), fingerprint_of(job)) for event, job in zip(events, dead, strict=True)
    }
    assert found["job-1"]["events"] == 2  # the first two differ in numbers only
    assert found["job-1"]["dead_fingerprint"] == fingerprint_of(dead[0])


def _dead(event: Event) -> Job:
    spec = a_spec(task=event.task)
    return Job(spec, event.seq, 1, State.DEAD, 0, 0, error=event.error, reason=event.reason)


def test_a_death_without_an_error_is_told_by_its_reason(spark: SparkSession) -> None:
    events = [an_event(2, Kind.BURIED, seq=seq, reason="ttl_expired") for seq in (1, 2)]

    [row] = analysis.errors(error_parts(frame(spark, events))).collect()

    assert (row["cause"], row["deaths"], row["retries"], row["reasons"]) == ("ttl_expired", 2, 0, ["ttl_expired"])


def test_percentiles_are_within_two_per_cent(spark: SparkSession) -> None:
    chance = random.Random(1)
    values = sorted([0, 1, 2, *(round(chance.lognormvariate(6, 2)) for _ in range(3_000))])
    made = spark.createDataFrame([(value,) for value in values], "ms long")
    counted = made.groupBy(F.lit("x").alias("key"), bucket_of(F.col("ms")).alias("bucket")).agg(
        F.count("*").alias("runs"), F.sum("ms").alias("total_ms"), F.max("ms").alias("max_ms")
    )

    [row] = percentiles(counted, ["key"]).collect()

    assert (row["runs"], row["total_ms"], row["max_ms"]) == (len(values), sum(values), max(values))
    for percent in PERCENTILES:
        true = values[-(-len(values) * percent // 100) - 1]
        assert abs(row[f"p{percent}_ms"] - true) <= 0.021 * true + 0.5


def test_fairness_tells_who_got_how_much(spark: SparkSession) -> None:
    runs = spark.createDataFrame(
        [(1, "mail", 300, 10), (2, "mail", 100, 30), (3, "mail", 0, 10), (4, "images", 50, 1), (5, "mail", 7, 7)],
        "seq long, queue string, run_ms long, wait_ms long",
    ).withColumn("ended_at", F.timestamp_millis(F.lit(BEGIN)))
    groups = spark.createDataFrame([(1, "a"), (2, "b"), (3, "b"), (4, "c")], "seq long, `group` string")

    found = {row["group"]: row for row in analysis.fairness(runs, groups).collect()}

    assert {name: (row["runs"], row["busy_ms"], row["share"]) for name, row in found.items()} == {
        "a": (1, 300, 0.75),
        "b": (2, 100, 0.25),
        "c": (1, 50, 1.0),
    }
    assert found["a"]["evenness"] == found["b"]["evenness"] == 400**2 / (2 * (300**2 + 100**2))
    assert found["c"]["evenness"] == 1
