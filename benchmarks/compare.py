"""Millrace beside the queues a user would take instead, and the bare client beneath it, measured in one run.

    python -m benchmarks.compare --store sqlite --jobs 10000 [--repeat 3] [--json | --markdown]
                                 [--no-peers | --peers NAMES] [--before PYTHON] [--plot FILE.svg]
    python -m benchmarks.compare --check-docs

Subjects take turns in every round, so that a slow minute of the machine meets them all; the medians of the rounds
count. What each figure means: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from benchmarks.lab import postgres_place, provenance, redis_place
from benchmarks.lab.child import Failed, Script, end_in_order, one_round, say
from benchmarks.lab.environment import MissingTool, node_with, python_with, versions
from benchmarks.lab.plot import picture
from benchmarks.lab.report import Figures, markdown, result, summary, table
from benchmarks.lab.subject import PLACES


class Peer(NamedTuple):
    module: str
    environment: str = "embedded"
    share: float = 1.0
    on_node: bool = False


PEERS = {
    "sqlite": {
        "huey": Peer("huey_peer"),
        "huey-nosync": Peer("huey_peer"),
        "litequeue": Peer("litequeue_peer"),
        "litequeue-full": Peer("litequeue_peer"),
        "persist-queue": Peer("persist_peer"),
        "persist-queue-ack": Peer("persist_peer"),
    },
    "redis": {
        "celery": Peer("celery_peer", "celery", share=0.3),
        "rq": Peer("rq_peer", "rq", share=0.2),
        "dramatiq": Peer("dramatiq_peer", "dramatiq", share=0.5),
        "huey-redis": Peer("huey_peer", "huey", share=0.5),
        "arq": Peer("arq_peer", "arq", share=0.3),
        "taskiq": Peer("taskiq_peer", "taskiq", share=0.5),
        "saq": Peer("saq_peer", "saq", share=0.3),
        "bullmq": Peer("bullmq_peer", "bullmq", share=0.5, on_node=True),
    },
    "postgres": {
        "procrastinate": Peer("procrastinate_peer", "procrastinate", share=0.2),
        "pgqueuer": Peer("pgqueuer_peer", "pgqueuer"),
        "pgqueuer-balanced": Peer("pgqueuer_peer", "pgqueuer"),
        "chancy": Peer("chancy_peer", "chancy"),
        "oban": Peer("oban_peer", "oban", share=0.5),
        "pgmq": Peer("pgmq_peer", "pgmq"),
    },
    "memory": {"huey-memory": Peer("huey_peer"), "litequeue-memory": Peer("litequeue_peer")},
}

FLOORS = {
    "sqlite": ["floor"],
    "redis": ["floor", "floor-redis-py"],
    "postgres": ["floor", "floor-copy"],
    "memory": ["floor"],
}
LIMIT = 900.0  # seconds; no round begins that would not end within it, going by the one before
BUSY = 0.5  # a load above this is somebody else's work


def scripts(store: str, names: list[str], before: Path | None) -> list[Script]:
    here, memory = Path(sys.executable), store == "memory"
    module = f"benchmarks.lab.millrace_{store}"
    found = [Script("millrace", module, here, memory)]
    if before is not None:
        found.append(Script("before", module, before.absolute(), memory))
    for name in names:
        peer = PEERS[store][name]
        try:
            python = ready_to_run(peer)
        except MissingTool as missing:
            say(str(missing))
            continue
        found.append(Script(name, f"benchmarks.peers.{peer.module}", python, memory, share=peer.share))
    found += [Script(name, f"benchmarks.lab.floor_{store}", here, memory, trips=False) for name in FLOORS[store]]
    if store == "postgres":
        found = [script._replace(filled=postgres_place.analyzed) for script in found]
    return found


def ready_to_run(peer: Peer) -> Path:
    """Install what a peer needs. Return the interpreter of its script."""
    if peer.on_node:
        node_with(peer.environment)
        return Path(sys.executable)
    return python_with(peer.environment)


def versions_of(store: str, subjects: list[Script]) -> dict[str, str]:
    """Of the server, and of the packages that are pinned for the peers."""
    found: dict[str, str] = {}
    match store:
        case "sqlite":
            found["SQLite"] = sqlite3.sqlite_version
        case "redis":
            found["server"] = redis_place.version()
        case "postgres":
            found["server"] = postgres_place.version()
    for script in subjects:
        if script.name in PEERS[store]:
            found |= versions(PEERS[store][script.name].environment)
    return found


@contextmanager
def a_server(store: str) -> Iterator[Callable[..., None]]:
    """The server of a run, where the store needs one; gives what makes it as new before each subject."""
    match store:
        case "redis":
            with redis_place.a_server() as fresh:
                yield fresh
        case "postgres":
            with postgres_place.a_server() as fresh:
                yield fresh
        case _:
            yield lambda *places: None


def measure(subjects: list[Script], jobs: int, repeat: int, fresh: Callable[..., None]) -> dict[str, Figures]:
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
            fresh(*PLACES)
            began = perf_counter()
            try:
                rounds[script.name].append(one_round(script, jobs))
            except Failed as error:
                if script.name == "millrace" or script.name.startswith("floor"):
                    raise
                failed[script.name] = {"error": str(error)}
                say(str(error))
            say(f"round {number}/{repeat}  {script.name:18}  {perf_counter() - began:5.1f} s")
    return {name: failed.get(name) or summary(found) | {"rounds": len(found)} for name, found in rounds.items()}


def busy() -> float:
    """The load before the run. Others' work slows whoever waits for the disk or a core, and not all alike."""
    load = os.getloadavg()[0]
    if load > BUSY:
        say(f"the machine is busy (load {load:.1f}): rates will be low, and ratios rough")
    return load


