"""The directory of a lake: what is published, who may write, what is removed. No Spark is needed for that."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from millrace.spark.lake.errors import LakeBroken, LakeBusy, LakeTooNew, LostTheRace, NoLake, NotALake
from millrace.spark.lake.manifest import VERSION, File, LakeManifest
from millrace.spark.lake.place import GRACE, KEPT_MANIFESTS, LakePlace


def a_manifest(run: int, *paths: str, at: int | None = None) -> LakeManifest:
    files = tuple(File(path, 1, 1, run) for path in paths)
    now = int(time.time() * 1000)
    return LakeManifest(run, "take", now if at is None else at, "0", str(run), "list", {"events": files})


def a_file(place: LakePlace, run: int) -> str:
    path = place.directory_for(run) / "events" / "part-0.parquet"
    path.parent.mkdir()
    path.write_bytes(b"x")
    return str(path.relative_to(place.path))


def test_the_newest_manifest_is_what_the_lake_is(empty: LakePlace) -> None:
    with empty.writing() as newest:
        assert newest is None
        empty.publish(a_manifest(1, "a"))
        empty.publish(a_manifest(2, "a", "b"))

    assert empty.require().paths == {"a", "b"}
    assert empty.require().cursor == "2"


def test_a_number_is_published_once(empty: LakePlace) -> None:
    with empty.writing():
        empty.publish(a_manifest(1, "mine"))
        with pytest.raises(LostTheRace, match="run again"):
            empty.publish(a_manifest(1, "theirs"))

    assert empty.require().paths == {"mine"}
    assert [file.name for file in empty.runs.iterdir()] == ["00000001.json"]


def test_one_writes_at_a_time_and_the_other_is_told_who(empty: LakePlace) -> None:
    with empty.writing(), pytest.raises(LakeBusy, match=r"another run is writing.*process \d+"), empty.writing():
        pytest.fail("two writers at once")

    with empty.writing() as newest:
        assert newest is None


def test_what_no_manifest_names_is_removed_by_the_next_writer(empty: LakePlace) -> None:
    with empty.writing():
        kept = a_file(empty, 1)
        empty.publish(a_manifest(1, kept))
        orphan = a_file(empty, 2)
        (empty.runs / ".00000002-draft").write_bytes(b"half a mani")

    with empty.writing():
        assert (empty.path / kept).exists()
        assert not (empty.path / orphan).exists()
        assert not (empty.path / orphan).parents[1].exists()
    assert [file.name for file in empty.runs.iterdir()] == ["00000001.json"]


def test_a_replaced_file_stays_for_those_who_are_reading_it(empty: LakePlace) -> None:
    long_ago = int((time.time() - 2 * GRACE) * 1000)
    with empty.writing():
        oldest, older, newest = (a_file(empty, run) for run in (1, 2, 3))
        empty.publish(a_manifest(1, oldest, at=long_ago))
        empty.publish(a_manifest(2, older, at=long_ago))  # the newest one until a moment ago
        empty.publish(a_manifest(3, newest))

    with empty.writing():
        assert [(empty.path / path).exists() for path in (oldest, older, newest)] == [False, True, True]


def test_old_manifests_are_removed_and_numbers_go_on(empty: LakePlace) -> None:
    with empty.writing():
        for run in range(1, KEPT_MANIFESTS + 4):
            empty.publish(a_manifest(run))

    with empty.writing() as newest:
        assert newest is not None
        assert newest.run == KEPT_MANIFESTS + 3
    assert len(list(empty.runs.iterdir())) == KEPT_MANIFESTS


def test_a_newer_format_is_refused_and_new_fields_are_not(empty: LakePlace) -> None:
    with empty.writing():
        empty.publish(a_manifest(1))
    file = empty.runs / "00000001.json"
    written = msgspec.json.decode(file.read_bytes())
    file.write_bytes(msgspec.json.encode({**written, "invented_later": 1}))
    assert empty.require().run == 1

    file.write_bytes(msgspec.json.encode({**written, "version": VERSION + 1, "files": "of another shape"}))
    with pytest.raises(LakeTooNew, match="Use a newer Millrace"):
        empty.require()


def test_a_damaged_manifest_is_said_to_be_one(empty: LakePlace) -> None:
    with empty.writing():
        empty.publish(a_manifest(1))
    (empty.runs / "00000001.json").write_bytes(b'{"run": 1')

    with pytest.raises(LakeBroken, match="is damaged"):
        empty.require()


def test_where_there_is_no_lake_one_is_told_how_to_make_it(empty: LakePlace) -> None:
    with pytest.raises(NoLake, match="millrace pipeline run"):
        empty.require()


def test_a_directory_with_other_files_is_not_taken_for_a_lake(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("irreplaceable")

    with pytest.raises(NotALake), LakePlace(tmp_path).writing():
        pytest.fail("it would have been written to")

    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]
