"""Tables to fill by hand, in DuckDB, an engine that starts in milliseconds; and the lake of two made-up weeks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from millrace.domain.event import Event
from millrace.spark.lake import Lake, LakePlace, TakeRequest, take
from tests.spark.analytics.history import two_weeks
from tests.spark.analytics.tables import Tables
from tests.spark.analytics.tables import tables as new_tables
from tests.spark.report.week import WeekFeed


@pytest.fixture
def tables() -> Iterator[Tables]:
    with new_tables() as made:
        yield made


@pytest.fixture(scope="session")
def events() -> list[Event]:
    return two_weeks(1_000)


@pytest.fixture(scope="session")
def lake_of_two_weeks(spark: SparkSession, events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> Lake:
    path = tmp_path_factory.mktemp("analytics") / "lake"
    take(LakePlace(path), spark, WeekFeed(spark, events), TakeRequest(groups=True), lambda _text: None)
    return Lake(path, spark)
