"""`millrace worker` with one process and with two, on asyncio's event loop and on uvloop's.

    python -m benchmarks.worker --store sqlite|redis|postgres [--jobs 10000] [--repeat 3] [--slots 200]
                                [--only NAMES] [--json | --markdown]

The queue is paused while it is filled and while the processes start. The time counts from its resumption until all
jobs are completed. Cases take turns in every round; the medians of the rounds count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.lab import provenance
from benchmarks.lab.child import end, end_in_order, say
from benchmarks.lab.countdown import until
from benchmarks.lab.measure import cpu_seconds, difference, medians, server_seconds
from benchmarks.lab.new_store import KINDS, new_stores
from benchmarks.lab.report import run_line
from benchmarks.lab.subject import TEXT
from benchmarks.lab.worker_app import app as tasks
from millrace import App

PATIENCE = 120.0
COLUMNS = {"rate": "jobs/s", "cpu": "CPU µs per job", "server": "server CPU µs per job"}


class Case(NamedTuple):
    handler: str
    loop: str
    processes: int

    def __str__(self) -> str:
        return f"{self.handler}, {self.loop}, {self.processes} process" + ("es" if self.processes > 1 else "")


CASES = [
    Case(handler, loop, processes)
    for handler in ("noop", "busy")
    for loop in ("asyncio", "uvloop")
    for processes in (1, 2)
]


async def measure(url: str, case: Case, jobs: int, slots: int) -> dict[str, float]:
    async with App(url) as app:
        queue = app.queue("default")
        await queue.pause()
        task = tasks.tasks[case.handler]
        await app.enqueue([task.spec(text=TEXT) for _ in range(jobs)])
        with workers(url, case, slots):
            pids = await started(app, case.processes)
            cpu, server = total(pids), server_seconds()
            began = time.perf_counter()
            await queue.resume()
            await asyncio.wait_for(until(lambda: completed(app, jobs), 0.02), PATIENCE)
            seconds = time.perf_counter() - began
            spent = {"cpu": difference(total(pids), cpu), "server": difference(server_seconds(), server)}
    return {"rate": jobs / seconds} | {name: 1e6 * one / jobs for name, one in spent.items() if one is not None}


@contextmanager
def workers(url: str, case: Case, slots: int) -> Iterator[None]:
    variables = {
        "MILLRACE_URL": url,
        "MILLRACE_APP": "benchmarks.lab.worker_app:app",
        "MILLRACE_UVLOOP": "1" if case.loop == "uvloop" else "0",
        "MILLRACE_LOG_LEVEL": "error",
    }
    command = [sys.executable, "-m", "millrace", "worker"]
    options = ["--processes", str(case.processes), "--slots", str(slots)]
    child = subprocess.Popen([*command, *options], env={**os.environ, **variables}, text=True)
    try:
        yield
    finally:
        end(child)


async def started(app: App, processes: int) -> list[int]:
    """The ids of the worker processes, when all have registered."""
    store = await app.connected()
    pids: list[int] = []

    async def registered() -> bool:
        pids[:] = [record.info.pid for record in await store.workers()]
        return len(pids) == processes

    await asyncio.wait_for(until(registered, 0.05), PATIENCE)
    await asyncio.sleep(0.5)  # their first claims have found nothing
    return pids


async def completed(app: App, jobs: int) -> bool:
    return sum(queue.completed for queue in await app.jobs.count()) == jobs


def total(pids: list[int]) -> float | None:
    found = [cpu_seconds(pid) for pid in pids]
    return None if None in found else sum(one for one in found if one is not None)


def run(store: str, cases: list[Case], jobs: int, repeat: int, slots: int) -> dict[str, dict[str, float]]:
    rounds: dict[Case, list[dict[str, float]]] = {case: [] for case in cases}
    with new_stores(store) as new:
        for number in range(1, repeat + 1):
            for case in cases:
                figures = asyncio.run(measure(new(), case, jobs, slots))
                rounds[case].append(figures)
                say(f"round {number}: {case}: {figures['rate']:,.0f}/s")
    return {str(case): medians(found) for case, found in rounds.items()}


def table(figures: dict[str, dict[str, float]], *, markdown: bool) -> str:
    rows = [["", *COLUMNS.values()]]
    rows += [[name, *(f"{one[key]:,.0f}" if key in one else "–" for key in COLUMNS)] for name, one in figures.items()]
    if markdown:
        rows.insert(1, ["---", *("--:" for _ in COLUMNS)])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n".join(f"{row[0]:<32}" + "".join(f"{cell:>24}" for cell in row[1:]) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=KINDS, default="sqlite")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--slots", type=int, default=200)
    parser.add_argument("--only", help="measure only cases with all of these words, by commas: noop,uvloop")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true")
    output.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    words = asked.only.split(",") if asked.only else []
    cases = [case for case in CASES if all(word in str(case) for word in words)]
    end_in_order()
    about = provenance.of_run(asked.jobs, asked.repeat, os.getloadavg()[0], {})
    figures: dict[str, Any] = run(asked.store, cases, asked.jobs, asked.repeat, asked.slots)
    if asked.json:
        print(json.dumps({"run": about, "cases": figures}))
    else:
        print(run_line(about), table(figures, markdown=asked.markdown), sep="\n\n")


if __name__ == "__main__":
    main()
