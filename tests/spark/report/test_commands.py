"""`millrace pipeline report` and the end of `millrace demo`, as they are typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from millrace.cli import exits
from millrace.cli.demo import report as demo_report
from millrace.cli.output import Output
from millrace.cli.pipeline import options as pipeline_options
from millrace.cli.pipeline.report import write_whole
from millrace.cli.root import run
from millrace.demo import report as demo
from millrace.demo.run import DemoSettings
from millrace.domain.event import Event, Kind
from millrace.spark.lake import Lake
from tests.spark.conftest import Place
from tests.spark.filled import fill
from tests.spark.report.week import BEGIN, HOUR


def test_a_page_of_a_part_of_the_lake_is_written_and_its_figures_are_told(
    shared_session: None, lake_of_a_week: Lake, week: list[Event], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    page = tmp_path / "report.html"
    page.write_text("as it was")

    when = ("--since", "2026-11-03T01:30Z", "--until", "2026-11-03T23:20Z")  # widened to full hours
    where = ("--lake", str(lake_of_a_week.place.location.root), "--out", str(page))
    code = run(["pipeline", "report", *where, *when, "--title", "T <1>", "--no-audit", "--json"])

    told = json.loads(capsys.readouterr().out)
    kinds = Counter(event.kind for event in week if BEGIN + 25 * HOUR <= event.at < BEGIN + 48 * HOUR)
    assert code == exits.OK and told["report"] == str(page) and told["sound"] is None
    assert (told["accepted"], told["completed"]) == (kinds[Kind.ENQUEUED], kinds[Kind.COMPLETED]) > (100, 100)
    assert (told["died"], told["retries"]) == (kinds[Kind.BURIED], kinds[Kind.RETRIED])
    text = page.read_text("utf-8")
    assert (
        text.startswith("<!doctype html>")
        and "<title>T &lt;1&gt;</title>" in text
        and told["bytes"] == len(text.encode())
    )
    ended = kinds[Kind.COMPLETED] + kinds[Kind.BURIED] + kinds[Kind.RETRIED]
    assert f'<td class="name">all</td><td class="number">{ended}</td>' in text.partition('id="running"')[2]
    assert ", by 15 minutes</p>" in text
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--out", "."), "is a folder; name a file, such as report.html"),
        (("--out", "nowhere/report.html"), "there is no folder nowhere"),
        (("--out", "r.html", "--since", "yesterday-ish"), "--since takes how long ago"),
        (("--out", "r.html", "--since", "1d", "--until", "2d"), "must be earlier than"),
        (("--out", "r.html", "--until", "999999999d"), "--until"),
        ((), "--out"),
    ],
)
def test_what_cannot_be_is_refused_before_spark_starts(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        pipeline_options, "spark_session", lambda *_given, **_settings: pytest.fail("Spark was started")
    )

    code = run(["pipeline", "report", "--lake", "lake", *arguments])

    assert code == exits.USAGE and words in capsys.readouterr().err
    assert os.listdir() == []


def test_a_folder_that_is_no_lake_is_refused_and_the_page_stays_as_it_was(
    shared_session: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    page = tmp_path / "report.html"
    page.write_text("as it was")

    code = run(["pipeline", "report", "--lake", str(tmp_path / "none"), "--out", str(page)])

    assert code != exits.OK and "millrace pipeline run" in capsys.readouterr().err
    assert page.read_text() == "as it was"


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_from: str, _to: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_whole(tmp_path / "report.html", "text")

    assert os.listdir(tmp_path) == []


# ── the demo ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly
def test_the_demo_makes_a_page_of_its_store_with_the_audit_against_it(
    shared_session: None, sqlite: Place, tmp_path: Path
):
    with sqlite.open() as opened:
        opened.run(fill(opened.store, 10))

    demo.main(sqlite.url, tmp_path)

    page = (tmp_path / demo.PAGE).read_text()
    assert "The demo’s web shop" in page and 'class="banner good"' in page
    assert "the records of the store agree with its history" in page and "0 events behind the store" in page


async def test_without_spark_the_demo_says_in_one_line_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(demo, "has_spark", lambda: False)

    assert await demo_report.make_page(Output(), DemoSettings(3.0, 60, 1, tmp_path)) is None

    [line] = capsys.readouterr().err.splitlines()
    assert "pip install 'pyspark" in line


async def test_a_page_that_could_not_be_made_is_said_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'java.lang.OutOfMemoryError: none left' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))

    assert await demo_report.make_page(Output(), DemoSettings(3.0, 60, 1, tmp_path)) is None

    assert "could not be created: java.lang.OutOfMemoryError: none left" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_whole_demo_ends_with_its_page(tmp_path: Path):
    command = [sys.executable, "-m", "millrace", "demo", "--seconds", "3", "--json", "--report", "--dir", "shop"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)

    told = json.loads(ran.stdout)
    assert (ran.returncode, ran.stderr) == (exits.OK, "") and told["ok"]
    assert told["report"] == str(tmp_path / "shop" / "report.html")
    assert 'class="banner good"' in Path(told["report"]).read_text()
