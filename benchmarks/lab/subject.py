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
from typing import Any, NamedTuple, Protocol

from benchmarks.lab.measure import IDLE, SETTLING, WARM_UP, Idle, Spent, milliseconds

TEXT = "All work and no play makes Jack a dull boy. " * 2  # a payload of about 100 bytes
READY = "ready"
WORDS = ("durability", "durable", "delivery", "handlers")
PLACES = ("single", "callers_10", "callers_100", "threads_8", "many", "default", "def", "talk")  # a directory each


class Verb(NamedTuple):
    """A measurement of `jobs` jobs: the method that makes it, where, and whether jobs have to wait there before."""

    method: str
    place: str
    arguments: tuple[int, ...] = ()
    filled: bool = False


VERBS = {
    "enqueue": Verb("enqueue", "single"),
    "enqueue_10": Verb("callers", "callers_10", (10,)),
    "enqueue_100": Verb("callers", "callers_100", (100,)),
    "threads_8": Verb("threads", "threads_8", (8,)),
    "bulk": Verb("bulk", "many"),
    "process": Verb("process", "many", filled=True),
    "process_default": Verb("process_default", "default", filled=True),
    "process_def": Verb("process_def", "def", filled=True),
}


class Subject(Protocol):
    """A queue on a file or a server that two processes can open.

    It may say something of its `delivery`, too: what becomes of a job whose worker dies, and what is kept of one. And
    its `handlers` are "def" if it has no others. Where a queue has them, there are further methods: `callers(jobs, n)`
    and `threads(jobs, n)` enqueue one at a time from so many coroutines or threads; `process_default(jobs)` and
    `process_def(jobs)` run jobs with the default settings of a worker, and with `def` handlers.
    """

    durability: str  # in words, for the table
    durable: bool  # does an acknowledged enqueue survive the loss of power?

    def enqueue(self, jobs: int) -> Spent:
        """Enqueue one at a time, each acknowledged before the next."""
        ...

    def bulk(self, jobs: int) -> Spent:
        """Enqueue in the fastest way there is."""
        ...

    def process(self, jobs: int) -> Spent:
        """Run the jobs that wait, from start to all settled, in one worker process."""
        ...

    def serve(self) -> None:
        """Print `ready`, then work until the process is ended."""
        ...

    def call(self, times: int) -> list[float]:
        """Round trips, one after the other, to the process that serves, in seconds each."""
        ...


class InMemory(Protocol):
    """A queue inside one process: whoever enqueues also works, in a thread of its own."""

    durability: str
    durable: bool

    def enqueue(self, jobs: int) -> Spent: ...
    def bulk(self, jobs: int) -> Spent: ...

    def process(self, jobs: int) -> Spent:
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
    parser.add_argument("verb", choices=[*VERBS, "words", "serve", "call", "alone"])
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--number", type=int, default=0)
    asked = parser.parse_args()
    if asked.verb == "words":
        print(json.dumps(words(subjects[asked.subject])))
        return
    subject = subjects[asked.subject](asked.path)
    if asked.verb == "serve":
        subject.serve()
    else:
        print(json.dumps(answer(subject, asked.verb, asked.number)))


def words(kind: Any) -> dict[str, Any]:
    """What a subject says of itself, and which verbs it has."""
    verbs = [name for name, verb in VERBS.items() if getattr(kind, verb.method, None)]
    return {name: getattr(kind, name) for name in WORDS if hasattr(kind, name)} | {"verbs": verbs}


def answer(subject: Any, verb: str, number: int) -> dict[str, Any]:
    match verb:
        case "call":
            return milliseconds(subject.call(number)[WARM_UP:])
        case "alone":
            return alone(subject, number)
        case _:
            spent: Spent = getattr(subject, VERBS[verb].method)(number, *VERBS[verb].arguments)
            return figures(verb, number, spent)


def figures(verb: str, jobs: int, spent: Spent) -> dict[str, float]:
    """Jobs per second, and the microseconds of CPU per job: of the measured process, and of the server."""
    cpu = {f"{verb}_cpu": spent.cpu, f"{verb}_server": spent.server}
    costs = {name: 1e6 * seconds / jobs for name, seconds in cpu.items() if seconds is not None}
    return {verb: jobs / spent.seconds} | costs


def alone(subject: InMemory, times: int) -> dict[str, Any]:
    """Idle CPU, RSS and round trips of a worker in this very process."""
    with subject.working():
        time.sleep(SETTLING)
        idle = Idle(os.getpid())
        time.sleep(IDLE)
        idled = idle.figures()
        return idled | milliseconds(subject.call(times)[WARM_UP:])


def ready() -> None:
    """Tell the process that started this one to go on."""
    print(READY, flush=True)
