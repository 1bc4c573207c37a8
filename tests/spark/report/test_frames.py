"""The queries behind the figures, on rows made by hand: what is left out is counted, and the driver gets few rows."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import SparkSession

from millrace.spark.lake.histogram import measured
from millrace.spark.report import frames

NOON = 1_793_620_800_000


def at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp((NOON + milliseconds) / 1000, UTC)


def test_queues_beyond_the_busiest_are_one(spark: SparkSession):
    rows = [(at(n), f"q{n % 5}", "completed") for n in range(50)] + [(at(0), "q4", "enqueued"), (at(1), "q3", "buried")]
    counts = frames.counted(spark.createDataFrame(rows, "at timestamp, queue string, kind string"))

    busiest = [row["queue"] for row in frames.busiest_queues(counts, 2).collect()]
    found = {
        row["queue"]: (row["start"], row["completed"], row["buried"])
        for row in frames.flow(counts, 100, busiest).collect()
    }

    assert busiest == ["q3", "q4"]
    assert found == {"q3": (NOON, 10, 1), "q4": (NOON, 10, 0), frames.OTHERS: (NOON, 30, 0)}


def test_a_run_is_held_by_its_worker_step_by_step_until_it_was_taken_over(spark: SparkSession):
    rows = [
        ("w1", at(150), at(420), None, "completed"),
        ("w2", at(0), at(900), at(100), "retried"),  # its lease ran out after 100 ms
        (None, at(0), at(900), None, "completed"),
    ]
    kinds = "worker string, claimed_at timestamp, ended_at timestamp, reclaimed_at timestamp, outcome string"
    found = frames.held(spark.createDataFrame(rows, kinds), 100).collect()

    held = {(row["worker"], row["start"] - NOON): (row["busy_ms"], row["runs"], row["failed"]) for row in found}
    assert held == {
        ("w1", 100): (50, 0, 0),
        ("w1", 200): (100, 0, 0),
        ("w1", 300): (100, 0, 0),
        ("w1", 400): (20, 1, 0),
        ("w2", 0): (100, 0, 0),
        ("w2", 100): (0, 1, 1),
    }


def test_of_many_groups_the_greatest_are_named_and_the_others_counted(spark: SparkSession):
    rows = [(queue, f"g{n}", n, n * weight) for queue, weight in (("a", 1), ("b", 9), ("c", 5)) for n in range(1, 8)]
    shares = spark.createDataFrame(rows, "queue string, `group` string, runs bigint, busy_ms bigint")

    found = frames.greatest_groups(shares, 2, 2).collect()

    assert [(row["queue"], row["group"], row["known"]) for row in found] == [
        *(("b", "g7", 7), ("b", "g6", 7), ("c", "g7", 7), ("c", "g6", 7)),
    ]


def test_percentiles_are_told_in_all_by_step_and_by_queue(spark: SparkSession):
    rows = [("mail", at(0), at(10), 40, 10), ("mail", at(50), at(150), None, 100), ("images", at(0), at(250), 2, 250)]
    kinds = "queue string, claimed_at timestamp, ended_at timestamp, wait_ms bigint, run_ms bigint"
    lengths = measured(spark.createDataFrame(rows, kinds), "queue")

    found = frames.quantiles(lengths, 100, ["mail"]).collect()

    told = {
        (row["measure"], row["start"] and row["start"] - NOON, row["queue"]): (row["runs"], row["max_ms"])
        for row in found
    }
    assert told == {
        ("wait", None, None): (2, 40),
        ("wait", 0, None): (2, 40),
        ("wait", None, "mail"): (1, 40),
        ("wait", None, frames.OTHERS): (1, 2),
        ("run", None, None): (3, 250),
        ("run", None, "mail"): (2, 100),
        ("run", None, frames.OTHERS): (1, 250),
        ("run", 0, None): (1, 10),
        ("run", 100, None): (1, 100),
        ("run", 200, None): (1, 250),
    }
