"""`millrace worker --reload`: a real process, a file that changes, and the code that runs afterwards."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

from millrace import App
from millrace.cli.workers import reload
from millrace.cli.workers.supervisor import Supervisor
from millrace.domain.errors import MissingExtra
from tests.cli.process import PATIENCE, eventually

pytestmark = pytest.mark.slow

TASKS = """
import time
from millrace import App

app = App("sqlite:///jobs.db")

@app.task(keep_result=None)
def version(wait_for: str | None = None) -> str:
    while wait_for and not __import__("pathlib").Path(wait_for).exists():
        time.sleep(0.01)
    return "VERSION"
"""


def write(folder: Path, version: str, broken: str = "") -> None:
    """Versions differ in length: Python takes a file of the same second and size for its compiled version."""
    (folder / "tasks.py").write_text(TASKS.replace("VERSION", version) + broken)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path}/jobs.db").sync as sync:
        yield sync.app


@pytest.fixture
def worker(tmp_path: Path, app: App) -> Iterator[Popen[bytes]]:
    """Run a worker with --reload on the first version of a file. What it logs is in the file `log`."""
    write(tmp_path, "one")
    with running(tmp_path) as process:
        yield process


@contextmanager
def running(folder: Path, *more: str) -> Iterator[Popen[bytes]]:
    command = [sys.executable, "-m", "millrace", "worker", "--app", "tasks:app", "--reload", *more]
    with (folder / "log").open("wb") as log:
        process = Popen(command, cwd=folder, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
                print((folder / "log").read_text())  # shown if the test failed


def submit(app: App, job_id: str, **arguments: str) -> None:
    task = app.tasks.get("version") or app.task(name="version")(version)
    app.sync.enqueue([task.options(id=job_id).spec(**arguments)])


def version(wait_for: str | None = None) -> str:
    raise AssertionError("the worker has its own")


def result(app: App, job_id: str) -> str:
    return str(app.sync.jobs.result(job_id, wait="2m"))


def test_a_changed_file_restarts_the_worker_after_its_running_jobs(tmp_path: Path, app: App, worker: Popen[bytes]):
    submit(app, "first")
    assert result(app, "first") == "one"

    submit(app, "running", wait_for=str(tmp_path / "go"))
    eventually(lambda: app.sync.jobs.handle("running").status().state == "running")
    write(tmp_path, "twelve")
    eventually(lambda: "stopping" in (tmp_path / "log").read_text())
    (tmp_path / "go").touch()
    assert result(app, "running") == "one"

    submit(app, "second")
    assert result(app, "second") == "twelve"
    worker.send_signal(signal.SIGINT)
    assert worker.wait(PATIENCE) == 0
    assert "tasks.py changed" in (tmp_path / "log").read_text()


def test_a_file_that_cannot_be_imported_is_waited_for_until_it_can(tmp_path: Path, app: App, worker: Popen[bytes]):
    submit(app, "first")
    assert result(app, "first") == "one"

    write(tmp_path, "two", broken="\nthis is no Python")
    eventually(lambda: "could not start" in (tmp_path / "log").read_text())
    write(tmp_path, "three")
    submit(app, "second")

    assert result(app, "second") == "three"
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


async def test_without_watchfiles_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    monkeypatch.setattr(reload, "find_spec", lambda name: None)

    def start() -> Supervisor:
        raise AssertionError("nothing is started")

    with pytest.raises(MissingExtra, match="pip install 'watchfiles"):
        await reload.run_reloading(start, [tmp_path])


def test_a_burst_ends(tmp_path: Path, app: App):
    write(tmp_path, "one")
    submit(app, "first")

    with running(tmp_path, "--burst") as process:
        assert process.wait(PATIENCE) == 0

    assert result(app, "first") == "one"
