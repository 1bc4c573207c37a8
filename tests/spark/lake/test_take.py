"""Taking history into a lake: the same tables, however it comes about."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.domain.event import Event, Kind
from millrace.spark.lake import Lake, LakePlace, TakeRequest, maintenance, ranges, take, taking
from millrace.spark.lake.audit import audit
from millrace.spark.lake.errors import HistoryLost, OtherStore
from millrace.spark.lake.maintenance import retain
from tests.spark.lake.compare import TABLES, rows, told
from tests.spark.lake.conftest import quietly
from tests.spark.lake.history import BEGIN, ListFeed, an_event, two_jobs

ALL = TakeRequest(groups=True)
DAY = 86_400_000


def test_a_lake_in_slices_equals_one_at_once(
    spark: SparkSession, events: Sequence[Event], at_once: Lake, empty: LakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs span slices, events come late, files are merged on the way: none of it shows. Nor does asking again."""
    monkeypatch.setattr(taking, "merge_crowded", partial(maintenance.merge_crowded, many=3))
    monkeypatch.setattr(ranges, "ROWS_PER_FILE", 40)
    cuts = slices(events)
    feed = ListFeed(spark, events)
    for end in (*cuts, len(events)):
        feed.end = end
        take(empty, spark, feed, ALL, quietly)
    lake = Lake(empty.location.root, spark)

    assert lake.state.take == len(cuts) + 1
    operations = [entry["operation"] for entry in lake.snapshot.tables["events"].delta.history()]
    assert "OPTIMIZE" in operations
    assert len(lake.snapshot.of("jobs")) > 3
    expected = told(at_once)
    assert told(lake) == expected

    feed.read = 0
    again = take(empty, spark, feed, ALL, quietly)
    assert (again.events, feed.read) == (0, 0)
    assert empty.require() == lake.snapshot

    done = maintenance.compact(empty, quietly)
    assert done.after < done.before
    merged = lake.refresh()
    assert told(merged, TABLES) == {name: expected[name] for name in TABLES}
    assert audit(merged).sound


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

    assert (part.events, part.takes) == (4, 2)
    assert (empty.require().state.cursor, empty.require().state.taken) == ("4", 4)


def test_a_gap_is_refused_then_accepted_recorded_and_shown(spark: SparkSession, empty: LakePlace) -> None:
    history = two_jobs()
    feed = ListFeed(spark, history)
    feed.end = 1
    take(empty, spark, feed, TakeRequest(), quietly)
    feed.end, feed.trimmed = len(history), 2
    with pytest.raises(HistoryLost, match=r"1 events were trimmed(.|\n)*--accept-gap"):
        take(empty, spark, feed, TakeRequest(), quietly)
    assert empty.require().state.taken == 1

    taken = take(empty, spark, feed, TakeRequest(accept_gap=True), quietly)

    assert [gap.lost for gap in taken.gaps] == [1]
    lake = Lake(empty.location.root, spark)
    assert lake.state.taken == len(history) - 1
    verdict = audit(lake)
    assert (verdict.sound, verdict.gaps, verdict.figures["missing"]) == (True, lake.state.gaps, 1)
    assert any("lost 1" in check.text for check in verdict.checks)


def test_a_lake_may_begin_in_the_middle(spark: SparkSession, empty: LakePlace) -> None:
    history = [
        *two_jobs(),
        an_event(4, Kind.REPLAYED, attempt=1, at=BEGIN + 5 * DAY),
        an_event(1, Kind.ENQUEUED, seq=3, at=BEGIN + 5 * DAY),
    ]
    take(empty, spark, ListFeed(spark, history), TakeRequest(since=BEGIN + 4 * DAY), quietly)
    lake = Lake(empty.location.root, spark)

    assert not lake.state.whole
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
    before = Lake(place.location.root, spark)
    now = max(event.at for event in events) + DAY

    done = retain(place, {"events": DAY, "attempts": DAY}, now)

    assert done is not None and done.rows > 0
    lake = Lake(place.location.root, spark)
    days = {str(row["day"]) for row in lake.events().select("day").distinct().collect()}
    assert days == {"2023-11-15"} == {file.day for file in lake.snapshot.of("attempts")}
    assert rows(lake.jobs()) == rows(at_once.jobs())
    assert audit(lake).sound
    assert before.events().count() == len(events)  # whoever looked before still reads the files
    again = retain(place, {"events": DAY}, now)
    assert again is not None and again.files == 0


def copied(lake: Lake, to: Path) -> LakePlace:
    return LakePlace(shutil.copytree(lake.place.location.root, to / "copy"))
