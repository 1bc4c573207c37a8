"""Kill workers with SIGKILL while they work on one store, and account for every job afterwards.

    python -m proof.programs.kill9 --seconds 60 --jobs 50000
    python -m proof.programs.kill9 --store redis --seconds 150
    python -m proof.programs.kill9 --store directory --jobs 5000
    python -m proof.programs.kill9 --url postgresql://localhost/empty

Eight workers and two producers are processes of their own. Every 0.3 to 2 seconds one of them is killed and started
anew, or stopped past its lease and continued. Facts are judged from ledgers that the processes append outside of the
store, and from the store's own events.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from proof.programs.kill9_jobs import LEASE
from proof.programs.kill9_judge import Verdict, count_lines, judge, unfinished

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "proof.programs"
SERVERS = {"redis": "tests.servers.redis_server", "postgres": "tests.servers.postgres"}
# Workers of a store without a server repair it every five seconds, and a process that crashes leaves a trace.
ENVIRONMENT = {"MILLRACE_MONITOR_SWEEP_INTERVAL": "5", "PYTHONFAULTHANDLER": "1"}
LEAST = 8  # mishaps: a busy machine takes longer, and has no fewer of them
STOPPED = 1.5 * LEASE / 1000  # seconds: past the lease


@dataclass
class Settings:
    seconds: float
    jobs: int
    workers: int = 8
    producers: int = 2
    slots: int = 8
    seed: int = 0
    patience: float = 240.0  # seconds after the last kill within which everything must have ended
    quickest: float = 0.3
    slowest: float = 2.0
    url: str | None = None  # else it is a SQLite file


@dataclass
class Child:
    name: str
    process: subprocess.Popen[bytes]


@dataclass
class Fleet:
    """Every process is a child of this one, and is ended by its own pid."""

    settings: Settings
    folder: Path
    workers: list[Child] = field(default_factory=list)
    producers: list[Child] = field(default_factory=list)
    killed: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    kills: int = 0
    _lives: int = 0
    _standing: dict[str, tuple[float, Child]] = field(default_factory=dict)

    @property
    def database(self) -> Path:
        return self.folder / "jobs.db"

    @property
    def place(self) -> str | Path:
        return self.database if self.settings.url is None else self.settings.url

    @property
    def ledgers(self) -> Path:
        return self.folder / "ledgers"

    def start(self) -> None:
        self.ledgers.mkdir()
        self.producers = [self._producer(f"p{number}") for number in range(self.settings.producers)]
        self.workers = [self._worker() for _ in range(self.settings.workers)]

    def add_worker(self) -> Child:
        self.workers.append(self._worker())
        return self.workers[-1]

    def _worker(self) -> Child:
        self._lives += 1
        return self._spawn("kill9_worker", f"w{self._lives}", "--slots", str(self.settings.slots))

    def _producer(self, name: str) -> Child:
        settings = self.settings
        jobs = settings.jobs // settings.producers
        pause = 0.6 * settings.seconds / (jobs / 25)  # so that enqueues happen while things are killed
        return self._spawn("kill9_producer", name, "--jobs", str(jobs), "--pause", str(pause))

    def _spawn(self, program: str, name: str, *more: str) -> Child:
        places = ["--database", str(self.place), "--ledgers", str(self.ledgers), "--name", name]
        command = [sys.executable, "-m", f"{PROGRAMS}.{program}", *places, *more]
        with (self.folder / f"{name}.err").open("ab") as errors:
            environment = os.environ | ENVIRONMENT
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        return Child(name, process)

    def kill_worker(self, index: int) -> None:
        child = self.workers[index]
        self._kill(child)
        self._standing.pop(child.name, None)
        self.killed.add(child.name)
        self.workers[index] = self._worker()

    def kill_producer(self, index: int) -> None:
        child = self.producers[index]
        if child.process.poll() is None:
            self._kill(child)
            self.producers[index] = self._producer(child.name)

    def _kill(self, child: Child) -> None:
        os.kill(child.process.pid, signal.SIGKILL)
        child.process.wait()
        self.kills += 1

    def stop_past_lease(self, index: int) -> None:
        child = self.workers[index]
        child.process.send_signal(signal.SIGSTOP)
        self.stopped.add(child.name)
        self._standing[child.name] = (time.monotonic() + STOPPED, child)

    def let_go_on(self, patience: float = 0.0) -> None:
        """Continue who has stood still long enough; `patience` waits for all of them."""
        for name, (until, child) in list(self._standing.items()):
            wait = until - time.monotonic()
            if wait <= patience:
                time.sleep(max(0.0, wait))
                child.process.send_signal(signal.SIGCONT)
                del self._standing[name]

    def producers_done(self) -> bool:
        codes = [child.process.poll() for child in self.producers]
        if any(codes):
            raise AssertionError(f"a producer ended with {codes}: {self.complaints()}")
        return None not in codes

    def replace_the_fallen(self) -> None:
        """A worker that ended by itself is a finding; the run goes on, and the verdict tells."""
        for index, child in enumerate(self.workers):
            if child.process.poll() is not None:
                self.workers[index] = self._worker()

    def end(self) -> list[int]:
        """In good order; answers the exit codes of the last workers. Before one is up, a signal just kills it."""
        for child in self.workers:
            self._await_up(child)
            child.process.send_signal(signal.SIGTERM)
        return [child.process.wait(timeout=120) for child in self.workers]

    def _await_up(self, child: Child, patience: float = 120.0) -> None:
        until = time.monotonic() + patience
        while not (self.ledgers / f"{child.name}.up").exists() and time.monotonic() < until:
            time.sleep(0.02)

    def clear(self) -> None:
        for child in (*self.workers, *self.producers):
            if child.process.poll() is None:
                child.process.kill()
                child.process.wait()

    def complaints(self) -> str:
        texts = {file.stem: file.read_text().strip() for file in sorted(self.folder.glob("*.err"))}
        return "\n".join(f"{name}: {text[-2_000:]}" for name, text in texts.items() if text)


def run(settings: Settings, folder: Path, tell: Callable[[str], None] = lambda line: None) -> Verdict:
    chance = random.Random(settings.seed)
    fleet = Fleet(settings, folder)
    try:
        fleet.start()
        wait_for_the_first_run(fleet)
        began = time.monotonic()
        number = 0
        while time.monotonic() - began < settings.seconds or number < LEAST:
            time.sleep(chance.uniform(settings.quickest, settings.slowest))
            fleet.let_go_on()
            _mishap(fleet, chance, number)
            number += 1
            tell(_progress(fleet, time.monotonic() - began))
        fleet.let_go_on(patience=STOPPED)
        wait_until_all_ended(fleet, tell, began)
        seconds = time.monotonic() - began
        codes = fleet.end()
    finally:
        fleet.clear()
    verdict = asyncio.run(judge(fleet.place, fleet.ledgers, fleet.killed, fleet.stopped))
    verdict.facts |= {
        "seconds": f"{seconds:.1f}",
        "kills": fleet.kills,
        "stops past the lease": len(fleet.stopped),
        "slots": settings.slots,
    }
    verdict.require(codes == [0] * len(codes), f"the last workers ended with {codes}: {fleet.complaints()}")
    verdict.require(not fleet.complaints(), fleet.complaints())
    bound = (fleet.kills + len(fleet.stopped)) * settings.slots + int(
        verdict.facts["leases that ran out by themselves"]
    )
    verdict.require(int(verdict.facts["duplicate runs"]) <= bound, f"more duplicates than {bound}")
    return verdict


def _mishap(fleet: Fleet, chance: random.Random, number: int) -> None:
    """Mostly a worker is killed; every sixth one is only stopped, and every sixth time it is a producer's turn."""
    fleet.replace_the_fallen()
    if number % 6 == 2:
        fleet.stop_past_lease(chance.randrange(len(fleet.workers)))
    elif number % 6 == 5:
        fleet.kill_producer(chance.randrange(len(fleet.producers)))
    else:
        fleet.kill_worker(chance.randrange(len(fleet.workers)))


