"""The pages about Spark are true: their examples run on the session of these tests, and print what they say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from millrace import App
from tests.project.page import Session, assert_printed, blocks_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/spark.md", "docs/spark-sink.md", "docs/spark-operations.md", "docs/spark-upkeep.md")


@pytest.mark.parametrize("name", PAGES)
async def test_the_examples_of_a_page_run_and_print_what_they_say(spark, name, tmp_path, monkeypatch, capsys):
    page = ROOT / name
    session = Session(page, tmp_path, lambda: capsys.readouterr().out)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "page", session.module)
    try:
        for block in blocks_of(page.read_text(encoding="utf-8")):
            # The JVM stays in the folder where it was started, and the page's files lie in this one.
            here = block.text.replace('"lake/', f'"{tmp_path}/lake/')
            assert_printed(block, await session.run(type(block)(here, block.line, block.output)))
    finally:
        for value in list(vars(session.module).values()):
            if isinstance(value, App):
                await value.close()
