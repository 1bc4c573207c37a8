"""SIGTERM at random instants: a worker stops in time, and what it held is as if it had never been taken."""

from __future__ import annotations

import os

import pytest

from proof.programs.sigterm import KINDS, run

SEED = int(os.environ.get("MILLRACE_SEED", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_worker_loses_nothing_spends_nothing_and_leaves_nothing_behind(tmp_path, kind):
    found = run(kind, trials=12, seed=SEED, folder=tmp_path)

    print(found)
    assert found.problems == [], f"MILLRACE_SEED={SEED} pytest tests/proof/test_sigterm.py"
    assert found.facts["trials"] == 12
    assert found.facts["completed"] > 0  # or the workers were not stopped in the middle of something
    assert found.facts["released"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_instants(tmp_path, kind):
    found = run(kind, trials=100, seed=SEED, folder=tmp_path)

    print(found)
    assert found.problems == []
    assert found.facts["trials"] == 100
