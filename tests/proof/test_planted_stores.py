"""Bugs planted in Lua, SQL and the object engine: the suites that every store runs must find each of them.

A bug is planted in a copy of the package that only one test process sees. A few of them, others every day, are planted
in each run; all of them, and with the model too, at night.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

import millrace
from millrace.testing import conformance
from tests.proof.store_bugs import BUGS, Bug, Edit

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(millrace.__file__).parent
SOUND = "test_a_release_gives_the_job_back_at_once_and_uncounted"  # holds with every bug: the store still works
IMPATIENT = (
    Edit("testing/conformance/waiting.py", r"PATIENCE = 60\.0", "PATIENCE = 8.0"),
    Edit("testing/conformance/waking.py", r"DEADLINE = 45\.0", "DEADLINE = 8.0"),
)
A_DAY = 5
NUMBER = datetime.now(UTC).toordinal()
TODAY = [sorted(BUGS)[(NUMBER * A_DAY + n) % len(BUGS)] for n in range(A_DAY)]
AS_MANY = {"MILLRACE_MODEL_EXAMPLES": "100"}  # examples of each seed, and none of them shrunk


def planted(bug: Bug, folder: Path) -> Path:
    """A folder to import the package from: links to what is there, and the files with the bug.

    A sentence about a wake-up fails by its deadline, which is shorter here: a slow machine only fails it sooner.
    """
    edits = [*bug.edits, *IMPATIENT]
    texts = {edit.file: (PACKAGE / edit.file).read_text("utf-8") for edit in edits}
    for edit in edits:
        texts[edit.file] = edit.made_in(texts[edit.file])
    copied = folder / "millrace"
    copied.symlink_to(PACKAGE)
    for file, text in texts.items():
        target = copied
        for part in Path(file).parts:
            _unfold(target)
            target /= part
        target.unlink()
        target.write_text(text, "utf-8")
    return folder


def _unfold(folder: Path) -> None:
    """A link to a folder becomes a folder of links."""
    if folder.is_symlink():
        original = folder.resolve()
        folder.unlink()
        folder.mkdir()
        for entry in original.iterdir():
            (folder / entry.name).symlink_to(entry)


def verdicts(folder: Path, tests: Sequence[str], chosen: str, environment: Mapping[str, str]) -> dict[str, bool]:
    """Which tests passed, by name, where the package is imported from this folder."""
    results = folder / "results.xml"
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "-m", "not nightly", "-k", chosen]
    quickly = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*command, f"--junitxml={results}", f"--basetemp={folder / 'tmp'}", *tests],
        cwd=ROOT,
        env={**os.environ, **environment, **quickly, "PYTHONPATH": f"{folder}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert results.exists(), done.stdout + done.stderr
    cases = ElementTree.parse(results).iter("testcase")
    return {str(case.get("name")): not {child.tag for child in case} & {"failure", "error"} for case in cases}


def find(bug: Bug, folder: Path) -> None:
    tests = [f"tests/store/test_conformance.py::{sentence}" for sentence in (SOUND, bug.sentence)]
    found = verdicts(planted(bug, folder), tests, bug.store, {})
    sound = [passed for name, passed in found.items() if name.startswith(SOUND)]
    said = [passed for name, passed in found.items() if name.startswith(bug.sentence)]
    assert sound == [True], f"nothing works with it, so it is no bug that has to be looked for: {found}"
    assert said, f"there is no sentence {bug.sentence} for {bug.store}"
    assert not all(said), "the bug was not found"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TODAY)
def test_a_bug_planted_in_a_store_is_found_by_a_sentence(name, tmp_path):
    find(BUGS[name], tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(BUGS))
def test_every_bug_planted_in_a_store_is_found_by_a_sentence(name, tmp_path):
    find(BUGS[name], tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", sorted(name for name, bug in BUGS.items() if bug.model))
def test_a_bug_about_batches_is_found_by_the_model(name, tmp_path):
    bug = BUGS[name]
    found = verdicts(planted(bug, tmp_path), ["tests/store/test_model.py"], f"ledger and {bug.store}", AS_MANY)

    assert found and not all(found.values()), "the bug was not found"


@pytest.mark.parametrize("name", sorted(BUGS))
def test_every_bug_can_still_be_planted(name, tmp_path):
    folder = planted(BUGS[name], tmp_path)

    for edit in BUGS[name].edits:
        assert (folder / "millrace" / edit.file).read_text("utf-8") != (PACKAGE / edit.file).read_text("utf-8")
    assert (folder / "millrace" / "py.typed").resolve() == PACKAGE / "py.typed"


def test_a_bug_that_cannot_be_planted_says_so():
    with pytest.raises(AssertionError, match="plant me again"):
        Edit("x.lua", "no such text", "").made_in("something else")


def test_bugs_are_planted_in_every_store_that_says_rules_again():
    assert {bug.store for bug in BUGS.values()} == {"redis", "postgres", "sqlite", "object"}
    assert len(BUGS) >= 19


def test_the_sentence_that_holds_with_every_bug_exists():
    assert hasattr(__import__(f"{conformance.__name__}.settling", fromlist=["_"]), SOUND)
