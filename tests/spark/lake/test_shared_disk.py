"""A lake on a cluster: executors that write to a disk of their own must not lose history without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millrace.domain.event import Kind
from millrace.spark.lake import LakePlace, TakeRequest, take, writing
from millrace.spark.lake.errors import LakeBroken
from tests.spark.lake.conftest import quietly
from tests.spark.lake.history import ListFeed, an_event

HISTORY = [an_event(1, Kind.ENQUEUED, seq=seq) for seq in range(1, 9)]


def on_another_disk(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """The first file of this table lies on another machine's disk."""
    require_here = writing._require_here

    def without_the_first(location: Any, table: str, files: Any) -> None:
        if table == lost:
            (Path(location.root) / table / files[0].path).unlink()
        require_here(location, table, files)

    monkeypatch.setattr(writing, "_require_here", without_the_first)


def test_rows_that_executors_wrote_elsewhere_stop_the_run_and_nothing_is_committed(
    spark: SparkSession, empty: LakePlace, monkeypatch: pytest.MonkeyPatch
):
    feed = ListFeed(spark, HISTORY)
    on_another_disk(monkeypatch, "events")
    with pytest.raises(LakeBroken, match=r"Spark wrote 8 rows to .*events, and \d are there.*under the same path"):
        take(empty, spark, feed, TakeRequest(groups=False), quietly)
    assert empty.latest() is None

    monkeypatch.undo()
    on_another_disk(monkeypatch, "jobs")
    with pytest.raises(LakeBroken, match="rows to .*jobs"):
        take(empty, spark, feed, TakeRequest(groups=False), quietly)
    assert empty.latest() is None

    monkeypatch.undo()  # one disk for all again
    assert take(empty, spark, feed, TakeRequest(groups=False), quietly).events == 0
    assert empty.require().state.taken == 8
