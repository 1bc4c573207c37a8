"""The resource on the real Dagster, in an environment of its own, with real workers on a SQLite store."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace import App
from tests.contrib.environment import ROOT, python_with
from tests.contrib.orchestrator import HERE, Orchestrator, held_jobs, until, workers_on
from tests.narrowing import the

EXAMPLE = ROOT / "examples" / "dagster"
TASKS = ROOT / "examples" / "airflow"

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


class Dagster(Orchestrator):
    def __init__(self, python: Path, home: Path) -> None:
        self.url = f"sqlite:///{home / 'jobs.db'}?durability=relaxed"
        self.gate = home / "gate"
        env = os.environ | {
            "DAGSTER_HOME": str(home),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "GATE": str(self.gate),
            "MILLRACE_URL": self.url,
            "PYTHONPATH": str(EXAMPLE),
        }
        super().__init__([str(python), str(HERE / "dagster_runs.py")], env, home / "log", self.url)


@pytest.fixture(scope="module")
def dagster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dagster]:
    dagster = Dagster(python_with("dagster"), tmp_path_factory.mktemp("dagster"))
    with workers_on(dagster.url, dagster.env, {"handlers:app": HERE, "tasks:app": TASKS}):
        yield dagster
    dagster.close()


@pytest.fixture
def gate(dagster: Dagster) -> Iterator[Path]:
    """The jobs of the task `held` end when this file exists."""
    dagster.gate.unlink(missing_ok=True)
    yield dagster.gate
    dagster.gate.touch()


@pytest.fixture
def app(dagster: Dagster) -> Iterator[App]:
    app = App(dagster.url)
    with app.sync:
        yield app


def test_the_example_runs(dagster: Dagster):
    values = dagster.call("run_example")

    assert values["resized"] == ["0.jpg at 200", "1.jpg at 200", "2.jpg at 200"]
    assert values["album"]["pictures"] == 3


def test_a_dead_job_fails_the_step_with_the_error_of_the_job(dagster: Dagster):
    done = dagster.call("run", name="fails")

    assert not done["success"]
    assert "is dead (max_attempts_exceeded): ValueError: -1 is negative" in done["errors"][0]


def test_a_retry_enqueues_only_the_jobs_that_died(dagster: Dagster):
    done = dagster.call("run", name="flaky")

    assert done["value"] == ["a, generation 1", "b, generation 2"]


def test_a_run_that_is_killed_and_executed_again_enqueues_nothing_twice(dagster: Dagster, gate: Path, app: App):
    before = {job.id for job in held_jobs(app)}
    dagster.ask("run", name="held")
    until(lambda: bool(held_jobs(app, "running")))

    dagster.kill_and_start_again()
    killed = dagster.call("latest_run")["id"]
    gate.touch()
    done = dagster.call("run", name="held", parent=killed)

    [job] = [job for job in held_jobs(app) if job.id not in before]
    assert done["id"] != killed and done["value"] == "released"
    assert (job.generation, job.attempt) == (1, 1)


def test_a_run_that_is_terminated_cancels_its_job(dagster: Dagster, gate: Path, app: App):
    dagster.ask("run", name="held")
    until(lambda: bool(held_jobs(app, "running")))
    [job] = held_jobs(app, "running")

    os.kill(dagster.pid, signal.SIGINT)

    until(lambda: the(app.sync.jobs.get(job.id)).state == "cancelled")
    dagster.kill_and_start_again()  # the interrupt ended it


def test_two_calls_of_one_step_need_two_names(dagster: Dagster):
    done = dagster.call("run", name="twice")

    assert "already, with another payload" in done["errors"][0]
    assert "give each call another `name`" in done["errors"][0]
