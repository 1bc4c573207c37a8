"""Taking history into a lake: the same tables, however it comes about."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from millrace.domain.event import Event, Kind
from millrace.spark.lake import Lake, LakePlace, TakeRequest, compaction, take, taking
from millrace.spark.lake.audit import audit
from millrace.spark.lake.errors import HistoryLost, LostTheRace, OtherStore
from millrace.spark.lake.files import write
from millrace.spark.lake.retention import retain
from tests.spark.lake.compare import TABLES, rows, told
from tests.spark.lake.conftest import quietly
from tests.spark.lake.history import BEGIN, ListFeed, an_event

ALL = TakeRequest(groups=True)
DAY = 86_400_000


def test_a_lake_in_slices_equals_one_at_once(
    spark: SparkSession, events: Sequence[Event], at_once: Lake, empty: LakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs span slices, events come late, files are folded on the way: none of it shows. Nor does asking again."""
    monkeypatch.setattr(taking, "crowded", lambda manifest: compaction.crowded(manifest, many=3))
    cuts = slices(events)
    feed = ListFeed(spark, events)
    for end in (*cuts, len(events)):
        feed.end = end
        take(empty, spark, feed, ALL, quietly)
    lake = Lake(empty.path, spark)

    assert lake.manifest.run > len(cuts) + 1  # some runs were compactions
    expected = told(at_once)
    assert told(lake) == expected

    feed.read = 0
    again = take(empty, spark, feed, ALL, quietly)
    assert (again.events, feed.read) == (0, 0)
    assert empty.require() == lake.manifest

    done = compaction.compact(empty, spark, on_progress=quietly)
    assert done is not None and done.after < done.before
    folded = lake.refresh()
    assert told(folded, TABLES) == {name: expected[name] for name in TABLES}
    assert audit(folded).sound


