"""huey: tasks, a consumer and results. The consumer runs with its default settings: one thread, polls from 100 ms on.
On Redis it does not poll: it waits for jobs in the server, and with `notify_result` callers do so for results.

Its no-op returns None, which huey does not store: one commit takes a job, and none is needed to finish it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huey import MemoryHuey, RedisHuey, SqliteHuey  # type: ignore[import-not-found]
from huey.consumer import Consumer  # type: ignore[import-not-found]

from benchmarks.lab import callers
from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.redis_place import url_of
from benchmarks.lab.subject import main, payloads, ready


class Huey:
    handlers = "def"
    durability = "WAL, FULL: fsync per enqueue; a job is lost if its worker dies while running it"
    durable = True

    def __init__(self, path: Path) -> None:
        self.huey: Any = self.open(path)
        self._left = 0
        self._done = threading.Event()
        self._noop: Any = self.huey.task()(self.noop)
        self._echo: Any = self.huey.task()(self.echo)

    def open(self, path: Path) -> Any:
        return SqliteHuey(filename=str(path / "huey.db"))

    def noop(self, number: int, text: str) -> None:
        self._left -= 1
        if self._left == 0:
            self._done.set()

    def echo(self, number: int, text: str) -> int:
        return number

    def enqueue(self, jobs: int) -> Spent:
        return self.threads(jobs, 1)

    def threads(self, jobs: int, number: int) -> Spent:
        return callers.from_threads(self._noop, jobs, number)

    bulk = enqueue  # it has no other way

    def process(self, jobs: int) -> Spent:
        self._left = jobs
        consumer = Consumer(self.huey)
        watch = Watch()
        consumer.start()
        self._done.wait()
        spent = watch.spent()
        consumer.stop(graceful=True)
        return spent

    def serve(self) -> None:
        self.huey.on_startup()(ready)
        Consumer(self.huey).run()

    def call(self, times: int) -> list[float]:
        return [self._round_trip(payload) for payload in payloads(times)]

    def _round_trip(self, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        assert self._echo(**payload).get(blocking=True, timeout=30) == payload["number"]
        return time.perf_counter() - began


class Unsynced(Huey):
    durability = "WAL, OFF (fsync=False): nothing is waited for"
    durable = False

    def open(self, path: Path) -> Any:
        return SqliteHuey(filename=str(path / "huey.db"), fsync=False)


class Redis(Huey):
    delivery = "at most once: a job is lost if its worker dies while running it; results kept unless they are None"
    durability = "in the server's memory"
    durable = False

    def open(self, path: Path) -> Any:
        return RedisHuey(url=url_of(path), notify_result=True)


class Memory(Huey):
    durability = "none: lives and dies with its process"
    durable = False

    def open(self, path: Path) -> Any:
        return MemoryHuey()

    def process(self, jobs: int) -> Spent:
        self.bulk(jobs)
        return super().process(jobs)

    @contextmanager
    def working(self) -> Iterator[None]:
        consumer = Consumer(self.huey)
        consumer.start()
        try:
            yield
        finally:
            consumer.stop(graceful=True)


if __name__ == "__main__":
    main({"huey": Huey, "huey-nosync": Unsynced, "huey-redis": Redis, "huey-memory": Memory})
