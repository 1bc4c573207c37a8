"""The provider on the real Apache Airflow, in an environment of its own, with real workers on a SQLite store."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from millrace import App
from millrace.contrib import jobs
from tests.contrib.environment import ROOT, python_with
from tests.contrib.orchestrator import HERE, Orchestrator, held_jobs, until, workers_on
from tests.narrowing import the

EXAMPLE = ROOT / "examples" / "airflow"

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


class Airflow(Orchestrator):
    def __init__(self, python: Path, home: Path) -> None:
        self.url = f"sqlite:///{home / 'jobs.db'}?durability=relaxed"
        self.gate = home / "gate"
        env = os.environ | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_MILLRACE_DEFAULT": json.dumps({"conn_type": "millrace", "password": self.url}),
            "GATE": str(self.gate),
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        }
        subprocess.run([str(python), "-m", "airflow", "db", "migrate"], env=env, check=True, capture_output=True)
        super().__init__([str(python), str(HERE / "airflow_runs.py")], env, home / "log", self.url)

    def run(self, dag: str, day: int) -> dict[str, Any]:
        self.start(dag, day)
        return dict(self.answer())

    def start(self, dag: str, day: int) -> None:
        self.ask("run", dag_id=dag, date=f"2026-{day // 28 + 1:02}-{day % 28 + 1:02}T00:00:00+00:00")


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    home, python = tmp_path_factory.mktemp("airflow"), python_with("airflow")
    (home / "dags").mkdir()
    for dags in (HERE / "airflow_dags.py", EXAMPLE / "album.py"):
        shutil.copy(dags, home / "dags")
    airflow = Airflow(python, home)
    with workers_on(airflow.url, airflow.env, {"handlers:app": HERE, "tasks:app": EXAMPLE}):
        yield airflow
    airflow.close()


@pytest.fixture(scope="module")
def days() -> Iterator[int]:
    """Each run of a DAG has a date of its own."""
    return count()


@pytest.fixture
def day(days: Iterator[int]) -> int:
    return next(days)


@pytest.fixture
def gate(airflow: Airflow) -> Iterator[Path]:
    """The jobs of the task `held` end when this file exists."""
    airflow.gate.unlink(missing_ok=True)
    yield airflow.gate
    airflow.gate.touch()


@pytest.fixture
def app(airflow: Airflow) -> Iterator[App]:
    app = App(airflow.url)
    with app.sync:
        yield app


def of_submit(answer: dict[str, Any]) -> dict[str, Any]:
    [task] = answer["tasks"]
    return dict(task)


def test_the_example_runs(airflow: Airflow, day: int):
    answer = airflow.run("album", day)

    tasks = {task["task"]: task for task in answer["tasks"]}
    assert answer["state"] == "success"
    assert [text.partition(" ")[2] for text in tasks["resize"]["value"]] == ["at 200"] * 3
    assert tasks["album"]["value"]["pictures"] == 3
    assert {task["state"] for task in tasks.values()} == {"success"}


def test_the_connection_type_has_a_hook(airflow: Airflow):
    works, message = airflow.call("test_connection")

    assert works, message


def test_a_dead_job_fails_the_task_with_the_error_of_the_job(airflow: Airflow, day: int):
    assert of_submit(airflow.run("fails", day))["state"] == "failed"
    assert "is dead (max_attempts_exceeded): ValueError: -1 is negative" in airflow.logged()


def test_a_retry_enqueues_only_the_jobs_that_died(airflow: Airflow, day: int):
    task = of_submit(airflow.run("flaky", day))

    assert (task["state"], task["tries"]) == ("success", 2)
    assert task["value"] == ["a, generation 1", "b, generation 2"]


def test_a_retry_waits_for_the_job_of_the_try_before_it(airflow: Airflow, day: int, gate: Path, app: App):
    before = {job.id for job in held_jobs(app)}

    task = of_submit(airflow.run("times_out", day))

    [job] = [job for job in held_jobs(app) if job.id not in before]
    assert task["state"] == "success" and task["tries"] > 1
    assert task["value"] == "released"
    assert (job.generation, job.attempt) == (1, 1)


@pytest.mark.parametrize("dag", ["held", "held_deferred"])
def test_a_run_that_is_killed_and_started_again_enqueues_nothing_twice(
    airflow: Airflow, day: int, gate: Path, app: App, dag: str
):
    before = {job.id for job in held_jobs(app)}
    airflow.start(dag, day)
    until(lambda: bool(held_jobs(app, "running")))

    airflow.kill_and_start_again()
    logged = len(airflow.logged())
    airflow.start(dag, day)
    until(lambda: "Submitted 1 jobs; 1 of them existed already" in airflow.logged()[logged:])
    gate.touch()

    task = of_submit(airflow.answer())
    [job] = [job for job in held_jobs(app) if job.id not in before]
    assert (task["state"], task["value"]) == ("success", "released")
    assert (job.generation, job.attempt) == (1, 1)


def test_a_task_that_is_stopped_cancels_its_job(airflow: Airflow, day: int, gate: Path, app: App):
    airflow.start("held", day)
    until(lambda: bool(held_jobs(app, "running")))
    [job] = held_jobs(app, "running")

    os.kill(airflow.pid, signal.SIGTERM)

    assert of_submit(airflow.answer())["state"] == "failed"
    assert the(app.sync.jobs.get(job.id)).state == "cancelled"


def test_a_deferred_task_that_is_stopped_cancels_its_jobs(airflow: Airflow, app: App):
    [job] = app.sync.enqueue(jobs.job_specs(app, "nobody_runs_this", {}, "deferred", {}))

    airflow.call("kill_trigger", ids=[job.id])

    assert the(app.sync.jobs.get(job.id)).state == "cancelled"


def test_mapped_tasks_have_jobs_of_their_own(airflow: Airflow, day: int, app: App):
    answer = airflow.run("mapped", day)

    ids = [task["value"] for task in answer["tasks"]]
    assert answer["state"] == "success"
    assert sorted(app.sync.jobs.result(job) for job in ids) == [2, 4]


def test_without_waiting_the_value_is_the_ids(airflow: Airflow, day: int, app: App):
    task = of_submit(airflow.run("no_wait", day))

    assert (task["state"], task["value"]) == ("success", ["mine-0", "mine-1"])
    found = [the(job) for job in app.sync.jobs.get(["mine-0", "mine-1"])]
    assert [job.state for job in found] == ["waiting", "waiting"]
    assert the(found[0].spec.headers)["airflow.dag_id"] == "no_wait"


def test_sensors_wait_for_jobs_of_other_programs(airflow: Airflow, day: int, app: App):
    airflow.start("sensors", day)
    payload = [{"number": number} for number in (1, 2, -1)]
    app.sync.enqueue(jobs.job_specs(app, "double", payload, "elsewhere", {"max_attempts": 1}))

    states = {task["task"]: task["state"] for task in airflow.answer()["tasks"]}
    assert states == {"poke": "success", "deferred": "success", "dead": "failed", "dead_deferred": "failed"}
