"""Single enqueues over HTTP, as many as one server process takes, with wrk; and whether it was right under that load.

Each request brings a number of its own, and wrk writes down each id that it is answered. Afterwards the store must
hold every answered id once, no number twice, and no job that was not asked for. wrk ends in the middle of requests:
what was stored and not answered any more is at most one job for each connection, each time it ran.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.lab.web_served import TOKEN, Server, place, server
from millrace import App

SCRIPT = Path(__file__).with_name("web_enqueue.lua")
ROUND = 10_000_000  # what separates the numbers of two runs of wrk


async def enqueues(store: str, seconds: int, connections: int, threads: int, rounds: int = 3) -> list[dict[str, Any]]:
    """Several rounds on one server; the first, which is short, does not count."""
    with place(store) as url, tempfile.TemporaryDirectory(prefix="millrace-wrk-") as folder:
        app = App(url)
        async with app:
            before = {job.id async for job in app.jobs.find(task="mail", page=1_000)}
        async with server(url) as served:
            load = Load(served, Path(folder), connections, threads)
            load.run(0, 1)
            rows = [load.run(number + 1, seconds) for number in range(rounds)]
        async with app:
            stored = [
                (job.id, job.args["n"]) async for job in app.jobs.find(task="mail", page=1_000) if job.id not in before
            ]
        unanswered = judge(load.answered(), stored, connections * (rounds + 1))
    return [{"store": store.partition(":")[0], **row, "right": True, "unanswered": unanswered} for row in rows]


class Load:
    def __init__(self, served: Server, folder: Path, connections: int, threads: int) -> None:
        wrk = shutil.which("wrk")
        if wrk is None:
            raise SystemExit("there is no wrk: apt-get install wrk, or brew install wrk")
        self._served, self._folder, self._connections = served, folder, connections
        self._command = [wrk, f"-t{threads}", f"-c{connections}", "--latency", "-s", str(SCRIPT)]

    def run(self, number: int, seconds: int) -> dict[str, Any]:
        where = [f"{self._served.base}/api/jobs", "--", str(self._folder), TOKEN, str(number * ROUND)]
        begun, used = perf_counter(), self._served.processor_seconds()
        done = subprocess.run([*self._command, f"-d{seconds}", *where], check=True, capture_output=True, text=True)
        took, used = perf_counter() - begun, self._served.processor_seconds() - used
        accepted = len(self.answered(number))
        return {
            "connections": self._connections,
            "accepted": accepted,
            "enqueues_per_s": accepted / seconds,
            "cpu_us_each": used / accepted * 1e6,
            "cpu_share": used / took,
            "p50_ms": _latency(done.stdout, "50%"),
            "p99_ms": _latency(done.stdout, "99%"),
        }

    def answered(self, number: int | None = None) -> list[str]:
        """The ids; of one run, or of all."""
        which = "*" if number is None else str(number * ROUND)
        files = sorted(self._folder.glob(f"answered-{which}-*"))
        lines = [line for file in files for line in file.read_text().splitlines()]
        refused = [line for line in lines if line.startswith("refused")]
        assert not refused, f"{len(refused)} were refused, the first: {refused[0]}"
        return lines


def judge(answered: list[str], stored: list[tuple[str, int]], most: int) -> int:
    """How many were stored and not answered any more; a complaint when anything is wrong."""
    ids = Counter(job_id for job_id, _ in stored)
    numbers = Counter(number for _, number in stored)
    assert len(answered) == len(set(answered)), "an id was answered twice"
    assert max(ids.values()) == 1, "a job is in the store twice"
    assert max(numbers.values()) == 1, "a request became two jobs"
    lost = set(answered) - ids.keys()
    assert not lost, f"{len(lost)} jobs were answered and are not in the store: {sorted(lost)[:5]}"
    unanswered = len(ids.keys() - set(answered))
    assert unanswered <= most, f"{unanswered} jobs are in the store that nobody was told of; {most} can be"
    return unanswered


def _latency(text: str, share: str) -> float:
    """In milliseconds, from a line such as `50%    7.10ms`."""
    found = re.search(rf"^\s*{share}\s+([\d.]+)(us|ms|s)\b", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1_000.0}[found[2]]
