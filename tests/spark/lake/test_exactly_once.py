"""Runs that die, at each step, and two runs at once: every event is in the lake once, and all tables agree.

The deaths are exceptions that nothing handles, at the step where a signal would hit. test_killed.py kills processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from millrace.domain.event import Event
from millrace.spark.lake import Lake, LakePlace, TakeRequest, deriving, take, taking
from millrace.spark.lake.audit import audit
from millrace.spark.lake.delta import commit
from millrace.spark.lake.errors import LostTheRace
from millrace.spark.lake.feed import Stretch
from millrace.spark.lake.tables import DERIVED
from tests.spark.lake.compare import rows
from tests.spark.lake.conftest import quietly
from tests.spark.lake.history import ListFeed, table, two_jobs

ALL = TakeRequest(groups=True)


class Killed(BaseException):
    """As sudden as a signal: nothing that handles errors sees it."""


@pytest.fixture
def begun(spark: SparkSession, empty: LakePlace) -> ListFeed:
    """A lake after its first take, of two events."""
    feed = ListFeed(spark, two_jobs())
    feed.end = 2
    take(empty, spark, feed, ALL, quietly)
    feed.end = len(feed.all)
    return feed


def require_all(spark: SparkSession, place: LakePlace) -> None:
    lake = Lake(place.location.root, spark)
    assert lake.state.take == 2
    assert sorted(rows(lake.events().select("seq", "n"))) == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    assert rows(lake.jobs().select("seq", "state", "events")) == [(1, "completed", 3), (2, "running", 2)]
    assert rows(lake.attempts().select("seq", "attempt", "wait_ms", "run_ms")) == [(1, 1, 60_000, 60_000)]
    assert rows(lake.open_runs().select("seq", "attempt")) == [(2, 1)]
    assert rows(lake.throughput("day").select("enqueued", "claimed", "completed")) == [(2, 2, 1)]
    assert rows(lake.groups().select("seq")) == [(1,), (2,)]
    assert audit(lake).sound


def test_a_run_that_dies_before_its_commit_leaves_no_event(
    spark: SparkSession, empty: LakePlace, begun: ListFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = empty.require()
    with monkeypatch.context() as patch:
        patch.setattr(taking, "commit", dying)
        patch.setattr(taking, "discard", lambda *_given: None)  # nobody tidies up after kill -9
        with pytest.raises(Killed):
            take(empty, spark, begun, ALL, quietly)
    assert empty.require() == before

    take(empty, spark, begun, ALL, quietly)

    require_all(spark, empty)


def dying(*_given: Any, **_facts: Any) -> None:
    raise Killed


def test_a_run_that_dies_between_the_commits_is_completed_by_the_next(
    spark: SparkSession, empty: LakePlace, begun: ListFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run dies at the next table; readers see the former take until all tables have the new one."""
    before = empty.require()
    names = []

    def one_more(location: Any, base: Any, *given: Any, **facts: Any) -> None:
        names.append(base.name)
        if len(names) > 1:
            raise Killed
        commit(location, base, *given, **facts)

    monkeypatch.setattr(deriving, "commit", one_more)
    while (found := empty.require()).state.take == 1:
        assert found == before
        names.clear()
        try:
            take(empty, spark, begun, ALL, quietly)
        except Killed:
            continue

    assert begun.read == 2  # the store was read once for each take
    require_all(spark, empty)


def test_an_executor_that_dies_in_the_middle_doubles_nothing(
    spark: SparkSession, empty: LakePlace, begun: ListFeed, tmp_path: Path
) -> None:
    begun.shares = lambda stretch: [DyingShare(table(part_of(begun, stretch)), tmp_path / "died")]  # type: ignore[method-assign]

    take(empty, spark, begun, ALL, quietly)

    assert (tmp_path / "died").exists()
    require_all(spark, empty)


def part_of(feed: ListFeed, stretch: Stretch) -> list[Event]:
    return list(feed.all[int(stretch.after) : int(stretch.until)])


@dataclass(frozen=True)
class DyingShare:
    """The process that reads it first is killed after the first event."""

    events: pa.Table
    died: Path

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self.events.to_batches(max_chunksize=1):
            yield batch
            if not self.died.exists():
                self.died.touch()
                os._exit(9)


def test_of_two_runs_at_once_one_takes_and_the_other_is_told_who(
    spark: SparkSession, empty: LakePlace, begun: ListFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after_another(*given: Any, **facts: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(taking, "commit", commit)
            take(empty, spark, begun, ALL, quietly)
        commit(*given, **facts)

    monkeypatch.setattr(taking, "commit", after_another)
    with pytest.raises(LostTheRace, match=rf"process {os.getpid()} on .* has committed take 2 .* first"):
        take(empty, spark, begun, ALL, quietly)

    require_all(spark, empty)
    there = {path for name in ("events", *DERIVED) for path in empty.sizes(name) if path.endswith(".parquet")}
    committed = {
        file.path for as_of in (1, 2) for table in empty.require(as_of).tables.values() for file in table.files
    }
    assert there == committed  # the loser has removed its files


def test_two_runs_that_complete_one_take_at_once_agree(
    spark: SparkSession, empty: LakePlace, begun: ListFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(deriving, "commit", dying)
        with pytest.raises(Killed):
            take(empty, spark, begun, ALL, quietly)

    def after_another(*given: Any, **facts: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(deriving, "commit", commit)
            take(empty, spark, begun, ALL, quietly)
        monkeypatch.setattr(deriving, "commit", commit)
        commit(*given, **facts)

    monkeypatch.setattr(deriving, "commit", after_another)
    take(empty, spark, begun, ALL, quietly)

    require_all(spark, empty)


def test_a_compaction_during_a_take_doubles_nothing(
    spark: SparkSession, empty: LakePlace, begun: ListFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The take's commit to `jobs` removes a file which the compaction has just rewritten."""
    begun.end = 3
    take(empty, spark, begun, ALL, quietly)
    begun.end = len(begun.all)
    merged: list[int] = []

    def after_a_compaction(location: Any, base: Any, *given: Any, **facts: Any) -> None:
        if base.name == "jobs" and not merged:
            newest = empty.prepare()["jobs"]
            merged.append(newest.delta.optimize.compact()["numFilesRemoved"])
        commit(location, base, *given, **facts)

    monkeypatch.setattr(deriving, "commit", after_a_compaction)
    take(empty, spark, begun, ALL, quietly)

    assert merged == [2]
    lake = Lake(empty.location.root, spark)
    assert rows(lake.jobs().select("seq", "state", "events")) == [(1, "completed", 3), (2, "running", 2)]
    assert audit(lake).sound
