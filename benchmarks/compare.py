"""Millrace beside the queues a user would take instead, and the bare client beneath it, measured in one run.

    python -m benchmarks.compare --store sqlite --jobs 10000 [--repeat 3] [--json] [--no-peers]

Subjects take turns in every round, so that a slow minute of the machine meets them all; the medians of the rounds
count. What each figure means: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter

from benchmarks.lab.child import Failed, Script, end_in_order, one_round, say
from benchmarks.lab.environment import peers_python
from benchmarks.lab.redis_place import a_server
from benchmarks.lab.report import Figures, result, summary, table

PEERS = {
    "sqlite": {
        "huey": "huey_peer",
        "huey-nosync": "huey_peer",
        "litequeue": "litequeue_peer",
        "litequeue-full": "litequeue_peer",
        "persist-queue": "persist_peer",
        "persist-queue-ack": "persist_peer",
    },
    "redis": {},
    "memory": {"huey-memory": "huey_peer", "litequeue-memory": "litequeue_peer"},
}

LIMIT = 900.0  # seconds; no round begins that would not end within it, going by the one before
BUSY = 0.5  # a load above this is somebody else's work


def scripts(store: str, peers: bool) -> list[Script]:
    here, memory = Path(sys.executable), store == "memory"
    found = [Script("millrace", f"benchmarks.lab.millrace_{store}", here, memory)]
    if peers:
        there = peers_python()
        found += [Script(name, f"benchmarks.peers.{module}", there, memory) for name, module in PEERS[store].items()]
    return [*found, Script("floor", f"benchmarks.lab.floor_{store}", here, memory, trips=False)]


def measure(subjects: list[Script], jobs: int, repeat: int) -> dict[str, Figures]:
    """Every subject once per round; a peer that fails is named with its error and left out of the ratios."""
    rounds: dict[str, list[Figures]] = {script.name: [] for script in subjects}
    failed: dict[str, Figures] = {}
    start = perf_counter()
    for number in range(1, repeat + 1):
        spent = perf_counter() - start
        if number > 1 and spent * number / (number - 1) > LIMIT:
            say(f"{number - 1} rounds instead of {repeat}: another would take the run past {LIMIT:g} s")
            break
        for script in subjects:
            if script.name in failed:
                continue
            began = perf_counter()
            try:
                rounds[script.name].append(one_round(script, jobs))
            except Failed as error:
                if script.name in ("millrace", "floor"):
                    raise
                failed[script.name] = {"error": str(error)}
            say(f"round {number}/{repeat}  {script.name:18}  {perf_counter() - began:5.1f} s")
    return {name: failed.get(name) or summary(found) for name, found in rounds.items()}


def busy() -> float:
    """The load before the run. Others' work slows whoever waits for the disk or a core, and not all alike."""
    load = os.getloadavg()[0]
    if load > BUSY:
        say(f"the machine is busy (load {load:.1f}): rates will be low, and ratios rough")
    return load


def main() -> int:
    parser = argparse.ArgumentParser(description="Millrace, its peers and the floor, measured in one run.")
    parser.add_argument("--store", choices=PEERS, default="sqlite")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--no-peers", action="store_true", help="measure Millrace and the floor alone")
    asked = parser.parse_args()
    end_in_order()
    load = busy()
    try:
        with a_server() if asked.store == "redis" else nullcontext():
            figures = measure(scripts(asked.store, not asked.no_peers), asked.jobs, asked.repeat)
    except Failed as error:
        say(str(error))
        return 1
    found = result(figures.pop("millrace"), floor=figures.pop("floor"), peers=figures)
    found["load"] = load
    print(json.dumps(found, indent=2) if asked.json else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
