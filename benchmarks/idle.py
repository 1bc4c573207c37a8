"""What many idle workers cost a server, and how many of them one enqueue wakes.

Run: python -m benchmarks.idle --store redis --workers 200 [--processes 8] [--seconds 30] [--json]

A private server is started, and processes with many workers each, all with the settings they have by themselves. They
idle; what the server was asked and how much processor it used are its own counters before and after. Then jobs come one
by one, and it is counted how many workers had been asleep and looked for work because of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

from benchmarks.lab.environment import ROOT
from benchmarks.lab.idle_server import IdleServer, a_server
from millrace import App
from millrace.store.connect import connect
from millrace.store.protocol import Store

ENQUEUES = 20
APART = 1.5  # seconds between two enqueues: who was woken is asleep again
ASLEEP = 0.01  # seconds: who returns sooner from waiting has found something, and did not sleep
EARLY = 0.05  # seconds before its time: who wakes so early was woken
PATIENCE = 120.0
SETTLING = 12.0  # seconds: until polls are as rare as they get


class Crowd:
    """Processes, each with some workers; they tell on request how often a sleeper of theirs was woken."""

    def __init__(self, url: str, workers: int, processes: int) -> None:
        share, more = divmod(workers, processes)
        counts = [share + (number < more) for number in range(processes)]
        command = [sys.executable, "-m", "benchmarks.idle", "--serve", url, "--workers"]
        self._children = [
            subprocess.Popen([*command, str(count)], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for count in counts
            if count
        ]

    def tell(self) -> dict[str, int]:
        total = {"woken": 0, "claims": 0}
        for child in self._children:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write("?\n")
            child.stdin.flush()
            for name, count in json.loads(child.stdout.readline()).items():
                total[name] += count
        return total

    def close(self) -> None:
        for child in self._children:
            assert child.stdin is not None
            child.stdin.close()  # it ends when nobody asks any more
        for child in self._children:
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def an_app(place: str | Store) -> App:
    app = App(place)

    @app.task(name="nothing")
    async def nothing() -> None: ...

    return app


async def serve(url: str, workers: int) -> None:
    store = connect(url)
    counted = {"woken": 0, "claims": 0}
    told: Any = store
    wait, claim = told.wait, told.claim

    async def counting_wait(queues: Any, tasks: Any, timeout: float) -> None:
        begun = time.monotonic()
        await wait(queues, tasks, timeout)
        counted["woken"] += ASLEEP < time.monotonic() - begun < timeout - EARLY

    async def counting_claim(request: Any) -> Any:
        counted["claims"] += 1
        return await claim(request)

    told.wait, told.claim = counting_wait, counting_claim
    app = an_app(store)
    async with app:
        running = [asyncio.create_task(app.worker().run(handle_signals=False)) for _ in range(workers)]
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(counted), flush=True)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def measure(server: IdleServer, crowd: Crowd, workers: int, seconds: float) -> dict[str, Any]:
    app = an_app(server.url)
    async with app:
        await _until_all_are_there(app.store, workers)
        await asyncio.sleep(SETTLING)
        before, claims = server.counters(), crowd.tell()["claims"]
        begun = time.monotonic()
        await asyncio.sleep(seconds)
        after, took = server.counters(), time.monotonic() - begun
        claims = crowd.tell()["claims"] - claims
        woken, trips = await _woken_by_one(app, crowd)
    return {
        "workers": workers,
        "seconds": round(took, 1),
        f"{server.unit} per second": round((after.asked - before.asked) / took, 1),
        "claims per second": round(claims / took, 1),
        "server's processor, %": round(100 * (after.cpu - before.cpu) / took, 2),
        "connections": after.connections,
        "woken by one enqueue, mean": round(statistics.mean(woken), 1),
        "woken by one enqueue, most": max(woken),
        "request and answer, p50 ms": round(1000 * statistics.median(trips), 2),
        "request and answer, slowest ms": round(1000 * max(trips), 2),
    }


async def _until_all_are_there(store: Store, workers: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := len(await store.workers())) < workers:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {found} of {workers} workers came up within {PATIENCE:.0f} s")
        await asyncio.sleep(0.2)


async def _woken_by_one(app: App, crowd: Crowd) -> tuple[list[int], list[float]]:
    """Less those who wake by themselves in such a time, because their poll was shorter than usual."""
    woken: list[int] = []
    trips: list[float] = []
    for _ in range(ENQUEUES):
        before = crowd.tell()["woken"]
        begun = time.monotonic()
        await app.tasks["nothing"].call()
        trips.append(time.monotonic() - begun)
        await asyncio.sleep(APART)
        woken.append(crowd.tell()["woken"] - before)
    return woken, trips


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__.split("\n")[0])
    parser.add_argument("--store", choices=["redis", "postgres"], default="redis")
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        asyncio.run(serve(asked.serve, asked.workers))
        return
    with ExitStack() as stack:
        server = stack.enter_context(a_server(asked.store))
        crowd = Crowd(server.url, asked.workers, asked.processes)
        stack.callback(crowd.close)
        figures = {"store": asked.store, "processes": asked.processes}
        figures |= asyncio.run(measure(server, crowd, asked.workers, asked.seconds))
    if asked.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:<32}{value:>12}")


if __name__ == "__main__":
    main()
