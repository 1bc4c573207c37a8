"""How fast a backlog of jobs that do nothing is run on Spark, beside plain workers in as many processes.

    python -m benchmarks.spark_drain                        20,000 jobs on SQLite, two processes, five rounds
    python -m benchmarks.spark_drain --jobs 5000 --rounds 3 --json

Both begin with their processes up: plain workers have connected and wait for a word, Spark has its session and has
run a small drain before, so that its Python workers are there. From then on everything counts, on Spark also that it
starts the job, looks for what others may have left, and brings the outcomes back. The rounds alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.lab.environment import ROOT
from millrace import App
from millrace.spark.open import opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOAL = 0.7
LIMIT = 300.0
READY = "ready"

app = App("memory://")  # a URL is named by each run


@app.task
async def nothing(number: int) -> None: ...


def fill(folder: Path, jobs: int) -> str:
    url = f"sqlite:///{folder}/jobs.db"
    with opened(url) as store:
        for specs in nothing.chunks([{"number": number} for number in range(jobs)], 2_000):
            store.run(store.store.enqueue(specs))
    return url


def left(url: str) -> int:
    with opened(url) as store:
        return sum(queue.waiting + queue.running for queue in store.run(store.store.count()))


# ── plain workers ─────────────────────────────────────────────────────────────────────────────


async def work(url: str, slots: int) -> None:
    """In a process of its own: connect, say so, wait for the word, run until nothing is left."""
    app.use(url)
    async with app:
        await app.connected()
        print(READY, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await app.worker(slots=slots, burst=True).run()


def plain(url: str, processes: int, slots: int) -> float:
    command = [sys.executable, "-m", "benchmarks.spark_drain", "--work", url, "--slots", str(slots)]
    children = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    try:
        for child in children:
            assert child.stdout is not None and child.stdout.readline().strip() == READY
        began = time.perf_counter()
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        codes = [child.wait(LIMIT) for child in children]
        took = time.perf_counter() - began
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
    assert codes == [0] * processes, codes
    return took


# ── Spark ─────────────────────────────────────────────────────────────────────────────────────


def on_spark(spark: SparkSession, url: str, processes: int, slots: int) -> float:
    began = time.perf_counter()
    app.on_spark(spark, url=url, partitions=processes, slots=slots).wait(LIMIT)
    return time.perf_counter() - began


def compare(jobs: int, rounds: int, processes: int, slots: int) -> dict[str, Any]:
    from millrace.spark.session import session

    speeds: dict[str, list[float]] = {"plain": [], "spark": []}
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as place:
        spark = session("millrace-bench-drain", f"local[{processes}]")
        try:
            for number in range(rounds + 1):
                first = number == 0  # Spark's Python workers start with it, so it does not count
                for kind, figures in speeds.items():
                    folder = Path(place) / f"{kind}-{number}"
                    folder.mkdir()
                    url = fill(folder, 100 if first else jobs)
                    took = plain(url, processes, slots) if kind == "plain" else on_spark(spark, url, processes, slots)
                    assert left(url) == 0
                    if not first:
                        figures.append(jobs / took)
        finally:
            spark.stop()
    medians = {kind: median(figures) for kind, figures in speeds.items()}
    return {
        "jobs": jobs,
        "processes": processes,
        "slots": slots,
        "rounds": speeds,
        "plain_jobs_per_s": round(medians["plain"]),
        "spark_jobs_per_s": round(medians["spark"]),
        "ratio": round(medians["spark"] / medians["plain"], 2),
        "goal": GOAL,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--slots", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        asyncio.run(work(given.work, given.slots))
        return 0
    found = compare(given.jobs, given.rounds, given.processes, given.slots)
    if given.json:
        print(json.dumps(found))
    else:
        print(f"{found['jobs']:,} jobs that do nothing, SQLite, {found['processes']} processes, medians")
        print(f"  plain workers   {found['plain_jobs_per_s']:>8,} jobs/s")
        print(f"  drain on Spark  {found['spark_jobs_per_s']:>8,} jobs/s")
        print(f"  ratio           {found['ratio']:>8}      (to reach: {GOAL})")
    return 0 if found["ratio"] >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
