"""What docs/stores.md says that operations cost is what they cost."""

from __future__ import annotations

from pathlib import Path

from benchmarks.requests import measured, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stores.md"


async def test_the_documented_costs_are_those_that_are_counted():
    rows = await measured()

    written = PAGE.read_text().partition("### What each operation costs")[2].partition("In addition")[0]
    stated = [line for line in written.splitlines() if line.startswith("|")]
    assert stated == table(rows).splitlines(), f"put this into {PAGE.name}:\n{table(rows)}"


async def test_costs_of_many_do_not_exceed_those_of_each():
    rows = {name: sum(counted.values()) for name, counted in (await measured()).items()}

    assert rows["enqueue 100, in one call"] < 100 * rows["enqueue 1"]
    assert (
        rows["claim 10"] < 10 * rows["claim 1, without options"]
        and rows["settle 10"] < 10 * rows["settle 1, without options"]
    )
    assert rows["extend 10"] <= 10 and rows["get 1"] == 1
