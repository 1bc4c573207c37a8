"""Stop workers by SIGTERM at random instants, and account for every job, lease and process afterwards.

    python -m proof.programs.sigterm --kind process --trials 100

Each trial is one worker process on one SQLite file, stopped once, or twice in a row. What must hold is judged from the
store, from ledgers that the handlers write outside of it, and from the processes that are left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from millrace import App, Event, Job, Query, Spec
from millrace.domain.request import Claim
from proof.programs.kill9_jobs import read_ledger

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"async": "on_loop", "thread": "in_thread", "process": "in_process"}
FOR_EVER, DEAF = 60_000, 60_001  # as in sigterm_jobs, which only a worker imports
DEADLINE, GRACE = 0.5, 0.3
SLACK = 40.0  # for a machine that is busy with other things; a handler that nobody stops takes a minute
JOBS = 120
LATEST = 1.0  # seconds after the start: by then, all that is quick has run


@dataclass
class Findings:
    problems: list[str] = field(default_factory=list)
    facts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0

    def require(self, holds: object, problem: str) -> None:
        if not holds:
            self.problems.append(problem)

    def add(self, other: Findings) -> None:
        self.problems += other.problems
        self.facts += other.facts
        self.slowest = max(self.slowest, other.slowest)

    def __str__(self) -> str:
        facts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.facts.items()))
        return "\n".join([f"{facts}; slowest exit {self.slowest:.2f} s", *self.problems])


def run(kind: str, trials: int, seed: int, folder: Path, at_once: int = 4) -> Findings:
    all_found = Findings()
    with ThreadPoolExecutor(at_once) as pool:
        numbers = range(trials)
        for found in pool.map(lambda number: trial(kind, seed * 1_000 + number, folder / f"{kind}-{number}"), numbers):
            all_found.add(found)
    return all_found


def trial(kind: str, seed: int, folder: Path) -> Findings:
    chance = random.Random(seed)
    folder.mkdir()
    asyncio.run(_enqueue(kind, chance, folder))
    mark = f"SIGTERM_FOLDER={folder}"
    environment = {
        **os.environ,
        "SIGTERM_FOLDER": str(folder),
        "SIGTERM_DEADLINE": str(DEADLINE),
        "SIGTERM_GRACE": str(GRACE),
    }
    command = [sys.executable, "-m", "proof.programs.sigterm_jobs", kind]
    with (folder / "errors").open("wb") as errors:
        worker = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        _await(folder / "up", worker)
        code, took, twice = _stop(worker, chance)
        left = list(_marked(mark))
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait()
    found = asyncio.run(_judge(kind, folder))
    found.slowest = took
    said = (folder / "errors").read_text()[-2_000:]
    # The second signal may come when the worker has stopped and Python is on its way out, unprotected again.
    found.require(code == 0 or (twice and code == -signal.SIGTERM), f"exit code {code}: {said}")
    found.require(not said, said)
    found.require(took <= DEADLINE + GRACE + SLACK, f"it took {took:.1f} s to stop")
    found.require(not left, f"processes are left: {left}")
    found.problems = [f"{kind}, seed {seed}: {problem}" for problem in found.problems]
    found.facts["trials"] += 1
    return found


def _stop(worker: subprocess.Popen[bytes], chance: random.Random) -> tuple[int, float, bool]:
    """At some instant, once or twice; answers the exit code, how long it took, and whether it was twice."""
    time.sleep(chance.uniform(0, LATEST))
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    twice = chance.random() < 0.2
    if twice:
        time.sleep(chance.uniform(0, DEADLINE))
        worker.send_signal(signal.SIGTERM)
    return worker.wait(timeout=120), time.monotonic() - began, twice


async def _enqueue(kind: str, chance: random.Random, folder: Path) -> None:
    takes = [
        chance.choice((0, 0, 1, 5, 20, 50, FOR_EVER, DEAF)) if n > 20 else chance.choice((0, 2)) for n in range(JOBS)
    ]
    specs = [
        Spec(f"j{n}", KINDS[kind], kind, b'{"takes":%d}' % duration, lease=60_000, timeout=120_000)
        for n, duration in enumerate(takes)
    ]
    async with App(f"sqlite:///{folder}/jobs.db") as app:
        await app.enqueue(specs)


async def _judge(kind: str, folder: Path) -> Findings:
    found = Findings()
    async with App(f"sqlite:///{folder}/jobs.db") as app:
        jobs = (await app.store.find(Query(limit=1_000))).jobs
        events: list[Event] = [event async for event in app.events(follow=False)]
        found.require(await app.store.workers() == [], "the worker's record is still there")
        _judge_jobs(found, jobs, events, set(_ended(folder)))
        waiting = {job.id for job in jobs if job.state == "waiting"}
        claimable = await app.store.claim(Claim((kind,), "judge", JOBS))
        found.require({job.id for job in claimable} == waiting, "a job that was given back cannot be claimed at once")
    return found


def _judge_jobs(found: Findings, jobs: Sequence[Job], events: list[Event], ended: set[tuple[str, int]]) -> None:
    found.require(len(jobs) == JOBS, f"{JOBS - len(jobs)} jobs are lost")
    kinds = Counter(event.kind.value for event in events)
    for job in jobs:
        where = f"job {job.id}: {job.state} after {job.attempt} attempts and {job.releases} releases"
        found.require(job.state in ("completed", "waiting"), f"{where}: its lease was not given back")
        found.require(job.failures == 0 and job.stalls == 0, f"{where}: {job.failures} failures, {job.stalls} stalls")
        found.require(job.attempt - job.releases == (job.state == "completed"), f"{where}: an attempt has vanished")
        if job.state == "completed":
            found.require((job.id, job.attempt) in ended, f"{where}: it is completed, but its handler never ended")
    found.require(not kinds.keys() - {"enqueued", "claimed", "completed", "released"}, f"other events: {kinds}")
    found.require(kinds["claimed"] == kinds["completed"] + kinds["released"], f"claims without an end: {kinds}")
    found.facts.update({name: kinds[name] for name in ("claimed", "completed", "released")})


def _ended(folder: Path) -> Iterator[tuple[str, int]]:
    for file in folder.glob("p*.log"):
        for word, job, attempt in read_ledger(file):
            if word == "ended":
                yield job, int(attempt)


def _marked(mark: str) -> Iterator[int]:
    """Processes that were started in this trial, by whomever: they have its folder in their environment."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
        except (OSError, IndexError):
            continue


def _await(file: Path, worker: subprocess.Popen[bytes], patience: float = 60.0) -> None:
    until = time.monotonic() + patience
    while not file.exists():
        assert worker.poll() is None, f"the worker ended before it was up, with {worker.returncode}"
        assert time.monotonic() < until, "the worker never came up"
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kind", choices=[*KINDS, "all"], default="all")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = 0
    for kind in KINDS if options.kind == "all" else [options.kind]:
        with tempfile.TemporaryDirectory(prefix="millrace-sigterm-") as folder:
            began = time.monotonic()
            found = run(kind, options.trials, options.seed, Path(folder))
        print(f"{kind}: {found} ({time.monotonic() - began:.0f} s)", flush=True)
        failed += bool(found.problems)
    return failed


if __name__ == "__main__":
    sys.exit(main())
