"""What every measured queue is asked to do, and the script around it.

A script does one thing per process (`enqueue`, `bulk`, `process`, …) and prints one JSON object, so that no
measurement inherits another's warm caches or garbage. Peers live in an environment of their own; the processes and
the JSON are the only thing they share with Millrace.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.lab.measure import IDLE, SETTLING, WARM_UP, Idle, milliseconds

TEXT = "All work and no play makes Jack a dull boy. " * 2  # a payload of about 100 bytes
READY = "ready"
WORDS = ("durability", "durable", "delivery")
PLACES = ("single", "many", "talk")  # the directories of one round: of single enqueues, of bulk, of round trips


class Subject(Protocol):
    """A queue on a file or a server that two processes can open. Every duration is in seconds.

    It may say something of its `delivery`, too: what becomes of a job whose worker dies, and what is kept of one.
    """

    durability: str  # in words, for the table
    durable: bool  # does an acknowledged enqueue survive the loss of power?

    def enqueue(self, jobs: int) -> float:
        """Enqueue one at a time, each acknowledged before the next."""
        ...

    def bulk(self, jobs: int) -> float:
        """Enqueue in the fastest way there is."""
        ...

    def process(self, jobs: int) -> float:
        """Run the jobs that wait, from start to all settled, in one worker process."""
        ...

    def serve(self) -> None:
        """Print `ready`, then work until the process is ended."""
        ...

    def call(self, times: int) -> list[float]:
        """Round trips, one after the other, to the process that serves."""
        ...


class InMemory(Protocol):
    """A queue inside one process: whoever enqueues also works, in a thread of its own."""

    durability: str
    durable: bool

    def enqueue(self, jobs: int) -> float: ...
    def bulk(self, jobs: int) -> float: ...

    def process(self, jobs: int) -> float:
        """Fill, then run; only the running counts."""
        ...

    def working(self) -> AbstractContextManager[object]:
        """While it is open, a worker waits for jobs."""
        ...

    def call(self, times: int) -> list[float]: ...


def payloads(jobs: int) -> Iterator[dict[str, Any]]:
    return ({"number": number, "text": TEXT} for number in range(jobs))


def main(subjects: Mapping[str, Callable[[Path], Any]]) -> None:
    """The script of a few subjects: one measurement, one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("subject", choices=subjects)
    parser.add_argument("verb", choices=["enqueue", "bulk", "process", "serve", "call", "alone"])
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--number", type=int, default=0)
    asked = parser.parse_args()
    subject = subjects[asked.subject](asked.path)
    if asked.verb == "serve":
        subject.serve()
    else:
        words = {name: getattr(subject, name) for name in WORDS if hasattr(subject, name)}
        print(json.dumps(words | answer(subject, asked.verb, asked.number)))


def answer(subject: Any, verb: str, number: int) -> dict[str, Any]:
    match verb:
        case "call":
            return milliseconds(subject.call(number)[WARM_UP:])
        case "alone":
            return alone(subject, number)
        case _:
            seconds: float = getattr(subject, verb)(number)
            return {verb: number / seconds}


def alone(subject: InMemory, times: int) -> dict[str, Any]:
    """Idle CPU, RSS and round trips of a worker in this very process."""
    with subject.working():
        time.sleep(SETTLING)
        idle = Idle(os.getpid())
        time.sleep(IDLE)
        figures = idle.figures()
        return figures | milliseconds(subject.call(times)[WARM_UP:])


def ready() -> None:
    """Tell the process that started this one to go on."""
    print(READY, flush=True)
