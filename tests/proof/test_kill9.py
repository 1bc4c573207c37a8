"""Processes that die without a word, on one SQLite file: nothing is lost, nothing is held twice."""

import os

import pytest

from tests.proof.programs.kill9 import Settings, run


@pytest.mark.slow
@pytest.mark.timeout(110)
def test_nothing_is_lost_or_held_twice_while_workers_are_killed(tmp_path):
    seed = int(os.environ.get("MILLRACE_SEED", "1"))

    verdict = run(Settings(seconds=8, jobs=3_000, seed=seed, slowest=1.0), tmp_path)

    print(verdict)
    assert verdict.problems == [], f"MILLRACE_SEED={seed} pytest tests/proof/test_kill9.py"
    assert verdict.facts["kills"] >= 5
    assert verdict.facts["completed"] == 3_000
    assert verdict.facts["takeovers"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_fifty_thousand_jobs_outlive_a_minute_of_kills(tmp_path):
    verdict = run(Settings(seconds=60, jobs=50_000, patience=240), tmp_path)

    print(verdict)
    assert verdict.problems == []
    assert verdict.facts["kills"] >= 30
    assert verdict.facts["completed"] == 50_000
