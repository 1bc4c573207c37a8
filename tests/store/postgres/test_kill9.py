"""Workers and producers that are killed with -9 again and again: nothing is lost, and nothing is held by two."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.programs.kill9 import Settings, run
from tests.servers.postgres import url_for


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_nothing_is_lost_or_held_twice_while_workers_are_killed(tmp_path: Path) -> None:
    """Briefly; tests/proof/test_kill9.py has a hundred kills at night."""
    settings = Settings(seconds=6, jobs=1_500, workers=4, seed=2, slowest=1.0, url=url_for(tmp_path))

    verdict = run(settings, tmp_path)

    print(verdict)
    assert verdict.problems == []
    assert verdict.facts["kills"] >= 4
    assert verdict.facts["completed"] == 1_500
    assert verdict.facts["takeovers"] > 0
