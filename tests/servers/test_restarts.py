"""The server is killed with -9 and started again under load: nothing acknowledged is lost, nothing is held twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.programs.kill9 import Settings
from proof.programs.kill9_judge import Verdict
from proof.programs.restarts import a_durable_server, run


def judged(store: str, folder: Path, settings: Settings) -> Verdict:
    with a_durable_server(store) as (server, settings.url):
        verdict = run(settings, folder, server)
    print(verdict)
    assert verdict.problems == []
    assert verdict.facts["acknowledged"] == verdict.facts["completed"] == settings.jobs
    assert (verdict.facts["lost"], verdict.facts["held twice"]) == (0, 0)
    return verdict


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_a_server_that_is_killed_under_load_loses_nothing(tmp_path: Path):
    """On Redis; for PostgreSQL, tests/store/postgres/test_crash.py has a short one."""
    settings = Settings(seconds=4, jobs=600, workers=2, seed=1, quickest=1.0, slowest=2.0)

    verdict = judged("redis", tmp_path, settings)

    assert verdict.facts["restarts"] >= 2


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["redis", "postgres"])
def test_minutes_of_restarts_lose_nothing(tmp_path: Path, store: str):
    settings = Settings(seconds=240, jobs=12_000, workers=4, seed=2, quickest=5.0, slowest=40.0, patience=120)

    verdict = judged(store, tmp_path, settings)

    assert verdict.facts["restarts"] >= 7
