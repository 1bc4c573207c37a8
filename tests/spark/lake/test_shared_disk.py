"""A lake on a cluster: executors that write to a disk of their own must not lose history without a word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import DataFrame, SparkSession

from millrace.domain.event import Kind
from millrace.spark.lake import LakePlace, TakeRequest, compaction, files, take, taking
from millrace.spark.lake.errors import LakeBroken
from tests.spark.lake.conftest import quietly
from tests.spark.lake.history import ListFeed, an_event

HISTORY = [an_event(1, Kind.ENQUEUED, seq=seq) for seq in range(1, 9)]


Elsewhere = Callable[[ModuleType, str], None]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    """From now on the first file of a table lies on another machine's disk."""

    def lost(module: ModuleType, name: str) -> None:
        def write(rows: DataFrame, to: Path, table: str, *, by: Sequence[str] = ()) -> int:
            count = files.write(rows, to, table, by=by)
            if table == name:
                min((to / table).rglob("*.parquet")).unlink()
            return count

        monkeypatch.setattr(module, "write", write)

    return lost


def test_rows_that_executors_wrote_elsewhere_stop_the_run_and_nothing_is_published(
    spark: SparkSession, empty: LakePlace, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
):
    feed = ListFeed(spark, HISTORY)
    elsewhere(taking, "events")
    with pytest.raises(LakeBroken, match=r"Spark wrote 8 rows to .*events, and \d are there.*under the same path"):
        take(empty, spark, feed, TakeRequest(groups=False), quietly)
    assert empty.latest() is None

    monkeypatch.undo()  # one disk for all again
    assert take(empty, spark, feed, TakeRequest(groups=False), quietly).events == 8

    before = empty.require()
    elsewhere(compaction, "jobs")
    with pytest.raises(LakeBroken, match="rows to .*jobs"):
        compaction.fold(empty, spark, before, {"jobs": list(before.of("jobs"))}, quietly)
    assert empty.require() == before
