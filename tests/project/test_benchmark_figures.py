"""The figures in docs/benchmarks.md say of which commit they are."""

import re
from pathlib import Path

import pytest

from benchmarks.lab import provenance
from benchmarks.lab.environment import ROOT

TABLE = """
<!-- figures of abc1234: src/millrace/worker -->
Commit `abc1234`.{more}

| | jobs/s |
|---|--:|
| millrace | 1 |
"""


def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: str | None, more: str = "") -> list[str]:
    monkeypatch.setattr(provenance, "git", lambda *arguments: commits)
    docs = tmp_path / "benchmarks.md"
    docs.write_text(TABLE.format(more=more), encoding="utf-8")
    return provenance.check_docs(docs)


def test_a_table_of_the_present_code_is_right(tmp_path, monkeypatch):
    assert checked(tmp_path, monkeypatch, "0") == []


def test_a_table_that_is_older_than_its_code_has_to_say_so(tmp_path, monkeypatch):
    [wrong] = checked(tmp_path, monkeypatch, "3")
    assert wrong.startswith("abc1234: 3 commits have changed src/millrace/worker since")

    assert checked(tmp_path, monkeypatch, "3", more=" These figures are older than the code.") == []


def test_a_commit_that_git_does_not_know_is_reported(tmp_path, monkeypatch):
    assert checked(tmp_path, monkeypatch, None) == ["abc1234: git does not know this commit"]


def test_every_table_of_results_names_its_commit():
    results = provenance.DOCS.read_text(encoding="utf-8").partition("\n## Results\n")[2]
    sections = re.split(r"^### ", results, flags=re.MULTILINE)[1:]

    assert len(sections) > 5
    for section in sections:
        title, tables = section.partition("\n")[0], list(provenance.tables(section))
        assert tables, f"{title}: no comment names the commit of these figures"
        for table in tables:
            assert f"`{table.commit}`" in table.text, f"{title}: the text does not name {table.commit}"
            assert all((ROOT / path).exists() for path in table.paths), (title, table.paths)