def wait_for_the_first_run(fleet: Fleet) -> None:
    deadline = time.monotonic() + fleet.settings.patience
    while time.monotonic() < deadline and not count_lines(fleet.ledgers)["ended"]:
        time.sleep(0.05)


def wait_until_all_ended(fleet: Fleet, tell: Callable[[str], None], began: float) -> None:
    deadline = time.monotonic() + fleet.settings.patience
    while time.monotonic() < deadline:
        if fleet.producers_done() and asyncio.run(unfinished(fleet.place)) == 0:
            return
        time.sleep(0.2)
        tell(_progress(fleet, time.monotonic() - began))


def _progress(fleet: Fleet, seconds: float) -> str:
    lines = count_lines(fleet.ledgers)
    done, wanted = lines["ended"], fleet.settings.jobs
    bar = "#" * (30 * done // max(1, wanted))
    return (
        f"{seconds:6.1f} s  [{bar[:30]:<30}] {lines['acknowledged']:>7,} enqueued {done:>7,} run "
        f"{fleet.kills:>4} kills {len(fleet.stopped):>3} stops"
    )


def url_of(store: str, folder: Path) -> str | None:
    """Where a store of this kind keeps its jobs; None is a SQLite file. A server is started if it needs one."""
    if store in SERVERS:
        url: str = import_module(SERVERS[store]).url_for(folder)
        return url
    return f"file://{folder}/store" if store == "directory" else None


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAMS}.kill9", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument(
        "--store",
        choices=["sqlite", "directory", *SERVERS],
        default="sqlite",
        help="a new one, with its server",
    )
    parser.add_argument("--url", help="an empty store that is there already")
    options = parser.parse_args()
    settings = Settings(options.seconds, options.jobs, workers=options.workers, slots=options.slots, seed=options.seed)
    settings.patience = max(60.0, 2 * options.seconds)
    on_terminal = sys.stdout.isatty()
    with tempfile.TemporaryDirectory(prefix="millrace-kill9-") as folder:
        settings.url = options.url or url_of(options.store, Path(folder))
        verdict = run(settings, Path(folder), lambda line: print(line, end="\r" if on_terminal else "\n", flush=True))
    print(f"\nseed {options.seed}")
    print(verdict)
    return int(bool(verdict.problems))


if __name__ == "__main__":
    sys.exit(main())
