"""One busy history and the lake that was built from it at once, for all tests that only read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.spark.lake import Lake, LakePlace, TakeRequest, take
from tests.spark.lake.history import ListFeed, busy_history


@pytest.fixture(scope="session")
def history() -> tuple[list[Event], list[Job]]:
    return asyncio.run(busy_history(seed=9))


@pytest.fixture(scope="session")
def events(history: tuple[list[Event], list[Job]]) -> Sequence[Event]:
    return history[0]


@pytest.fixture(scope="session")
def at_once(spark: SparkSession, events: Sequence[Event], tmp_path_factory: pytest.TempPathFactory) -> Lake:
    path = tmp_path_factory.mktemp("lake") / "at-once"
    take(LakePlace(path), spark, ListFeed(spark, events), TakeRequest(groups=True), quietly)
    return Lake(path, spark)


@pytest.fixture
def empty(tmp_path: Path) -> LakePlace:
    return LakePlace(tmp_path / "lake")


def quietly(text: str) -> None:
    """Progress that nobody watches."""
