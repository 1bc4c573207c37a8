"""litequeue: put, pop, done. The loop around it and its polling, every 10 ms, are left to the user, so they are ours.

It keeps no results: a round trip ends when whoever asked sees the message marked done.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from litequeue import LiteQueue, MessageStatus  # type: ignore[import-not-found]

from benchmarks.lab.measure import BARE_POLL, Spent, Watch
from benchmarks.lab.subject import main, payloads, ready


class Lite:
    handlers = "def"
    durability = "WAL, NORMAL (its default): no fsync per commit"
    durable = False

    def __init__(self, path: Path) -> None:
        self.queue: Any = self.open(path / "lite.db")

    def open(self, file: Path) -> Any:
        return LiteQueue(file)

    def enqueue(self, jobs: int) -> Spent:
        watch = Watch()
        for payload in payloads(jobs):
            self.queue.put(json.dumps(payload))
        return watch.spent()

    def bulk(self, jobs: int) -> Spent:
        watch = Watch()
        with self.queue.transaction():
            for payload in payloads(jobs):
                self.queue.put(json.dumps(payload))
        return watch.spent()

    def process(self, jobs: int) -> Spent:
        watch = Watch()
        for _ in range(jobs):
            assert self.work()
        return watch.spent()

    def work(self) -> bool:
        """Run one message, if there is one."""
        message = self.queue.pop()
        if message is None:
            return False
        noop(**json.loads(message.data))
        self.queue.done(message.message_id)
        return True

    def serve(self) -> None:
        ready()
        while True:
            if not self.work():
                time.sleep(BARE_POLL)

    def call(self, times: int) -> list[float]:
        return [self._round_trip(payload) for payload in payloads(times)]

    def _round_trip(self, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        message = self.queue.put(json.dumps(payload))
        while self.queue.get(message.message_id).status != MessageStatus.DONE:
            time.sleep(BARE_POLL)
        return time.perf_counter() - began


class Synced(Lite):
    durability = "WAL, FULL (set by hand): fsync per commit"
    durable = True

    def open(self, file: Path) -> Any:
        queue = LiteQueue(file)
        queue.conn.execute("PRAGMA synchronous = FULL")
        return queue


class Memory(Lite):
    durability = "none: lives and dies with its process"
    durable = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock = threading.Lock()

    def open(self, file: Path) -> Any:
        return LiteQueue(memory=True, check_same_thread=False)

    def process(self, jobs: int) -> Spent:
        self.bulk(jobs)
        return super().process(jobs)

    @contextmanager
    def working(self) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._loop, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _loop(self, over: threading.Event) -> None:
        while not over.is_set():
            with self._lock:
                worked = self.work()
            if not worked:
                over.wait(BARE_POLL)

    def _round_trip(self, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        with self._lock:
            message = self.queue.put(json.dumps(payload))
        while True:
            with self._lock:
                if self.queue.get(message.message_id).status == MessageStatus.DONE:
                    return time.perf_counter() - began
            time.sleep(BARE_POLL)


def noop(number: int, text: str) -> None:
    pass


if __name__ == "__main__":
    main({"litequeue": Lite, "litequeue-full": Synced, "litequeue-memory": Memory})
