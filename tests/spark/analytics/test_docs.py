"""docs/analytics.md and the notebook say what is so: their examples run, and the columns are those of the views."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.cli import exits
from millrace.cli.root import run
from millrace.spark.analytics import Objective
from millrace.spark.analytics.views import DIALECTS, SETTINGS, TABLES, VIEWS, script, select
from millrace.spark.lake import Lake
from tests.project.page import Session, blocks_of
from tests.spark.analytics.history import SLOWER
from tests.spark.analytics.tables import Tables

ROOT = Path(__file__).parents[3]
FILE = ROOT / "docs" / "analytics.md"
PAGE = FILE.read_text("utf-8")


async def test_its_example_runs(
    spark: SparkSession,
    lake_of_two_weeks: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "lake").symlink_to(lake_of_two_weeks.place.location.root)
    monkeypatch.chdir(tmp_path)
    [block] = blocks_of(PAGE)
    session = Session(FILE, tmp_path, lambda: capsys.readouterr().out)
    vars(session.module)["spark"] = spark

    assert SLOWER in await session.run(block)


def test_the_notebook_runs_from_top_to_bottom(
    shared_session: None,
    lake_of_two_weeks: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    notebook = json.loads((ROOT / "examples" / "lake.ipynb").read_text("utf-8"))
    (tmp_path / "lake").symlink_to(lake_of_two_weeks.place.location.root)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)  # noqa: S102 - our own notebook
    printed = capsys.readouterr().out

    assert re.search(rf"{SLOWER} *\| *slower", printed) and re.search(r"new *\| *make_thumbnail", printed)


def test_the_columns_of_every_view_are_listed_in_order(tables: Tables) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (`.+) \|$", PAGE, re.MULTILINE)
    listed = {name: text for name, text in rows if name in (*VIEWS, *SETTINGS)}
    tables.job(1, started=1, finished=2)
    for name, text in listed.items():
        tables.view(name, until=10)
        columns = [row[0] for row in tables.connection.execute(f"DESCRIBE {name}").fetchall()]
        assert [word for word in re.findall(r"`(\w+)`", text) if word in columns] == columns, name

    inner = {"job_times", "run_times", "job_groups", "slo_jobs", "slo_counts", "backlog_hours"}
    assert listed.keys() == {*VIEWS, *SETTINGS} - inner


def test_every_view_reads_only_tables_and_views_before_it() -> None:
    known = {*TABLES, *SETTINGS}
    for name in VIEWS:
        text = select(name, "duckdb", prefix="other_")
        read = set(re.findall(r"\bother_(\w+)", text))
        assert read <= known and read, name
        assert select(name, "duckdb").startswith(f"-- {name}: ")
        known.add(name)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_command_prints_the_views(dialect: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["pipeline", "views", "--dialect", dialect, "--objective", "it's 99 start 30s 99.5%"])

    printed = capsys.readouterr().out
    assert code == exits.OK and printed == script(dialect, [Objective("it's 99", "start", 30_000, 0.995)])
    assert printed.count("CREATE OR REPLACE VIEW") == len((*SETTINGS, *VIEWS))
    assert ("it\\'s 99" if dialect == "spark" else "it''s 99") in printed


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("start 30s 99%", "takes a task, start or finish, a time and a share"),
        ("send begin 30s 99%", "measure is start or finish, not 'begin'"),
        ("send start soon 99%", "not a duration: 'soon'"),
        ("send start 0s 99%", "must be longer than 0"),
        ("send start 30s most", "'most' is not a share such as 99% or 0.99"),
        ("send start 30s 100%", "a share between 0 and 1, such as 0.99, not 1.0"),
    ],
)
def test_an_objective_that_makes_no_sense_is_refused(
    objective: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "views", "--dialect", "duckdb", "--objective", objective]) == exits.USAGE
    assert words in capsys.readouterr().err


def test_an_unknown_dialect_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "views", "--dialect", "oracle"]) == exits.USAGE
    assert "the dialects are duckdb, spark, trino, not 'oracle'" in capsys.readouterr().err
