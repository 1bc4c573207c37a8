"""Manifests of bulk operations: what a kill leaves of them, and that nothing else is ever taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.domain.errors import InvalidInput
from millrace.spark.bulk import resumed
from millrace.spark.bulk_manifest import (
    Answered,
    BulkManifest,
    BulkRequest,
    ManifestBusy,
    NotAManifest,
    Planned,
    opened_manifest,
)

ASKED = BulkRequest("replay", "sqlite:////jobs.db", "task = 'x'", "2026-11-15T00:00:00.000Z")
JOBS = [Planned(f"job-{n}", n, "mail", "send", "dead" if n % 2 else "completed", finished_ms=n) for n in range(1, 6)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "manifest.jsonl"


def answer(manifest: BulkManifest, jobs: int) -> None:
    manifest.begin(jobs)
    first = manifest.tally.answered
    manifest.answer([Answered(job.id, job.seq, job.state, "replayed", "now") for job in JOBS[first : first + jobs]])


def test_a_manifest_is_read_as_it_was_written(path: Path) -> None:
    with opened_manifest(path) as manifest:
        manifest.select(ASKED, JOBS)
        answer(manifest, 2)

    with opened_manifest(path) as again:
        assert again.tally.request == ASKED
        assert again.tally.kinds == {("mail", "send", "dead"): 3, ("mail", "send", "completed"): 2}
        assert (again.tally.jobs, again.tally.answers, again.tally.begun) == (5, {"replayed": 2}, 2)
        assert list(again.pending()) == JOBS[2:]


def test_wherever_it_was_cut_off_no_answer_is_made_up_and_no_job_forgotten(path: Path) -> None:
    with opened_manifest(path) as manifest:
        manifest.select(ASKED, JOBS)
        selected = path.stat().st_size
        answer(manifest, 2)
        answer(manifest, 3)
        manifest.end("now")
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1

    for size in range(first, len(whole), 3):  # lines have other lengths, so that all sorts of cuts come up
        path.write_bytes(whole[:size])
        with opened_manifest(path) as found:
            if size < selected:  # half a selection is none
                assert (found.tally.request, path.stat().st_size) == (None, 0)
                continue
            assert found.tally.answered == whole[:size].count(b'"answered"') - (b'"answered"' in torn(whole[:size]))
            assert list(found.pending()) == JOBS[found.tally.answered :]
            assert found.tally.begun >= found.tally.answered  # what was acted on is known to be in doubt
            answer(found, found.tally.left)
        with opened_manifest(path) as after:
            assert after.tally.answered == 5


def torn(data: bytes) -> bytes:
    return data[data.rindex(b"\n") + 1 :]


@pytest.mark.parametrize(
    "text", ["my notes\n", "my notes", '{"is": "planned"}\n', '{"a": 1}\n{"b": 2}\n', '{"is": "selected", "jobs": 1}\n']
)
def test_a_file_that_is_none_is_left_as_it_is(path: Path, text: str) -> None:
    path.write_text(text)

    with pytest.raises(NotAManifest, match="Name a new file"), opened_manifest(path):
        pass

    assert path.read_text() == text


def test_only_one_run_has_a_manifest_at_a_time(path: Path) -> None:
    with opened_manifest(path), pytest.raises(ManifestBusy, match="in use by another run"), opened_manifest(path):
        pass

    with opened_manifest(path) as free:
        assert free.tally.request is None


def test_a_manifest_is_not_used_for_something_else(path: Path) -> None:
    with opened_manifest(path) as manifest:
        assert not resumed(manifest, ASKED)
        manifest.select(ASKED, JOBS)

        assert resumed(manifest, BulkRequest("replay", ASKED.store, ASKED.where, "later"))
        with pytest.raises(InvalidInput, match="its operation is 'replay', not 'cancel'"):
            resumed(manifest, BulkRequest("cancel", ASKED.store, ASKED.where, "later"))
        with pytest.raises(InvalidInput, match="its limit is None, not 3"):
            resumed(manifest, BulkRequest("replay", ASKED.store, ASKED.where, "later", limit=3))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be written: No such file"), opened_manifest(tmp_path / "no" / "m"):
        pass
