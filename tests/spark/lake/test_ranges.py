"""Which files of a table a take rewrites: those that may contain a job with new events, and no others."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.sql import SparkSession

from millrace.spark.lake import ranges
from millrace.spark.lake.delta import DataFile
from millrace.spark.lake.ranges import Seqs, plan


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "ROWS_PER_FILE", 100)


def a_file(low: int, high: int, rows: int = 100) -> DataFile:
    return DataFile(f"{low}-{high}", 1, rows, seqs=(low, high))


def seqs(*numbers: int) -> Seqs:
    return np.asarray(numbers, np.int64)


FILES = [a_file(1, 100), a_file(101, 200), a_file(5_000_000, 6_000_000, 80)]


def test_only_files_that_may_contain_a_changed_job_are_rewritten() -> None:
    assert plan(FILES, seqs(50, 7_000_000)).replaced == FILES[:1]
    assert plan(FILES, seqs(100, 101)).replaced == FILES[:2]
    assert plan(FILES, seqs(201, 4_999_999)).replaced == []
    assert plan(FILES, seqs(5_500_000)).replaced == FILES[2:]  # it may be there
    unknown = DataFile("without statistics", 1, 100)
    assert plan([*FILES, unknown], seqs(300)).replaced == [unknown]


def test_many_small_files_are_merged() -> None:
    small = [a_file(number, number, 1) for number in range(1, 16)]
    assert plan(small, seqs(99)).replaced == []

    planned = plan([*small, a_file(16, 16, 1)], seqs(99))
    assert len(planned.replaced) == 16
    assert planned.bounds == []


def test_new_jobs_are_divided_into_files_of_limited_size() -> None:
    planned = plan([], np.arange(1, 251))

    assert planned.bounds == [101, 201]
    assert plan([], seqs()).bounds == []


def test_a_rewritten_file_keeps_its_range() -> None:
    planned = plan(FILES, seqs(50, 150, 5_500_000))

    assert planned.replaced == FILES
    assert planned.bounds == [101, 5_000_000]


def test_a_file_that_has_grown_too_large_is_divided() -> None:
    assert plan([a_file(1, 1_001, 200)], seqs(7)).bounds == [501]


def test_each_job_gets_the_number_of_its_file(spark: SparkSession) -> None:
    planned = ranges.RangePlan([], [10, 20, 30, 40, 50])
    rows = spark.range(0, 60).withColumnRenamed("id", "seq").withColumn("file", planned.number()).collect()

    assert [row["file"] for row in rows] == [row["seq"] // 10 for row in rows]
