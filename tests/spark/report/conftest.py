"""Lakes for the report: a made-up week, and events made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.domain.event import Event
from millrace.spark.lake import Lake, LakePlace, TakeRequest, take
from tests.spark.lake.history import ListFeed
from tests.spark.report.week import WeekFeed, a_week

LakeOf = Callable[[Sequence[Event]], Lake]


@pytest.fixture(scope="session")
def week() -> list[Event]:
    return a_week(1_200)


@pytest.fixture(scope="session")
def lake_of_a_week(spark: SparkSession, week: list[Event], tmp_path_factory: pytest.TempPathFactory) -> Lake:
    path = tmp_path_factory.mktemp("report") / "lake"
    take(LakePlace(path), spark, WeekFeed(spark, week), TakeRequest(groups=True), lambda _told: None)
    return Lake(path, spark)


@pytest.fixture
def lake_of(spark: SparkSession, tmp_path: Path) -> LakeOf:
    def made(events: Sequence[Event]) -> Lake:
        take(
            LakePlace(tmp_path / "lake"), spark, ListFeed(spark, events), TakeRequest(groups=False), lambda _told: None
        )
        return Lake(tmp_path / "lake", spark)

    return made