def test_the_slices_cut_where_it_hurts(events: Sequence[Event]) -> None:
    """A claim on one side, its end on the other; and after a cut, events of a day that was over before it."""
    for cut in slices(events):
        claimed = {event.lease for event in events[:cut] if event.kind is Kind.CLAIMED}
        ended = {event.lease for event in events[cut:] if event.kind not in (Kind.CLAIMED, Kind.RECLAIMED)}
        assert claimed & ended - {None}
    last = slices(events)[-1]
    assert min(event.at // DAY for event in events[last:]) < max(event.at // DAY for event in events[:last])


def slices(events: Sequence[Event]) -> list[int]:
    back = next(at for at in range(1, len(events)) if events[at].at < events[at - 1].at)
    return sorted([*random.Random(3).sample(range(len(events) // 4, back), 2), back])


def test_a_long_history_is_taken_stretch_by_stretch(
    spark: SparkSession, empty: LakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = [an_event(1, Kind.ENQUEUED, seq=seq) for seq in range(1, 8)]
    monkeypatch.setattr(taking, "STRETCH", 3)

    part = take(empty, spark, ListFeed(spark, history), TakeRequest(limit=4), quietly)

    assert (part.events, part.stretches) == (4, 2)
    assert (empty.require().cursor, empty.require().taken) == ("4", 4)


def test_a_run_that_dies_leaves_nothing_and_the_next_takes_it_all(
    spark: SparkSession, empty: LakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = two_jobs()
    feed = ListFeed(spark, history)
    feed.end = 2
    take(empty, spark, feed, TakeRequest(), quietly)
    before = empty.require()
    feed.end = len(history)
    for table in ("events", "jobs", "worker_use"):
        with monkeypatch.context() as patch:
            patch.setattr(taking, "write", _dying_at(table, write))
            patch.setattr(taking, "shutil", SimpleNamespace(rmtree=_nothing))  # nobody tidies up after kill -9
            with pytest.raises(_Killed):
                take(empty, spark, feed, TakeRequest(), quietly)
        assert len(list(empty.data.iterdir())) == 2  # with what the dead run left; that of the one before it is gone
        assert empty.require() == before
    assert Lake(empty.path, spark).events().count() == 2

    take(empty, spark, feed, TakeRequest(), quietly)

    assert len(list(empty.data.iterdir())) == 2
    lake = Lake(empty.path, spark)
    assert rows(lake.jobs().select("seq", "state", "events")) == [(1, "completed", 3), (2, "running", 2)]
    assert rows(lake.attempts().select("seq", "attempt", "wait_ms", "run_ms")) == [(1, 1, 60_000, 60_000)]


def test_of_two_runs_at_once_one_is_kept(
    spark: SparkSession, empty: LakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where locks do not work (some network file systems), the manifest still decides."""
    history = two_jobs()
    monkeypatch.setattr(LakePlace, "_lock", lambda *_: None)
    monkeypatch.setattr(LakePlace, "_sweep", lambda *_: None)
    publish = LakePlace.publish

    def meanwhile(place: LakePlace, manifest: Any) -> None:
        publish(place, manifest)
        publish(place, manifest)  # as another run would have, a moment before

    monkeypatch.setattr(LakePlace, "publish", meanwhile)
    with pytest.raises(LostTheRace):
        take(empty, spark, ListFeed(spark, history), TakeRequest(), quietly)

    assert Lake(empty.path, spark).events().count() == len(history)


def test_a_gap_is_refused_then_accepted_recorded_and_shown(spark: SparkSession, empty: LakePlace) -> None:
    history = two_jobs()
    feed = ListFeed(spark, history)
    feed.end = 1
    take(empty, spark, feed, TakeRequest(), quietly)
    feed.end, feed.trimmed = len(history), 2
    with pytest.raises(HistoryLost, match=r"1 events were trimmed(.|\n)*--accept-gap"):
        take(empty, spark, feed, TakeRequest(), quietly)
    assert empty.require().taken == 1

    taken = take(empty, spark, feed, TakeRequest(accept_gap=True), quietly)

    assert [gap.lost for gap in taken.gaps] == [1]
    lake = Lake(empty.path, spark)
    assert lake.manifest.taken == len(history) - 1
    verdict = audit(lake)
    assert (verdict.sound, verdict.gaps, verdict.figures["missing"]) == (True, lake.manifest.gaps, 1)
    assert any("lost 1" in check.text for check in verdict.checks)


def test_a_lake_may_begin_in_the_middle(spark: SparkSession, empty: LakePlace) -> None:
    history = [
        *two_jobs(),
        an_event(4, Kind.REPLAYED, attempt=1, at=BEGIN + 5 * DAY),
        an_event(1, Kind.ENQUEUED, seq=3, at=BEGIN + 5 * DAY),
    ]
    take(empty, spark, ListFeed(spark, history), TakeRequest(since=BEGIN + 4 * DAY), quietly)
    lake = Lake(empty.path, spark)

    assert not lake.manifest.whole
    assert lake.events().count() == 2
    verdict = audit(lake)
    assert (verdict.sound, verdict.figures["begun_before"]) == (True, 1)


def test_one_lake_is_of_one_store(spark: SparkSession, at_once: Lake, events: Sequence[Event], tmp_path: Path) -> None:
    place = copied(at_once, tmp_path)
    feed = ListFeed(spark, events)
    feed.name = "elsewhere"

    with pytest.raises(OtherStore, match="--moved"):
        take(place, spark, feed, TakeRequest(), quietly)
    assert take(place, spark, feed, TakeRequest(moved=True), quietly).events == 0


def test_retention_drops_whole_days_and_the_audit_still_holds(
    spark: SparkSession, events: Sequence[Event], at_once: Lake, tmp_path: Path
) -> None:
    place = copied(at_once, tmp_path)
    before = Lake(place.path, spark)
    now = max(event.at for event in events) + DAY

    done = retain(place, {"events": DAY, "attempts": DAY}, now)

    assert done is not None and done.rows > 0
    lake = Lake(place.path, spark)
    days = {str(row["day"]) for row in lake.events().select("day").distinct().collect()}
    assert days == {"2023-11-15"} == {file.day for file in lake.manifest.of("attempts")}
    assert rows(lake.jobs()) == rows(at_once.jobs())
    assert audit(lake).sound
    assert before.events().count() == len(events)  # whoever looked before still reads the files
    again = retain(place, {"events": DAY}, now)
    assert again is not None and again.files == 0


def test_files_of_an_older_version_lack_columns_which_are_null(
    spark: SparkSession, at_once: Lake, events: Sequence[Event], tmp_path: Path
) -> None:
    place = copied(at_once, tmp_path)
    for file in place.require().of("events"):
        _without_column(place.path / file.path, "duration_ms")

    found = Lake(place.path, spark).events()

    assert found.columns == at_once.events().columns
    assert found.where("duration_ms IS NULL").count() == len(events)


def copied(lake: Lake, to: Path) -> LakePlace:
    return LakePlace(shutil.copytree(lake.place.path, to / "copy"))


def two_jobs() -> list[Event]:
    """One that completes, one that still runs."""
    held = {"attempt": 1, "lease": "a", "worker": "w"}
    return [
        an_event(1, Kind.ENQUEUED),
        an_event(2, Kind.CLAIMED, **held),
        an_event(1, Kind.ENQUEUED, seq=2),
        an_event(3, Kind.COMPLETED, duration=7, **held),
        an_event(2, Kind.CLAIMED, seq=2, attempt=1, lease="b", worker="w"),
    ]


class _Killed(BaseException):
    """As sudden as a signal: nothing that handles errors sees it."""


def _nothing(*_given: Any, **_how: Any) -> None:
    """What a dead process does."""


def _dying_at(table: str, write: Any) -> Any:
    def dying(found: DataFrame, to: Path, name: str, **how: Any) -> int:
        sent: int = write(found, to, name, **how)
        if name == table:
            raise _Killed
        return sent

    return dying


def _without_column(path: Path, column: str) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(path).drop([column])
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    pq.write_table(table, path)
