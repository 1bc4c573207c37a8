"""What the images and units in deploy/ rely on: the entry point, the health checks, SIGTERM, and systemd's protocol."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millrace.cli import exits
from millrace.cli.workers.liveness import liveness_reported
from tests.cli.process import PATIENCE, Shell, ended, eventually
from tests.project.containerfile import health_command_of, stages, variables_of
from tests.servers.ports import free_port
from tests.web.stage import TOKENS


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    assert shell.run("init").returncode == 0
    return shell


def is_healthy(command: str) -> bool:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(["sh", "-c", command], env={"PATH": path}, capture_output=True, check=False, timeout=PATIENCE)
    return done.returncode == 0


def state_of(shell: Shell, job: str) -> str:
    found: str = json.loads(shell.run("status", job, "--json").stdout)["state"]
    return found


def test_the_worker_of_the_image_is_healthy_and_finishes_its_job_after_sigterm(shell: Shell):
    [words] = [json.loads(stages()["worker"]["CMD"])]
    file = variables_of("worker")["MILLRACE_ALIVE_FILE"]
    here = shell.folder / "alive"
    health = health_command_of("worker").replace(file, str(here))
    assert str(here) in health and not is_healthy(health)
    shell.run("submit", "pack", '{"seconds": 15}', "--id", "x")

    with shell.started(*words, **variables_of("worker") | {"MILLRACE_ALIVE_FILE": str(here)}) as worker:
        eventually(lambda: state_of(shell, "x") == "running")
        assert is_healthy(health)
        worker.send_signal(signal.SIGTERM)
        code, out, _ = ended(worker)

    assert (code, out) == (exits.OK, "")
    assert state_of(shell, "x") == "completed"
    long_ago = time.time() - 600
    os.utime(here, (long_ago, long_ago))
    assert not is_healthy(health)


def test_the_server_of_the_image_is_healthy_and_ends_after_sigterm(shell: Shell):
    words, port = json.loads(stages()["server"]["CMD"]), str(free_port())
    variables = variables_of("server")
    health = health_command_of("server").replace(variables["MILLRACE_PORT"], port)
    assert not is_healthy(health)
    variables |= {"MILLRACE_PORT": port, "MILLRACE_ADMIN_TOKEN": TOKENS["admin"], "MILLRACE_APP": ""}

    with shell.started(*words, **variables) as server:
        eventually(lambda: is_healthy(health))
        server.send_signal(signal.SIGTERM)
        code, _, _ = ended(server)

    assert code in (exits.OK, -signal.SIGTERM)  # uvicorn repeats the signal once it has shut down


def test_systemd_hears_that_a_worker_has_started_and_that_its_loop_runs(shell: Shell):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(PATIENCE)
        manager.bind(str(shell.folder / "notify"))
        with shell.started("worker", NOTIFY_SOCKET=str(shell.folder / "notify"), WATCHDOG_USEC="200000") as worker:
            heard = [manager.recv(100) for _ in range(3)]
            worker.send_signal(signal.SIGTERM)
            assert ended(worker)[0] == exits.OK

    assert heard == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]


def test_several_processes_report_through_their_supervisor(shell: Shell):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(PATIENCE)
        manager.bind(str(shell.folder / "notify"))
        with shell.started("worker", "--processes", "2", NOTIFY_SOCKET=str(shell.folder / "notify")) as supervisor:
            assert manager.recv(100) == b"READY=1"
            supervisor.send_signal(signal.SIGTERM)
            assert ended(supervisor)[0] == exits.OK


async def test_a_blocked_event_loop_does_not_report(tmp_path: Path):
    file = tmp_path / "alive"
    watchdog = {"WATCHDOG_USEC": "20000"}  # reports every 10 ms
    with liveness_reported(str(file), watchdog):
        await asyncio.sleep(0.05)
        os.utime(file, (0, 0))
        time.sleep(0.2)  # a handler that blocks the loop
        assert file.stat().st_mtime == 0
        while file.stat().st_mtime == 0:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    os.utime(file, (0, 0))
    await asyncio.sleep(0.05)
    assert file.stat().st_mtime == 0


async def test_a_file_that_cannot_be_written_is_an_error_at_the_start_and_a_warning_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with pytest.raises(FileNotFoundError), liveness_reported(str(tmp_path / "no" / "alive"), {}):
        pass
    folder = tmp_path / "gone"
    folder.mkdir()
    with liveness_reported(str(folder / "alive"), {"WATCHDOG_USEC": "20000"}):
        (folder / "alive").unlink()
        folder.rmdir()
        while "cannot report" not in caplog.text:
            await asyncio.sleep(0.01)
