"""persist-queue: put, get, ack. The loop around it and its polling, every 10 ms, are left to the user: they are ours.

It keeps no results and wakes nobody in another process: a "round trip" ends when the handler starts, which it tells
through a socket beside the database. Every put commits, in version 1.1.0 with `auto_commit=False` too.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from persistqueue import Empty, SQLiteAckQueue, SQLiteQueue  # type: ignore[import-not-found]
from persistqueue.serializers import json as as_json  # type: ignore[import-not-found]

from benchmarks.lab.measure import BARE_POLL, Spent, Watch
from benchmarks.lab.subject import main, payloads, ready

BATCH = 100
STARTED = "started.sock"


class Plain:
    """SQLiteQueue without auto-commit: reading moves a cursor in memory, `task_done` deletes what was read."""

    handlers = "def"
    durability = "WAL, FULL: fsync per put; one consumer only, which forgets 100 jobs per fsync"
    durable = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queue: Any = self.open(str(path))

    def open(self, directory: str) -> Any:
        return SQLiteQueue(directory, auto_commit=False, serializer=as_json)

    def enqueue(self, jobs: int) -> Spent:
        watch = Watch()
        for payload in payloads(jobs):
            self.queue.put(payload)
        return watch.spent()

    bulk = enqueue  # it has no other way

    def process(self, jobs: int) -> Spent:
        watch = Watch()
        for number in range(1, jobs + 1):
            noop(**self.queue.get_nowait())
            if number % BATCH == 0 or number == jobs:
                self.queue.task_done()
        return watch.spent()

    def serve(self) -> None:
        tell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ready()
        while True:
            try:
                item = self.queue.get(block=False, raw=True)
            except Empty:
                time.sleep(BARE_POLL)
                continue
            tell.sendto(repr(time.perf_counter()).encode(), str(self.path / STARTED))
            noop(**item["data"])
            self.finish(item)

    def finish(self, item: dict[str, Any]) -> None:
        self.queue.task_done()

    def call(self, times: int) -> list[float]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.bind(str(self.path / STARTED))
            told.settimeout(30)
            return [self._until_started(payload, told) for payload in payloads(times)]

    def _until_started(self, payload: dict[str, Any], told: socket.socket) -> float:
        began = time.perf_counter()  # CLOCK_MONOTONIC, the same in every process
        self.queue.put(payload)
        return float(told.recv(64)) - began


class Acked(Plain):
    durability = "WAL, FULL: fsync per put, per get and per ack"
    durable = True

    def open(self, directory: str) -> Any:
        return SQLiteAckQueue(directory, serializer=as_json)

    def process(self, jobs: int) -> Spent:
        watch = Watch()
        for _ in range(jobs):
            item = self.queue.get(block=False, raw=True)
            noop(**item["data"])
            self.queue.ack(id=item["pqid"])
        return watch.spent()

    def finish(self, item: dict[str, Any]) -> None:
        self.queue.ack(id=item["pqid"])


def noop(number: int, text: str) -> None:
    pass


if __name__ == "__main__":
    main({"persist-queue": Plain, "persist-queue-ack": Acked})
