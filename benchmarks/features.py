"""What each feature costs: jobs that use it, enqueued and processed, compared with plain jobs in the same run.

    python -m benchmarks.features --store memory|sqlite|redis|postgres|directory [--jobs 4000] [--repeat 3]
                                  [--only NAMES] [--json | --markdown]

Jobs are enqueued in calls of 1,000, and processed by one worker with 200 slots whose handler does nothing. Features
take turns in every round; the medians of the rounds count. A share is the ratio to plain jobs of the same store. The
CPU per job is that of this process, which enqueues and works, and that of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.lab import provenance
from benchmarks.lab.child import end_in_order, say
from benchmarks.lab.measure import Watch, medians
from benchmarks.lab.new_store import new_stores
from benchmarks.lab.report import run_line
from benchmarks.lab.subject import TEXT, figures
from millrace import App
from millrace.domain.job import Spec

CALL = 1_000  # jobs per enqueue
SLOTS = 200
STORES = ("memory", "sqlite", "redis", "postgres", "directory")
PLAIN = "plain"


class Feature(NamedTuple):
    """How the n-th spec of a run differs from a plain one, and the settings of the queue."""

    options: Callable[[int], dict[str, Any]] = lambda n: {}
    settings: Mapping[str, Any] = MappingProxyType({})


FEATURES = {
    PLAIN: Feature(),
    "own id": Feature(lambda n: {"id": f"order-{n}"}),
    "unique key each": Feature(lambda n: {"key": f"order-{n}"}),
    "100 groups": Feature(lambda n: {"group": f"customer-{n % 100}"}),
    "a group each": Feature(lambda n: {"group": f"customer-{n}"}),
    "max_running=100": Feature(settings={"max_running": 100}),
    "rate (never reached)": Feature(settings={"rate": 1_000_000}),
    "fair_share": Feature(settings={"fair_share": 0.2}),
    "eight priorities": Feature(lambda n: {"priority": n % 8}),
    "expires": Feature(lambda n: {"expires": "1h"}),
    "pairs by after": Feature(lambda n: {"id": f"order-{n}", "after": (f"order-{n - 1}",) if n % 2 else ()}),
}


Figures = dict[str, float]  # jobs per second by "enqueue" and "process", and the CPU per job in microseconds
COLUMNS = {
    "enqueue": "enqueue/s",
    "enqueue_cpu": "client µs",
    "enqueue_server": "server µs",
    "process": "process/s",
    "process_cpu": "worker µs",
    "process_server": "server µs",
}


async def measure(url: str, feature: Feature, jobs: int) -> Figures:
    app = App(url)

    @app.task
    async def noop(text: str) -> None:
        pass

    def spec(n: int) -> Spec:
        return noop.options(**feature.options(n)).spec(text=TEXT)

    async with app:
        if feature.settings:
            await app.queue("default").set(**feature.settings)
        await app.jobs.cancel((await noop.enqueue(text=TEXT)).id)  # the store knows the task from here on
        calls = [[spec(n) for n in range(first, min(first + CALL, jobs))] for first in range(0, jobs, CALL)]
        watch = Watch()
        for specs in calls:
            await app.enqueue(specs)
        enqueued = watch.spent()
        worker = app.worker(slots=SLOTS, burst=True)
        watch = Watch()
        await worker.run()
        processed = watch.spent()
        assert worker.stats.completed == jobs, f"{worker.stats.completed} of {jobs} jobs completed"
    return figures("enqueue", jobs, enqueued) | figures("process", jobs, processed)


@contextmanager
def empty_stores(kind: str) -> Iterator[Callable[[], str]]:
    """Yield a function that returns the URL of an empty store."""
    if kind == "memory":
        yield lambda: "memory://"
    elif kind == "directory":
        with TemporaryDirectory(prefix="millrace-bench-") as folder:
            numbers = count()
            yield lambda: f"file://{folder}/{next(numbers)}"
    else:
        with new_stores(kind) as new:
            yield new


def run(store: str, names: Sequence[str], jobs: int, rounds: int) -> dict[str, Figures]:
    found: dict[str, list[Figures]] = {name: [] for name in names}
    with empty_stores(store) as new:
        asyncio.run(measure(new(), FEATURES[PLAIN], CALL))  # imports and caches, not measured
        for number in range(rounds):
            for name in names:
                one = asyncio.run(measure(new(), FEATURES[name], jobs))
                found[name].append(one)
                say(f"round {number + 1}: {name}: {one['enqueue']:,.0f} / {one['process']:,.0f}")
    return {name: medians(of) for name, of in found.items()}


def table(found: dict[str, Figures], *, markdown: bool) -> str:
    plain = found[PLAIN]
    shown = [key for key in COLUMNS if key in plain]
    rows = [["feature", *(COLUMNS[key] for key in shown), "share of enqueue/s", "share of process/s"]]
    for name, one in found.items():
        shares = [f"{one[rate] / plain[rate]:.2f}" for rate in ("enqueue", "process")]
        rows.append([name, *(f"{one[key]:,.0f}" for key in shown), *shares])
    if markdown:
        rows.insert(1, ["---", *("--:" for _ in rows[0][1:])])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n".join(f"{row[0]:<22}" + "".join(f"{cell:>20}" for cell in row[1:]) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=STORES, default="sqlite")
    parser.add_argument("--jobs", type=int, default=4_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", help=f"names of features, separated by commas: {', '.join(FEATURES)}")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true")
    output.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    wanted = [name.strip() for name in asked.only.split(",")] if asked.only else list(FEATURES)
    unknown = [name for name in wanted if name not in FEATURES]
    if unknown:
        parser.error(f"unknown feature {unknown[0]!r}; choose from: {', '.join(FEATURES)}")
    if asked.jobs < 1 or asked.repeat < 1:
        parser.error("--jobs and --repeat must be at least 1")
    end_in_order()
    about = provenance.of_run(asked.jobs, asked.repeat, os.getloadavg()[0], {})
    found = run(asked.store, list(dict.fromkeys([PLAIN, *wanted])), asked.jobs, asked.repeat)
    if asked.json:
        print(json.dumps({"run": about, "features": found}))
    else:
        print(run_line(about), table(found, markdown=asked.markdown), sep="\n\n")


if __name__ == "__main__":
    main()
