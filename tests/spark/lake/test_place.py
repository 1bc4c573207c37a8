"""A lake without Spark: its creation, what is refused, which take readers see, and who wins when two commit."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from millrace.spark.lake import LakePlace
from millrace.spark.lake.delta import CommitConflict, DataFile, commit
from millrace.spark.lake.errors import (
    LakeBroken,
    LakeTooNew,
    NoLake,
    NoSuchTake,
    NotALake,
    OldLake,
    TakeGone,
)
from millrace.spark.lake.maintenance import compact
from millrace.spark.lake.place import VERSION, LakeState
from millrace.spark.lake.reading import read_here
from millrace.spark.lake.tables import DERIVED, REQUIRED, TABLES
from millrace.spark.lake.writing import write_here
from tests.spark.lake.conftest import quietly


def a_take(place: LakePlace, number: int, tables: tuple[str, ...] = DERIVED, **facts: Any) -> None:
    """Commit a take of one event, to `events` and to these derived tables."""
    there = place.prepare()
    state = LakeState(number, int(time.time() * 1000), "list", str(number), taken=number, **facts)
    if there["events"].take < number:
        commit(place.location, there["events"], number, an_event(place, number), state=encoded(state))
    for name in tables:
        if there[name].take < number:
            commit(place.location, there[name], number, [])


def encoded(state: Any) -> str:
    return msgspec.json.encode(state).decode()


def an_event(place: LakePlace, number: int) -> list[DataFile]:
    schema = TABLES["events"].arrow
    at = datetime(2026, 11, 14 + number, tzinfo=UTC)
    row = {"job": f"job-{number}", "seq": number, "n": 1, "at": at, "take": number}
    rows = pa.Table.from_pylist([row], schema=schema).append_column("day", pa.array([at.date()]))
    return write_here(rows.to_batches(), place.location, "events", "day")


def jobs_in(place: LakePlace, as_of: int | datetime | None = None) -> list[str]:
    lake = place.require(as_of)
    return sorted(read_here(place.location, "events", list(lake.of("events")))["job"].to_pylist())


def test_readers_see_the_newest_take_that_all_tables_have(empty: LakePlace) -> None:
    a_take(empty, 1)
    a_take(empty, 2, tables=DERIVED[:3])

    assert jobs_in(empty) == ["job-1"]
    assert {table.take for table in empty.require().tables.values()} == {1}

    a_take(empty, 2)
    assert jobs_in(empty) == ["job-1", "job-2"]
    assert empty.require().state.cursor == "2"


def test_a_commit_needs_the_version_that_its_writer_saw(empty: LakePlace) -> None:
    one, other = empty.prepare()["events"], empty.prepare()["events"]
    commit(empty.location, one, 1, an_event(empty, 1), state=encoded(LakeState(1, 0, "list", "1")))

    with pytest.raises(CommitConflict):
        commit(empty.location, other, 1, an_event(empty, 1), state=encoded(LakeState(1, 0, "list", "1")))
    tables = empty.tables()
    assert tables is not None and len(tables["events"].files) == 1


def test_a_commit_that_replaces_a_file_fails_if_a_compaction_has_rewritten_it(empty: LakePlace) -> None:
    """With retries, delta-rs 1.6.6 accepts it, and the rows of the file are there twice."""
    for number in (1, 2):
        row = pa.Table.from_pylist([{"seq": number, "queue": "mail"}], schema=TABLES["groups"].arrow)
        files = write_here(row.append_column("range", pa.array([0])).to_batches(), empty.location, "groups", "range")
        commit(empty.location, empty.prepare()["groups"], number, files)
    seen = empty.prepare()["groups"]
    seen_by_another = empty.prepare()["groups"]
    assert seen_by_another.delta.optimize.compact()["numFilesRemoved"] == 2

    with pytest.raises(CommitConflict):
        commit(empty.location, seen, 3, [], remove=seen.files[:1])
    assert sum(file.rows for file in empty.prepare()["groups"].files) == 2


def test_a_past_take_is_read_by_its_number_or_by_a_time(empty: LakePlace) -> None:
    instants = []
    for number in (1, 2, 3):
        a_take(empty, number)
        instants.append(committed_at(empty))
    compact(empty, quietly)

    assert jobs_in(empty, 1) == jobs_in(empty, instants[0]) == ["job-1"]
    assert jobs_in(empty, 2) == jobs_in(empty, instants[1]) == ["job-1", "job-2"]
    assert jobs_in(empty, 3) == jobs_in(empty, datetime.now(UTC)) == jobs_in(empty)
    for none in (0, 4, datetime(2020, 1, 1, tzinfo=UTC)):
        with pytest.raises(NoSuchTake, match="its takes are 1 to 3"):
            empty.require(none)


def committed_at(place: LakePlace) -> datetime:
    """The instant of the newest commit. No later commit has the same one: the next begins in a later millisecond."""
    tables = place.tables()
    assert tables is not None
    newest = max(table.delta.history(1)[0]["timestamp"] for table in tables.values())
    while time.time() * 1000 < newest + 2:
        time.sleep(0.001)
    return datetime.fromtimestamp((newest + 1) / 1000, UTC)


def test_a_time_between_the_commits_of_a_take_is_before_it(empty: LakePlace) -> None:
    a_take(empty, 1)
    a_take(empty, 2, tables=DERIVED[:2])
    between = committed_at(empty)
    a_take(empty, 2)

    assert jobs_in(empty, between) == ["job-1"]


def test_a_take_whose_files_are_gone_is_refused(empty: LakePlace) -> None:
    a_take(empty, 1)
    a_take(empty, 2)
    days = empty.require().of("events")
    newest = empty.prepare()["events"]
    newest.delta.delete("day = '2026-11-15'")
    [old] = [file for file in days if file.day == "2026-11-15"]
    (Path(empty.location.root) / "events" / old.path).unlink()

    with pytest.raises(TakeGone, match="removed by a vacuum"):
        empty.require(1)
    assert jobs_in(empty) == ["job-2"]


def test_the_state_is_found_after_other_commits_and_after_those_of_others(empty: LakePlace) -> None:
    a_take(empty, 1)
    a_take(empty, 2)
    table = empty.prepare()["events"].delta
    table.delete("day = '2026-11-15'")  # by a tool that knows nothing of takes
    table.alter.set_table_properties({"delta.appendOnly": "false"})

    assert empty.require().state.cursor == "2"


def test_a_newer_format_is_refused_and_new_fields_are_not(empty: LakePlace) -> None:
    there = empty.prepare()
    state = {**msgspec.to_builtins(LakeState(1, 0, "list", "1")), "invented_later": 1}
    commit(empty.location, there["events"], 1, [], state=encoded(state))
    for name in DERIVED:
        commit(empty.location, there[name], 1, [])
    assert empty.require().state.cursor == "1"

    newer = {**state, "take": 2, "version": VERSION + 1, "cursor": ["of another shape"]}
    commit(empty.location, empty.prepare()["events"], 2, [], state=encoded(newer))
    for name in DERIVED:
        commit(empty.location, empty.prepare()[name], 2, [])
    with pytest.raises(LakeTooNew, match="Use a newer Millrace"):
        empty.require()


def test_a_table_without_a_state_is_said_to_be_broken(empty: LakePlace) -> None:
    there = empty.prepare()
    for name in REQUIRED:
        commit(empty.location, there[name], 1, [])

    with pytest.raises(LakeBroken, match="does not say up to which event"):
        empty.require()


def test_where_there_is_no_lake_one_is_told_how_to_make_it(empty: LakePlace) -> None:
    for _ in range(2):
        with pytest.raises(NoLake, match="millrace pipeline run"):
            empty.require()
        empty.prepare()  # a run that was killed before its first take


def test_a_lake_that_was_half_created_is_completed(empty: LakePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace.spark.lake import place as module

    with monkeypatch.context() as patch:
        patch.setattr(module, "DERIVED", DERIVED[:2])
        patch.setattr(module.LakePlace, "tables", lambda _place: None)
        with pytest.raises(AssertionError):
            empty.prepare()
    (Path(empty.location.root) / "events" / "_delta_log" / f"{0:020}.json").unlink()

    assert set(empty.prepare()) == set(REQUIRED)


def test_a_directory_with_other_files_is_not_taken_for_a_lake(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("irreplaceable")

    with pytest.raises(NotALake):
        LakePlace(tmp_path).prepare()
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_lake_of_the_former_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_millrace" / "runs").mkdir(parents=True)

    for use in (LakePlace(tmp_path).require, LakePlace(tmp_path).prepare, LakePlace(tmp_path).latest):
        with pytest.raises(OldLake, match="older Millrace, in a format of its own.*Begin a new lake"):
            use()


def test_columns_that_this_release_has_added_are_added_to_an_older_lake(
    empty: LakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_take(empty, 1)
    groups = TABLES["groups"]
    grown = replace(groups, columns={**groups.columns, "invented_later": "bigint"})
    with monkeypatch.context() as patch:
        patch.setitem(TABLES, "groups", grown)
        names = [field.name for field in empty.prepare()["groups"].delta.schema().fields]
        assert names == [*groups.columns, "invented_later"]
        a_take(empty, 2)

    a_take(empty, 3)  # by the older release
    assert empty.require().state.take == 3
