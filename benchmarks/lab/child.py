"""Children: one process per measurement, each with a time limit, ended by its own id."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.lab.environment import ROOT
from benchmarks.lab.measure import IDLE, ROUND_TRIPS, SETTLING, WARM_UP, Idle
from benchmarks.lab.subject import PLACES, READY, VERBS

LIMIT = 180.0  # seconds for one measurement
PATIENCE = 10.0  # seconds for a child to end when asked to


class Script(NamedTuple):
    """One subject, and how its measurements are started."""

    name: str
    module: str
    python: Path
    memory: bool = False
    trips: bool = True  # does it have a worker to talk to?
    filled: Callable[[Path], None] = lambda path: None  # called when jobs wait in its directory, before it works
    share: float = 1.0  # of the jobs that it is given: the slow ones get fewer, so that a round ends

    def command(self, verb: str, path: Path, number: int) -> list[str]:
        options = ["--path", str(path), "--number", str(number)]
        return [str(self.python), "-m", self.module, self.name, verb, *options]


class Failed(Exception):
    """A measurement that gave no figure."""


def ask(script: Script, verb: str, path: Path, number: int = 0) -> dict[str, Any]:
    try:
        done = subprocess.run(
            script.command(verb, path, number), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{script.name} {verb}: no answer within {LIMIT:g} s") from None
    if done.returncode:
        raise Failed(f"{script.name} {verb}: exit {done.returncode}\n{done.stderr.strip()[-2_000:]}")
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise Failed(f"{script.name} {verb}: no figures in what it printed: {done.stdout[-500:]!r}") from None
    return answer


@contextmanager
def serving(script: Script, path: Path) -> Iterator[int]:
    """A worker process that waits for jobs; its id."""
    command = script.command("serve", path, 0)
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert child.stdout is not None
        if child.stdout.readline().strip() != READY:
            raise Failed(f"{script.name} serve: ended before it was ready")
        yield child.pid
    finally:
        end(child)


def end(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


def one_round(script: Script, jobs: int) -> dict[str, Any]:
    """Every figure of one subject, once, in fresh directories."""
    jobs = max(1, round(jobs * script.share))
    with TemporaryDirectory(prefix="millrace-bench-") as folder:
        places = {name: new(Path(folder) / name) for name in PLACES}
        figures = ask(script, "words", places["single"])
        for name in figures.pop("verbs"):
            verb = VERBS[name]
            place = places[verb.place]
            if verb.filled and not script.memory:
                if name != "process":  # whose jobs are those of the bulk enqueue
                    ask(script, "bulk", place, jobs)
                script.filled(place)
            figures |= ask(script, name, place, jobs)
        if script.trips:
            figures |= trips(script, places["talk"])
    if figures.get("handlers") == "def":
        figures["process_def"] = figures["process"]
    return figures


def trips(script: Script, path: Path) -> dict[str, Any]:
    """Idle CPU and RSS of a waiting worker, then round trips to it."""
    times = ROUND_TRIPS + WARM_UP
    if script.memory:
        return ask(script, "alone", path, times)
    with serving(script, path) as pid:
        time.sleep(SETTLING)
        idle = Idle(pid)
        time.sleep(IDLE)
        return idle.figures() | ask(script, "call", path, times)


def end_in_order() -> None:
    """Asked to end, leave like after an error: temporary directories are removed and children ended."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def new(path: Path) -> Path:
    path.mkdir()
    return path


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
