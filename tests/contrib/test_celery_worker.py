"""`millrace worker` runs the tasks of an app in Celery's style, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from millrace.cli.loading import load_app
from millrace.domain.errors import InvalidInput
from tests.contrib.celery_modules import first_steps, reporting, shared
from tests.contrib.celery_worker import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
MODULES = "tests.contrib.celery_modules"


@contextmanager
def worker(app: str, url: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "millrace", "worker", "--app", app, "--url", url]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said


@pytest.mark.slow
def test_a_worker_process_runs_the_tasks_of_a_celery_app(tmp_path):
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    reporting.app.millrace.use(url)
    reporting.app.set_default()
    try:
        with worker(f"{MODULES}.reporting:app", url):
            assert reporting.nightly.delay(2026).get(timeout=PATIENCE) == 2026
            assert shared.whoami.si().apply_async(countdown=0.1).get(timeout=PATIENCE) == ["shared.whoami", "reports"]
    finally:
        reporting.app.close()


@pytest.mark.slow
def test_a_task_that_acknowledges_early_is_dead_if_its_worker_is_killed(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    (tmp_path / "slow_tasks.py").write_text(SLOW.format(url=url), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    tasks = import_module("slow_tasks")
    command = [sys.executable, "-m", "millrace", "worker", "--app", "slow_tasks:app", "--lease", "2s"]
    try:
        early, late = tasks.early.delay(), tasks.late.delay()
        first = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        wait_until(lambda: (tmp_path / "early").exists() and (tmp_path / "late").exists())
        first.kill()
        first.wait(PATIENCE)
        second = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        try:
            assert late.get(timeout=PATIENCE) == 2
            assert "worker_lost" in str(early.get(timeout=PATIENCE, propagate=False))
        finally:
            second.terminate()
            second.wait(PATIENCE)
    finally:
        tasks.app.close()


SLOW = """
import time
from pathlib import Path

from millrace.contrib.celery import Celery

app = Celery("slow_tasks", broker="{url}", set_as_current=False)


def run(name):
    place = Path(name)
    tries = len(place.read_text()) + 1 if place.exists() else 1
    place.write_text("x" * tries)
    if tries == 1:
        time.sleep(600)
    return tries


@app.task
def early():
    return run("early")


@app.task(acks_late=True)
def late():
    return run("late")
"""


def wait_until(met) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_app_can_be_named_by_its_module_or_by_its_name():
    found = load_app(f"{MODULES}.first_steps:app")

    assert found is first_steps.app.millrace
    assert load_app(f"{MODULES}.first_steps") is found
    assert load_app(f"{MODULES}.first_steps:app.millrace") is found


def test_a_module_that_cannot_be_discovered_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_tasks.py").write_text("import no_such_module\n", encoding="utf-8")
    text = "from millrace.contrib.celery import Celery\n"
    text += "app = Celery('x', broker='memory://', include=['broken_tasks'], set_as_current=False)\n"
    (tmp_path / "discovering.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(
        InvalidInput, match="importing 'discovering:app' failed: .*no_such_module.*broken_tasks.py, line 1"
    ):
        load_app("discovering:app")
