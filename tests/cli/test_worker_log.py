"""What a worker says of itself while it works."""

from __future__ import annotations

import re

import pytest

import millrace.cli.worker
from tests.cli.stage import Stage

SHOP = ("--app", "tests.cli.shop:app")


def test_now_and_then_it_says_what_was_done_since(cli: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(millrace.cli.worker, "BETWEEN_SUMMARIES", 0.05)
    cli("submit", "pack", '{"seconds": 1}')
    cli("submit", "charge", '{"card": 1}', "--max-attempts", "1")
    cli("submit", "pack")

    err = cli("worker", "--burst", *SHOP).err

    found = re.findall(r"(\d+) completed and (\d+) failed in the last 0.05 s, (\d+) running", err)
    assert 1 <= len(found) <= 3  # silent while nothing was done
    assert sum(int(failed) for _, failed, _ in found) == 1
