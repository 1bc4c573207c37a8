"""docs/report.md says what is so: its block runs, its options and sections are those there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.cli.pipeline.group import GROUP
from millrace.spark.lake import Lake
from millrace.spark.report import html
from tests.project.page import Session, blocks_of
from tests.spark.report.made import a_report

FILE = Path(__file__).parents[3] / "docs" / "report.md"
PAGE = FILE.read_text("utf-8")


async def test_its_block_runs(
    spark: SparkSession,
    lake_of_a_week: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    (tmp_path / "lake").symlink_to(lake_of_a_week.place.location.root)
    monkeypatch.chdir(tmp_path)
    [block] = blocks_of(PAGE)
    session = Session(FILE, tmp_path, lambda: capsys.readouterr().out)
    vars(session.module)["spark"] = spark

    assert await session.run(block) == "1200 jobs\n"
    assert "<h1>The shop</h1>" in (tmp_path / "report.html").read_text("utf-8")


def test_every_option_is_in_its_table():
    command = GROUP.get_command(None, "report")
    listed = set(re.findall(r"`(--[\w-]+)", PAGE.partition("## Options")[2].partition("## In Python")[0]))
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    shared = {"--url", "--json", "--app", "--config", "--help"}

    assert listed - shared <= known
    wanted = {"--lake", "--as-of", "--out", "--since", "--until", "--title", "--no-audit", "--no-store"}
    assert wanted | {"--master", "--memory"} <= listed


def test_every_section_is_in_its_table():
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", html(a_report()))
    rows = re.findall(
        r"^\| ([\w ]+) \|", PAGE.partition("## What is on it")[2].partition("## Options")[0], re.MULTILINE
    )

    assert rows[2:] == [title.lower() for title in titles]


def test_its_picture_is_there_and_small_enough_for_a_page():
    [name] = re.findall(r"\]\((images/[\w.-]+)\)", PAGE)
    picture = (FILE.parent / name).read_bytes()

    assert picture.startswith(b"\x89PNG") and len(picture) < 400_000
