"""On a cluster of processes of its own: an executor that is killed in the middle of a drain loses nothing. Tables are
written and read there, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.programs.drain_cluster import JOBS, PARKED, SLOTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_executor_killed_in_the_middle_of_a_drain_loses_nothing(tmp_path: Path):
    command = [sys.executable, "-W", "ignore", "-m", "tests.spark.programs.drain_cluster", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False)

    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["ran"] == JOBS  # by the ledger: every job ran
    assert said["states"] == {"completed": JOBS}  # by the store: none is lost, none is left
    assert said["ran_before"] < JOBS and len(said["killed"]) == 1  # it was in the middle, and it hurt
    assert set(said["again"].values()) <= set(said["killed"])  # only what the killed one was at ran twice
    assert len(said["again"]) <= SLOTS and said["most_runs"] <= 2
    assert said["parked"] == {"waiting": PARKED} and said["parked_events"] == PARKED  # what executors wrote and read
    assert max(said["attempts"]) == 1  # Spark started the lost partition again
