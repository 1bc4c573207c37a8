"""docs/lake.md tells the truth: its example runs, and its tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.domain.event import Kind
from millrace.spark.lake import Lake
from tests.project.page import Session, blocks_of

FILE = Path(__file__).resolve().parents[3] / "docs" / "lake.md"
PAGE = FILE.read_text("utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"`{title}`\n")[2].partition("\n##")[0]


async def test_its_example_runs(
    spark: SparkSession,
    at_once: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "lake").symlink_to(at_once.place.location.root)
    monkeypatch.chdir(tmp_path)
    [block] = blocks_of(PAGE)
    session = Session(FILE, tmp_path, lambda: capsys.readouterr().out)
    vars(session.module)["spark"] = spark

    printed = await session.run(block)

    assert printed.count("queue|") >= 3


@pytest.mark.parametrize("table", ["attempts", "jobs"])
def test_the_columns_of_a_table_are_listed_in_order(at_once: Lake, table: str) -> None:
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", section(f"{table}()"), re.MULTILINE)

    assert listed == getattr(at_once, table)().dtypes


@pytest.mark.parametrize("table", ["open_runs", "groups", "payloads"])
def test_the_columns_of_the_others_are_named(at_once: Lake, table: str) -> None:
    assert re.findall(r"`(\w+)`", section(f"{table}()")) == getattr(at_once, table)().columns


@pytest.mark.parametrize(
    "name", ["throughput", "durations", "slowest", "errors", "errors_over_time", "worker_use", "fairness"]
)
def test_the_columns_of_an_analysis_are_listed(at_once: Lake, name: str) -> None:
    [row] = re.findall(rf"^\| `{name}\(.*?\)` \| (.*) \|$", PAGE, re.MULTILINE)
    columns = getattr(at_once, name)().columns
    told = [word for word in re.findall(r"`(\w+)`", row) if word in columns]

    kinds = [kind.value for kind in Kind]
    assert [*dict.fromkeys(told)] == [
        column for column in columns if column in told or (column not in kinds and not column.startswith("p9"))
    ]
