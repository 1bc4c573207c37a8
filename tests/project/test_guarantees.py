"""Every promise that docs/guarantees.md makes names a test that exists, and that `make test` runs."""

import re
from pathlib import Path

from tests.narrowing import the

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
CONFORMANCE = ROOT / "src/millrace/testing/conformance"


def place(file: str) -> Path:
    if file.startswith("conformance/"):
        return CONFORMANCE / file.removeprefix("conformance/")
    return ROOT / file


def marks(text: str, test: str) -> str:
    """What stands above a test, up to the blank line."""
    return the(re.search(rf"((?:^@.*\n)*)^(?:async )?def {test}\(", text, re.MULTILINE))[1]


def test_every_test_that_is_named_exists():
    missing = [
        f"{file}::{test}"
        for file, test in NAMED
        if not place(file).exists() or f"def {test}(" not in place(file).read_text(encoding="utf-8")
    ]

    assert len(NAMED) > 40
    assert missing == []


def test_every_test_that_is_named_is_part_of_make_test():
    nightly = [test for file, test in NAMED if "nightly" in marks(place(file).read_text(encoding="utf-8"), test)]

    assert nightly == []


def test_every_sentence_that_is_named_runs_on_every_store():
    suite = (ROOT / "tests/store/test_conformance.py").read_text(encoding="utf-8")
    modules = {Path(file).stem for file, _ in NAMED if file.startswith("conformance/")}

    assert [name for name in sorted(modules) if f"conformance.{name} import *" not in suite] == []


def test_every_row_of_a_table_of_promises_names_what_holds_it():
    tables = re.findall(r"^\| guarantee \| tested by \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]

    assert len(tables) >= 5
    assert [row for row in rows if "::test_" not in row and "the same:" not in row] == []
