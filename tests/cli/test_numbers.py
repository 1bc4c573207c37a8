"""Numbers in `--json`: none is larger than JavaScript holds exactly, whatever the store counts with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import bare
from tests.cli.stage import Stage
from tests.web.test_numbers import EXACT, whole_numbers

__all__ = ["bare"]

COMMANDS = [
    ("submit", "pack", "--id", "b"),
    ("list",),
    ("status", "a"),
    ("history", "a"),
    ("queues",),
    ("pools",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_document_holds_a_number_that_javascript_rounds(
    bare: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
):
    monkeypatch.setenv("MILLRACE_URL", f"file://{tmp_path}/store?durability=relaxed")
    bare("init")
    made = bare("submit", "pack", "--id", "a", "--json").json
    assert made["seq"].isdigit() and int(made["seq"]) > EXACT

    document = bare(*command, "--json").json
    assert [number for number in whole_numbers(document) if number >= EXACT] == []
