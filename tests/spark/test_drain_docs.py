"""docs/spark-drain.md is true: its examples run on the session of these tests, and its options are those that exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace.app.spark_drain import DrainKeywords
from tests.project.page import Session, assert_printed, blocks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark-drain.md"


async def test_the_examples_run_and_print_what_they_say(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    session = Session(PAGE, tmp_path, lambda: capsys.readouterr().out)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "page", session.module)
    try:
        for block in blocks_of(PAGE.read_text(encoding="utf-8")):
            assert_printed(block, await session.run(block))
    finally:
        shop = sys.modules.pop("drained_shop", None)
        if shop is not None:
            await shop.app.close()


def test_every_option_is_listed():
    table = PAGE.read_text(encoding="utf-8").partition("## Options")[2].partition("\n\n")[2].partition("\n\n")[0]
    names = [name for row in re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]

    assert sorted(names) == sorted(DrainKeywords.__annotations__)
