"""The benchmarks still run. How fast anything is, is not a test's business."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIGURES = {"enqueue", "bulk", "process", "p50", "p99", "idle_cpu", "rss", "durability"}


def printed(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ON_SERVERS = [pytest.param(store, marks=pytest.mark.nightly) for store in ("redis", "postgres")]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", *ON_SERVERS])
def test_compare_prints_figures_of_millrace_and_the_floor(store):
    found = json.loads(
        printed("benchmarks.compare", "--store", store, "--jobs", "200", "--repeat", "1", "--json", "--no-peers")
    )

    assert set(found) == {
        "millrace",
        "peers",
        "floor",
        "ratio",
        "ratio_same_durability",
        "floor_share",
        "load",
    }
    assert set(found["millrace"]) >= FIGURES
    assert set(found["floor"]) >= {"bulk", "process"}
    assert set(found["ratio"]) == {"enqueue", "bulk", "process", "p50"}
    assert set(found["floor_share"]) == {"enqueue", "bulk", "process"}
    assert found["peers"] == {}


def test_compare_with_an_environment_that_is_not_there_says_so_before_it_measures(tmp_path):
    command = [sys.executable, "-m", "benchmarks.compare", "--store", "memory", "--before", str(tmp_path / "python")]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)

    assert done.returncode == 2 and "no such file. Name the interpreter of an environment" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("store", ["memory", *ON_SERVERS])
def test_growth_prints_the_cost_at_each_size(store):
    found = json.loads(printed("benchmarks.growth", "--store", store, "--sizes", "400,800", "--json"))

    assert [size["jobs"] for size in found["sizes"]] == [400, 800]
    assert found["sizes"][0]["factor"] == 1.0
    assert all(size["ms"] > 0 for size in found["sizes"])
