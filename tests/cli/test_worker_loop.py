"""`millrace worker` on uvloop's event loop and on asyncio's: what a handler can do is the same."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from millrace import App
from millrace.domain.job import Spec
from tests.cli.process import Shell, ended, eventually

pytestmark = pytest.mark.slow  # every command is an interpreter that starts
LOOPS = {"1": "FastLoop", "0": "_UnixSelectorEventLoop"}
RESULTS = {
    "thread_starts_a_process": "hello",
    "loop_starts_a_process": "hello",
    "loop_starts_a_process_that_is_killed": -signal.SIGKILL,
    "thread_forks": 7,
    "thread_forks_and_runs_a_loop": 8,
}


@pytest.fixture(params=LOOPS)
def shell(tmp_path: Path, request: pytest.FixtureRequest) -> Shell:
    shell = Shell(tmp_path)
    shell.environ |= {"MILLRACE_APP": "tests.cli.loop_app:app", "MILLRACE_UVLOOP": request.param}
    return shell


def enqueue(shell: Shell, *tasks: str, **payload: Any) -> None:
    async def run() -> None:
        async with App(f"sqlite:///{shell.folder}/jobs.db") as app:
            for task in tasks:
                spec = Spec(id=task, task=task, payload=json.dumps(payload).encode(), token=task)
                await app.enqueue([spec])

    asyncio.run(run())


def results(shell: Shell, *tasks: str) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with App(f"sqlite:///{shell.folder}/jobs.db") as app:
            return {task: await app.jobs.result(task) for task in tasks}

    return asyncio.run(run())


def states(shell: Shell) -> dict[str, int]:
    async def run() -> dict[str, int]:
        async with App(f"sqlite:///{shell.folder}/jobs.db") as app:
            [queue] = await app.jobs.count()
            return {"running": queue.running, "completed": queue.completed, "waiting": queue.waiting}

    return asyncio.run(run())


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_runs_on_uvloop_unless_that_is_turned_off(shell: Shell, processes: str):
    enqueue(shell, "loop_of_worker", "loop_of_child", "clock_steps")

    done = shell.run("worker", "--burst", "--processes", processes)

    assert done.returncode == 0, done.stderr
    found = results(shell, "loop_of_worker", "loop_of_child", "clock_steps")
    assert found["loop_of_worker"] == LOOPS[shell.environ["MILLRACE_UVLOOP"]]
    assert found["loop_of_child"] == LOOPS["0"]
    assert found["clock_steps"] > 25, "the clock counts milliseconds"


def test_handlers_start_processes_and_fork(shell: Shell):
    enqueue(shell, *RESULTS)

    done = shell.run("worker", "--burst", "--slots", "2")

    assert done.returncode == 0, done.stderr
    assert results(shell, *RESULTS) == RESULTS


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_after_the_running_job(shell: Shell, processes: str, number: signal.Signals):
    enqueue(shell, "thread_forks", "loop_starts_a_process")
    enqueue(shell, "pack", seconds=1.5)
    with shell.started("worker", "--processes", processes) as worker:
        eventually(lambda: (now := states(shell))["completed"] == 2 and now["running"] == 1)
        worker.send_signal(number)
        code, _, err = ended(worker)

    assert code == 0, err
    assert states(shell) == {"running": 0, "completed": 3, "waiting": 0}


def test_a_second_signal_releases_the_running_job(shell: Shell):
    enqueue(shell, "pack", seconds=600)
    with shell.started("worker") as worker:
        eventually(lambda: states(shell)["running"] == 1)
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        assert any("1 running job may finish" in line for line in worker.stderr)
        worker.send_signal(signal.SIGTERM)
        code, _, _ = ended(worker)

    assert code == 0 and states(shell) == {"running": 0, "completed": 0, "waiting": 1}
