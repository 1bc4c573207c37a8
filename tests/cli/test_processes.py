"""What only a real process shows: pipes, signals, Ctrl-C, and processes that watch over others."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from millrace import App, Job
from tests.cli.process import Shell, alive, ended, eventually

T = TypeVar("T")
pytestmark = pytest.mark.slow  # every command is an interpreter that starts


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    assert shell.run("init").returncode == 0
    return shell


def at(shell: Shell, what: Callable[[App], Awaitable[T]]) -> T:
    """Asked of the store itself, which is quicker than to start another command."""

    async def ask() -> T:
        async with App(f"sqlite:///{shell.folder}/jobs.db") as app:
            return await what(app)

    return asyncio.run(ask())


def job(shell: Shell, job_id: str) -> Job:
    found = at(shell, lambda app: app.jobs.get(job_id))
    assert found is not None
    return found.record


def count(shell: Shell, state: str) -> int:
    return sum(getattr(queue, state) for queue in at(shell, lambda app: app.jobs.count()))


def pids(shell: Shell) -> dict[str, int]:
    """Of the workers that the store knows, by their names."""

    async def ask(app: App) -> dict[str, int]:
        store = await app.connected()
        return {record.info.id: record.info.pid for record in await store.workers()}

    return at(shell, ask)


def test_a_reader_that_goes_away_is_no_trouble(shell: Shell):
    done = shell.sh(
        "for i in $(seq 3000); do echo '{}'; done | millrace submit pack - --many --unchecked >/dev/null;"
        "millrace list --limit 3000 | head -n 2 | wc -l; echo ${PIPESTATUS[0]}"
    )

    assert done.stdout.split() == ["2", "141"]
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr


def test_output_to_a_full_disk_is_said_and_is_no_traceback(shell: Shell):
    done = shell.sh("millrace config > /dev/full; echo $?")

    assert done.stdout.strip() == "3"
    assert "Traceback" not in done.stderr and "No space left" in done.stderr


def test_ctrl_c_ends_a_tail_without_a_word(shell: Shell):
    shell.run("submit", "pack")
    with shell.started("tail") as tail:
        assert tail.stdout is not None and "enqueued" in tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        code, _, err = ended(tail)

    assert (code, err) == (130, "")


def test_a_tail_shows_what_happens_while_it_runs(shell: Shell):
    with shell.started("tail", "--json") as tail:
        shell.run("submit", "pack", "--id", "x")
        assert tail.stdout is not None
        event = json.loads(tail.stdout.readline())

    assert (event["job"], event["kind"]) == ("x", "enqueued")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_worker_finish_what_it_runs(shell: Shell, number: signal.Signals):
    shell.run("submit", "pack", '{"seconds": 1.5}', "--id", "x")
    with shell.started("worker", "--name", "w") as worker:
        eventually(lambda: count(shell, "running") == 1)
        worker.send_signal(number)
        code, out, err = ended(worker)

    assert (code, out) == (0, "")
    assert "1 completed, 0 failed" in err
    assert job(shell, "x").state == "completed"
    assert pids(shell) == {}


def test_a_second_signal_gives_back_at_once_and_spends_no_attempt(shell: Shell):
    shell.run("submit", "pack", '{"seconds": 600}', "--id", "x")
    with shell.started("worker", "--json") as worker:
        eventually(lambda: count(shell, "running") == 1)
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        assert any("1 running job may finish within 25 s" in line for line in worker.stderr)
        worker.send_signal(signal.SIGTERM)
        code, out, _ = ended(worker)

    released = job(shell, "x")
    assert code == 0 and json.loads(out)["released"] == 1
    assert (released.state, released.failures, released.releases) == ("waiting", 0, 1)


def test_the_log_of_a_worker_is_json_when_asked_for(shell: Shell):
    shell.run("submit", "charge", '{"card": 4711}')
    done = shell.run("worker", "--burst", "--log-format", "json")

    lines = [json.loads(line) for line in done.stderr.splitlines()]
    [dead] = [line for line in lines if line["level"] == "error"]
    assert (dead["task"], dead["attempt"]) == ("charge", "1")
    assert "is dead (max_attempts_exceeded)" in dead["message"]
    assert all(line["at"].endswith("Z") for line in lines)


def test_several_processes_stop_after_so_many_jobs_each(shell: Shell):
    shell.sh("for i in $(seq 12); do echo '{}'; done | millrace submit pack - --many")
    done = shell.run("worker", "--processes", "2", "--max-jobs", "3", "--json")

    assert json.loads(done.stdout) == {"processes": 2, "restarts": 0, "exit": 0}
    assert count(shell, "completed") == 6


def test_several_processes_share_the_work_and_stop_together(shell: Shell):
    shell.sh("for i in $(seq 40); do echo '{\"seconds\": 0.05}'; done | millrace submit pack - --many")
    with shell.started("worker", "--processes", "2", "--slots", "2", "--name", "w") as parent:
        eventually(lambda: count(shell, "completed") == 40)
        workers = pids(shell)
        parent.send_signal(signal.SIGTERM)
        code, _, err = ended(parent)

    assert code == 0
    assert sorted(workers) == ["w-1", "w-2"]
    assert err.count("2 slots") == 2
    assert parent.pid not in workers.values() and not any(map(alive, workers.values()))
    assert err.count("has stopped") == 2
    assert pids(shell) == {}


def test_ctrl_c_at_a_terminal_reaches_the_children_once(shell: Shell):
    """A terminal signals the whole group; two signals in a child would give its job back instead of ending it."""
    shell.run("submit", "pack", '{"seconds": 1.5}', "--id", "x")
    with shell.started("worker", "--processes", "2") as parent:
        eventually(lambda: count(shell, "running") == 1)
        os.killpg(parent.pid, signal.SIGINT)
        code, _, _ = ended(parent)

    assert code == 0
    assert (job(shell, "x").state, job(shell, "x").releases) == ("completed", 0)


def test_a_process_that_dies_is_started_again_and_its_job_told_of(shell: Shell):
    with shell.started("worker", "--processes", "2", "--name", "w") as parent:
        eventually(lambda: len(pids(shell)) == 2)
        before = pids(shell)
        os.kill(before["w-1"], signal.SIGKILL)
        eventually(lambda: pids(shell).get("w-1") != before["w-1"])
        after = pids(shell)
        parent.send_signal(signal.SIGTERM)
        code, _, err = ended(parent)

    assert code == 0
    assert after["w-2"] == before["w-2"]
    assert re.search(r"process 1 was killed by SIGKILL .*restarting it in 1 s", err)


def test_when_the_watching_process_is_killed_the_others_stop_by_themselves(shell: Shell):
    with shell.started("worker", "--processes", "2") as parent:
        eventually(lambda: len(pids(shell)) == 2)
        children = pids(shell).values()
        parent.send_signal(signal.SIGKILL)
        eventually(lambda: not any(map(alive, children)))

    assert pids(shell) == {}


def test_processes_that_cannot_start_are_not_started_for_ever(shell: Shell):
    done = shell.run("worker", "--processes", "2", "--app", "nowhere:app")

    assert done.returncode == 2
    assert "no module 'nowhere'" in done.stderr and "cannot start; stopping all processes" in done.stderr


def test_a_burst_of_several_processes_ends_when_all_have(shell: Shell):
    shell.sh("for i in $(seq 20); do echo '{}'; done | millrace submit pack - --many")

    done = shell.run("worker", "--processes", "2", "--burst", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"processes": 2, "restarts": 0, "exit": 0}
    assert count(shell, "completed") == 20


def test_memory_is_not_shared_by_processes_and_is_refused(shell: Shell):
    assert shell.run("worker", "--processes", "2", "--url", "memory://x").returncode == 2


def test_a_password_is_not_on_the_command_line_of_the_children(shell: Shell):
    with shell.started("worker", "--processes", "2", "--url", "sqlite:///jobs.db", MILLRACE_URL="memory://") as parent:
        eventually(lambda: len(pids(shell)) == 2)
        lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids(shell).values()]
        parent.send_signal(signal.SIGTERM)
        ended(parent)

    assert all("jobs.db" not in line for line in lines)
