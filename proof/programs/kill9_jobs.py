"""What the processes of the kill -9 suite share: the jobs, and the ledgers they write outside of the store.

A job follows from its producer and its number alone, so a producer that was killed enqueues the very same ones
again, under the same tokens, and the judge knows what each of them was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from millrace.domain.job import Spec
from millrace.domain.retry import RetryPolicy
from millrace.store.connect import connect
from millrace.store.protocol import Store

LEASE = 2_000
BATCH = 25
GROUPS = 60
QUEUES = ("mail", "reports")


def store_at(place: str | Path, durability: str = "full", *, ahead: int = 0) -> Store:
    """A SQLite file, or what a URL names. The clock may run `ahead`, in milliseconds, where no server has one."""
    if "://" in str(place):
        return connect(str(place), clock=(lambda: milliseconds() + ahead) if ahead else None)
    return connect(f"sqlite:///{place}" + ("?durability=relaxed" if durability == "relaxed" else ""))


def spec_of(producer: str, number: int) -> Spec:
    name = f"{producer}-{number}"
    takes = (0, 0, 0, 0, 5, 0, 0, 20, 0, 120)[number % 10]
    return Spec(
        id=name,
        task="in_thread" if number % 13 == 0 else "on_loop",
        queue=QUEUES[number % 2],
        payload=msgspec.json.encode({"takes": takes}),
        token=f"token-{name}",
        priority=number % 3,
        delay=500 if number % 17 == 0 else 0,
        group=f"group-{number % GROUPS}" if number % 7 == 0 else None,
        after=(f"{producer}-{number - 1}",) if number % 11 == 5 else (),
        lease=LEASE,
        max_attempts=None,
        max_stalls=None,
        retry=RetryPolicy(initial=50, maximum=200),
        timeout=30_000,
    )


def parse_id(job: str) -> tuple[str, int]:
    producer, _, number = job.rpartition("-")
    return producer, int(number)


class Ledger:
    """One line per fact, appended by one system call: whatever kills the writer, a line is there or it is not."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *facts: object) -> None:
        os.write(self._file, (" ".join(map(str, facts)) + "\n").encode())


def read_ledger(file: Path) -> Iterator[list[str]]:
    for line in file.read_text().splitlines():
        yield line.split(" ")


def milliseconds() -> int:
    return time.time_ns() // 1_000_000
