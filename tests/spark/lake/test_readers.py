"""Others read the tables too: delta-rs' own reader, DuckDB, and Spark's plain reader, before and after compaction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from millrace.domain.event import Event
from millrace.spark.lake import Lake, LakePlace, TakeRequest, take
from millrace.spark.lake.maintenance import compact
from tests.narrowing import the
from tests.spark.lake.conftest import quietly
from tests.spark.lake.history import ListFeed
from tests.spark.lake.test_take import copied

COUNTS = {
    "events": "SELECT kind, count(*) FROM rows GROUP BY kind",
    "attempts": "SELECT outcome, count(*) FROM rows GROUP BY outcome",
    "jobs": "SELECT state, count(*) FROM rows GROUP BY state",
}
Counts = dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def in_three_takes(spark: SparkSession, events: Sequence[Event], tmp_path_factory: pytest.TempPathFactory) -> LakePlace:
    place = LakePlace(tmp_path_factory.mktemp("readers") / "lake")
    feed = ListFeed(spark, events)
    for part in (1, 2, 3):
        feed.end = len(events) * part // 3
        take(place, spark, feed, TakeRequest(groups=False), quietly)
    return place


def by_duckdb(place: LakePlace) -> Counts:
    """DuckDB reads the Parquet files that the table names. Its own Delta reader would have to be downloaded."""
    found: Counts = {}
    for name, query in COUNTS.items():
        files = DeltaTable(place.location.table_uri(name)).file_uris()
        with duckdb.connect() as database:
            rows = database.read_parquet(files, hive_partitioning=True)
            found[name] = dict(the(rows.query("rows", query)).fetchall())
    return found


def by_delta(place: LakePlace) -> Counts:
    found: Counts = {}
    for name, query in COUNTS.items():
        rows: Any = DeltaTable(place.location.table_uri(name)).to_pyarrow_table()
        with duckdb.connect() as database:
            found[name] = dict(the(database.from_arrow(rows).query("rows", query)).fetchall())
    return found


def by_spark(place: LakePlace, spark: SparkSession) -> Counts:
    lake = Lake(place.location.root, spark)
    return {
        name: {row[0]: row[1] for row in spark.sql(query, rows=getattr(lake, name)()).collect()}
        for name, query in ((name, query.replace("FROM rows", "FROM {rows}")) for name, query in COUNTS.items())
    }


def test_all_readers_see_the_same_before_and_after_compaction(
    spark: SparkSession, in_three_takes: LakePlace, events: Sequence[Event]
) -> None:
    before = by_spark(in_three_takes, spark)
    assert sum(before["events"].values()) == len(events)
    assert by_duckdb(in_three_takes) == by_delta(in_three_takes) == before

    done = compact(in_three_takes, quietly)

    assert done.after < done.before
    assert by_duckdb(in_three_takes) == by_delta(in_three_takes) == by_spark(in_three_takes, spark) == before


def test_a_predicate_on_the_day_opens_only_the_files_of_that_day(
    spark: SparkSession, at_once: Lake, events: Sequence[Event], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = copied(at_once, tmp_path)
    for file in place.require().of("events"):
        if file.day != "2023-11-15":
            (Path(place.location.root) / "events" / file.path).write_bytes(b"no Parquet")
    one_day = Lake(place.location.root, spark).events().where("day = DATE'2023-11-15'")
    one_day.explain()

    assert "PartitionFilters: [isnotnull(day" in capsys.readouterr().out
    assert one_day.count() == sum(event.at >= 1_700_006_400_000 for event in events) > 0


def test_the_files_say_what_they_contain(at_once: Lake) -> None:
    """Other engines skip files by these statistics."""
    for name in ("events", "jobs"):
        ranges = [file.seqs for file in at_once.snapshot.of(name) if file.seqs is not None]
        assert len(ranges) == len(at_once.snapshot.of(name))
        row = getattr(at_once, name)().selectExpr("min(seq)", "max(seq)", "count(*)").collect()[0]
        assert tuple(row) == (
            min(low for low, _ in ranges),
            max(high for _, high in ranges),
            at_once.snapshot.tables[name].delta.count(),
        )
