"""The options of `format("millrace")`: one table, and nothing that is not in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millrace.domain.errors import InvalidInput
from millrace.spark.open import url_from
from millrace.spark.options import OPTIONS, SourceOptions, read_options

ROOT = Path(__file__).resolve().parents[2]
URL = "sqlite:////x/jobs.db"


def test_options_are_read_in_any_case_and_the_rest_is_at_its_default():
    found = read_options({"URL": URL, "table": "events", "BATCHROWS": "500", "columns": " job , n "}, "batch")

    assert (found["url"], found["table"], found["batchRows"], found["columns"]) == (URL, "events", 500, ("job", "n"))
    assert (found["partitions"], found["startingCursor"], found["pushFilters"]) == (None, "earliest", False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tabel": "jobs"}, "has no option 'tabel'. Did you mean 'table'"),
        ({"batchrow": "1"}, "Did you mean 'batchRows'"),
        ({"xyz": "1"}, "Known are: batchRows, columns"),
        ({"maxEventsPerTrigger": "5"}, "option maxEventsPerTrigger is for stream, and does nothing for batch"),
        ({"path": "/x"}, "a store is no path"),
        ({"batchRows": "0"}, "a whole number from 1 on, not '0'"),
        ({"batchRows": "many"}, "a whole number"),
        ({"batchRows": "_"}, "a whole number"),
        ({"pushFilters": "yes"}, "takes true or false, not 'yes'"),
        ({"columns": "a,,b"}, "names between commas"),
        ({"table": " "}, "must not be empty"),
        ({"urlEnv": "X"}, "not url and urlEnv together"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(given: dict[str, str], words: str):
    with pytest.raises(InvalidInput) as refused:
        read_options({"url": URL, **given}, "batch")

    assert words in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hunter2@db/jobs",
        "redis://:hunter2@db/0",
        "s3://bucket/x?secret_key=hunter2",
        "s3://bucket/x?aws_session_token=hunter2",
    ],
)
def test_a_secret_in_the_url_is_refused_and_not_repeated(url: str):
    with pytest.raises(InvalidInput, match="urlEnv or urlFile") as refused:
        read_options({"url": url, "table": "jobs"}, "batch")

    assert "hunter2" not in str(refused.value)


def test_the_url_is_looked_up_where_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    database = tmp_path / "jobs.db"
    database.touch()
    monkeypatch.setenv("WHERE_JOBS_ARE", f"sqlite:///{database}")
    file = tmp_path / "url"
    file.write_text(f" sqlite:///{database}\n")

    for given in ({"urlEnv": "WHERE_JOBS_ARE"}, {"urlFile": str(file)}, {"url": f"sqlite:///{database}"}):
        assert url_from(read_options({"table": "jobs", **given}, "batch")) == f"sqlite:///{database}"
    with pytest.raises(InvalidInput, match="spark.executorEnv.NOWHERE"):
        url_from(SourceOptions({"url": None, "urlEnv": "NOWHERE", "urlFile": None}))
    with pytest.raises(InvalidInput, match=r"option urlFile\) cannot be read"):
        url_from(SourceOptions({"url": None, "urlEnv": None, "urlFile": str(tmp_path / "none")}))


def test_the_documentation_has_the_same_table():
    page = (ROOT / "docs/spark.md").read_text(encoding="utf-8")
    section = re.search(r"^## Options\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    assert section is not None

    assert re.findall(r"^\| `(\w+)` \| (.*) \|$", section[1], re.MULTILINE) == [
        (option.name, " | ".join((option.type, option.said, ", ".join(sorted(option.uses)), option.help)))
        for option in OPTIONS
    ]
