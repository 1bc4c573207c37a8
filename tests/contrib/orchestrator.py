"""A process with an orchestrator, which answers calls of a test, and workers for the jobs that it submits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millrace import App, Job

HERE = Path(__file__).parent
LIMIT = 300.0  # for a machine on which everything is slow


class Orchestrator:
    """A program that reads calls as lines of JSON and answers them. Its output is appended to the file `log`."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path, url: str) -> None:
        self.env = dict(env)
        self.log = log
        self._url = url
        self._command = command
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, call: str, **arguments: Any) -> Any:
        self.ask(call, **arguments)
        return self.answer()

    def ask(self, call: str, **arguments: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps([call, arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the orchestrator ended:\n{self.logged()[-4000:]}"
        assert self._url not in self.logged()
        return json.loads(line)

    def logged(self) -> str:
        return self.log.read_text("utf-8")

    def kill_and_start_again(self) -> None:
        self.close()
        self._process = self._start()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _start(self) -> subprocess.Popen[str]:
        with self.log.open("a") as log:
            return subprocess.Popen(
                self._command, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )


@contextmanager
def workers_on(url: str, env: Mapping[str, str], apps: Mapping[str, Path]) -> Iterator[None]:
    """Run a worker for each of these apps, which are in modules of these folders."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "millrace", "worker", "--app", app], cwd=folder, env={**env, "MILLRACE_URL": url}
        )
        for app, folder in apps.items()
    ]
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def held_jobs(app: App, state: str | None = None) -> list[Job]:
    return list(app.sync.jobs.find(task="held", state=state))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
