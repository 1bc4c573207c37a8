"""The benchmarks still run. How fast anything is, is not a test's business."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import compare

ROOT = Path(__file__).resolve().parents[2]
RATES = {
    "enqueue",
    "enqueue_10",
    "enqueue_100",
    "threads_8",
    "bulk",
    "process",
    "process_default",
    "process_def",
}
FIGURES = {*RATES, *(f"{rate}_cpu" for rate in RATES), "p50", "p99", "idle_cpu", "rss", "durability"}


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
        "run",
        "millrace",
        "peers",
        "floors",
        "ratio",
        "ratio_same_durability",
        "floor_share",
    }
    assert set(found["run"]) == {"commit", "date", "load", "cores", "jobs", "rounds", "versions"}
    assert set(found["millrace"]) >= FIGURES
    assert ("process_server" in found["millrace"]) == (store != "memory")
    assert set(found["floors"]["floor"]) >= {"enqueue", "bulk", "process"}
    assert set(found["ratio"]) == {"enqueue", "bulk", "process", "p50"}
    assert set(found["floor_share"]) == {"enqueue", "bulk", "process"}
    assert found["peers"] == {}


def test_compare_with_an_environment_that_is_not_there_says_so_before_it_measures(tmp_path):
    command = [sys.executable, "-m", "benchmarks.compare", "--store", "memory", "--before", str(tmp_path / "python")]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)

    assert done.returncode == 2 and "no such file. Name the interpreter of an environment" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_peer_without_its_tools_is_left_out_with_a_message(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.lab.environment.shutil.which", lambda name: None)

    names = [script.name for script in compare.scripts("redis", ["bullmq"], None)]

    assert names == ["millrace", "floor", "floor-redis-py"]
    assert "bullmq is left out: it needs node and npm" in capsys.readouterr().err


@pytest.mark.slow
def test_features_print_the_rate_and_the_cpu_of_each():
    command = ("--store", "memory", "--jobs", "200", "--repeat", "1", "--only", "own id", "--json")
    found = json.loads(printed("benchmarks.features", *command))

    assert set(found["features"]) == {"plain", "own id"}
    assert set(found["features"]["own id"]) == {"enqueue", "enqueue_cpu", "process", "process_cpu"}


@pytest.mark.slow
def test_worker_prints_the_rate_and_the_cpu_of_each_case():
    found = json.loads(printed("benchmarks.worker", "--jobs", "200", "--repeat", "1", "--only", "noop", "--json"))

    assert len(found["cases"]) == 4
    assert all(set(case) == {"rate", "cpu"} for case in found["cases"].values())


@pytest.mark.parametrize("store", ["memory", *ON_SERVERS])
def test_growth_prints_the_cost_at_each_size(store):
    found = json.loads(printed("benchmarks.growth", "--store", store, "--sizes", "400,800", "--json"))

    assert [size["jobs"] for size in found["sizes"]] == [400, 800]
    assert found["sizes"][0]["factor"] == 1.0
    assert all(size["ms"] > 0 for size in found["sizes"])
