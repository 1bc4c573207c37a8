"""Filters that are pushed down: the same rows as without, fewer of them on the way."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from millrace.spark.filters import Condition, condition, passing
from millrace.spark.schema import EVENTS, JOBS
from tests.narrowing import checked_cast
from tests.spark.conftest import Place
from tests.spark.filled import fill

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
OF_JOBS = (
    "state = 'dead' and id like 'job-1%'",
    "queue = 'mail' and task != 'send' and `group` is null",
    "id in ('job-1', 'job-2', 'nobody')",
    "`group` is not null and priority >= 2",
    "`group` != 'customer 0'",
    "`group` <=> 'customer 0' and id not in ('job-1', 'job-2')",
    "error_message like '%address%' and attempt = 1 and id like '%1'",
    "finished_at > timestamp '2020-01-01 00:00:00' and not archived",
    "(state = 'dead' or priority = 1) and lower(task) = 'send' and seq > 3",
)
OF_EVENTS = (
    "kind = 'claimed'",
    "kind in ('completed', 'buried') and queue = 'mail'",
    "at >= timestamp '2020-01-01' and kind != 'enqueued'",
    "worker is null and job = 'job-4'",
    "duration_ms > 5",
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place("sqlite", f"sqlite:///{tmp_path_factory.mktemp('filters')}/jobs.db?durability=relaxed")
    with place.open() as found:
        found.run(fill(found.store, 30))
    return place


def rows(frame: Any, where: str) -> list[Any]:
    return sorted(frame.where(where).select("seq", "id" if "id" in frame.columns else "n").collect())


def plan(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize(("table", "wheres"), [("jobs", OF_JOBS), ("events", OF_EVENTS)])
def test_the_rows_are_the_same_with_and_without(spark, filled: Place, table: str, wheres: tuple[str, ...]):
    everything = filled.read(spark, table)
    local = spark.createDataFrame(everything.collect(), everything.schema).coalesce(1).cache()
    try:
        for where in wheres:
            assert rows(filled.read(spark, table, pushFilters="true"), where) == rows(local, where), where
    finally:
        local.unpersist()


def test_a_filter_that_is_pushed_is_not_asked_again(spark, filled: Place):
    pushing = filled.read(spark, "jobs", pushFilters="true").where("state = 'dead'")
    plain = filled.read(spark, "jobs").where("state = 'dead'")

    assert "Filter (" not in plan(pushing)
    assert "Filter (" in plan(plain)


def test_without_leave_of_the_session_nothing_is_pushed_and_nothing_fails(spark, filled: Place):
    spark.conf.set(PUSHDOWN, "false")
    try:
        frame = filled.read(spark, "jobs", pushFilters="true").where("state = 'dead'")
        assert "Filter (" in plan(frame)
        assert frame.count() == 6
    finally:
        spark.conf.set(PUSHDOWN, "true")


def test_a_dataframe_may_be_queried_again_and_again(spark, filled: Place):
    """The reason why filters are pushed on request only; the last line tells when Spark has mended it."""
    frame = filled.read(spark, "jobs")
    everything = frame.count()
    assert frame.where("state = 'dead'").count() == 6
    assert frame.count() == everything == 31

    pushing = filled.read(spark, "jobs", pushFilters="true")
    assert pushing.where("state = 'dead'").count() == 6
    assert pushing.count() == 6, "Spark no longer keeps the filters of an earlier query: push them by default"


def test_filters_work_together_with_chosen_columns_on_every_store(spark, place: Place):
    with place.open() as found:
        found.run(fill(found.store))

    def frame() -> Any:
        return place.read(spark, "jobs", columns="id,state,queue", pushFilters="true")

    assert {row.id for row in frame().where("state = 'dead' and queue = 'mail'").collect()} == {
        "job-1",
        "job-11",
        "job-16",
    }
    assert [row.id for row in frame().where("id = 'job-1' and state = 'dead'").collect()] == ["job-1"]
    assert frame().where("id = 'job-1' and state = 'completed'").count() == 0


class Ask:
    """Filters as Spark makes them."""

    def __getattr__(self, name: str) -> Any:
        from pyspark.sql import datasource

        return getattr(datasource, name)


ask = Ask()


def test_listed_ids_are_fetched_and_nothing_is_scanned(filled: Place):
    from millrace.spark.options import read_options
    from millrace.spark.reader import FilteringReader, Share

    reader = FilteringReader(read_options({"url": filled.url, "table": "jobs"}, "batch"), JOBS)
    assert [*reader.pushFilters([ask.In(("id",), ("job-1", "job-2")), ask.IsNotNull(("id",))])] == []

    [share] = reader.partitions()

    assert checked_cast(Share, share).ids == ("job-1", "job-2")
    assert [row["id"] for batch in reader.read(share) for row in batch.to_pylist()] == ["job-1", "job-2"]


@pytest.mark.parametrize(
    "left",
    [
        lambda: ask.EqualTo(("nothing",), 1),
        lambda: ask.EqualTo(("headers", "x"), "1"),
        lambda: ask.EqualTo(("payload",), b"x"),
        lambda: ask.EqualTo(("id",), None),
        lambda: ask.EqualTo(("id",), 5),
        lambda: ask.EqualTo(("attempt",), True),
        lambda: ask.EqualTo(("attempt",), 1 << 40),
        lambda: ask.In(("id",), ("a", None)),
        lambda: ask.Not(ask.In(("id",), ("a", None))),
        lambda: ask.GreaterThan(("enqueued_at",), datetime(2026, 1, 1)),  # noqa: DTZ001 (without a zone: on purpose)
    ],
)
def test_what_could_differ_from_spark_is_left_to_spark(left: Any):
    assert condition(left(), JOBS) is None


def test_null_passes_no_comparison_not_even_its_opposite():
    values = {"worker": pa.array(["a", None, "b"])}

    for test, value in (("EqualTo", "a"), ("In", ("a",)), ("GreaterThan", "a"), ("StringContains", "a")):
        for negated in (False, True):
            mask = passing([Condition("worker", test, value, negated)], values).to_pylist()
            assert mask[1] is False
            assert sum(mask) == 1
    assert passing([Condition("worker", "EqualNullSafe", "a", True)], values).to_pylist() == [False, True, True]


def test_instants_are_compared_as_instants():
    asked = ask.GreaterThanOrEqual(("at",), datetime(2026, 1, 1, tzinfo=UTC))
    found = condition(asked, EVENTS)
    assert found is not None

    at = pa.array([1767225599999, 1767225600000], pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    assert passing([found], {"at": at}).to_pylist() == [False, True]
