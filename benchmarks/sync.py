"""What an enqueue costs without an event loop: `task.sync.enqueue` beside `await task.enqueue`, one at a time.

    python -m benchmarks.sync [--jobs 1500] [--json]

Both in one run, in turns, so that a busy machine is busy for both. A ratio of 1 means: the same cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from millrace import App

ROUNDS = 5
THREADS = 8


def measure(url: str, jobs: int) -> dict[str, float]:
    """Microseconds per enqueue: awaited, blocking, and blocking from eight threads."""
    app = App(url)

    @app.task
    async def work(n: int) -> None: ...

    async def awaited() -> None:
        async with app:
            for n in range(jobs):
                await work.enqueue(n)

    def blocking(count: int) -> None:
        for n in range(count):
            work.sync.enqueue(n)

    def threaded() -> None:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(blocking, [jobs // THREADS] * THREADS))

    blocking(1)
    rounds: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        asyncio.run(awaited())
        first = time.perf_counter()
        blocking(jobs)
        second = time.perf_counter()
        threaded()
        rounds.append((first - begun, second - first, time.perf_counter() - second))
    app.sync.close()
    each = [statistics.median(column) / jobs * 1e6 for column in zip(*rounds, strict=True)]
    ratio = statistics.median(blocked / waited for waited, blocked, _ in rounds)
    return {"awaited": each[0], "sync": each[1], "sync_8_threads": each[2], "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, url in {
            "memory": "memory://",
            "sqlite": f"sqlite:///{folder}/full.db",
            "sqlite relaxed": f"sqlite:///{folder}/relaxed.db?durability=relaxed",
        }.items():
            found[name] = measure(url, options.jobs)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'µs per enqueue':<16}{'awaited':>10}{'sync':>10}{'8 threads':>11}{'sync/awaited':>14}")
    for name, figures in found.items():
        awaited, sync, threads, ratio = figures.values()
        print(f"{name:<16}{awaited:>10.0f}{sync:>10.0f}{threads:>11.0f}{ratio:>14.2f}")


if __name__ == "__main__":
    main()
