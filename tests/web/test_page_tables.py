"""The page in a bucket knows the fields that the store writes and the API shows."""

from __future__ import annotations

from tools import page_tables


def test_the_tables_of_the_page_are_those_of_the_code():
    assert page_tables.FILE.read_text("utf-8") == page_tables.text(), "run: python -m tools.page_tables"