def check_docs() -> int:
    wrong = provenance.check_docs()
    for line in wrong:
        print(line)
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Millrace, its peers and the floor, measured in one run.")
    parser.add_argument("--store", choices=PEERS, default="sqlite")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=3)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of a table")
    form.add_argument("--markdown", action="store_true", help="print the table for a document")
    parser.add_argument("--peers", help="names of peers, by commas, instead of all")
    parser.add_argument("--no-peers", action="store_true", help="measure Millrace and the floor alone")
    parser.add_argument(
        "--before", type=Path, metavar="PYTHON", help="the interpreter of an environment with another Millrace"
    )
    parser.add_argument("--plot", type=Path, help="draw the figures into this SVG file, too")
    parser.add_argument("--check-docs", action="store_true", help="tell which tables in docs are older than the code")
    asked = parser.parse_args()
    if asked.check_docs:
        return check_docs()
    names = [] if asked.no_peers else asked.peers.split(",") if asked.peers else list(PEERS[asked.store])
    if unknown := set(names) - set(PEERS[asked.store]):
        parser.error(f"no such peer on {asked.store}: {', '.join(unknown)}. There are: {', '.join(PEERS[asked.store])}")
    if asked.before is not None and not asked.before.is_file():
        parser.error(
            f"--before {asked.before}: no such file. Name the interpreter of an environment, as in .venv/bin/python"
        )
    end_in_order()
    load = busy()
    try:
        subjects = scripts(asked.store, names, asked.before)
        run = provenance.of_run(asked.jobs, asked.repeat, load, versions_of(asked.store, subjects))
        with a_server(asked.store) as fresh:
            figures = measure(subjects, asked.jobs, asked.repeat, fresh)
    except Failed as error:
        say(str(error))
        return 1
    run["rounds"] = min(one.pop("rounds") for one in figures.values() if "rounds" in one)
    found = result(figures, run)
    if asked.plot:
        asked.plot.write_text(picture(asked.store, found), encoding="utf-8")
    print(json.dumps(found, indent=2) if asked.json else markdown(found) if asked.markdown else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
