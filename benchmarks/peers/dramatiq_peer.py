"""Dramatiq on Redis: one worker process with its default of 8 threads, and a prefetch of 1,000.

Its default is to prefetch two messages per thread, which suits long tasks; with 1,000 it did nearly three times as many
no-ops. Results are a middleware that stores only those of actors who ask for it, so the no-op stores none. There is no
bulk enqueue: a group sends its messages one by one.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import dramatiq  # type: ignore[import-not-found]
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]
from dramatiq.results import Results  # type: ignore[import-not-found]
from dramatiq.results.backends import RedisBackend  # type: ignore[import-not-found]

from benchmarks.lab import callers
from benchmarks.lab.countdown import countdown
from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.redis_place import url_of
from benchmarks.lab.subject import main, payloads, ready

THREADS, PREFETCH = 8, 1_000


class OnDramatiq:
    delivery = "at least once, with heartbeats of the worker; results on request"
    durability = "in the server's memory"
    durable = False
    handlers = "def"

    def __init__(self, path: Path) -> None:
        url = url_of(path)
        self.broker: Any = RedisBroker(url=url)
        self.broker.add_middleware(Results(backend=RedisBackend(url=url)))
        dramatiq.set_broker(self.broker)
        self._done = threading.Event()
        self._noop: Any = dramatiq.actor(noop, broker=self.broker, actor_name="noop")
        self._echo: Any = dramatiq.actor(echo, broker=self.broker, actor_name="echo", store_results=True)

    def enqueue(self, jobs: int) -> Spent:
        return self.threads(jobs, 1)

    def threads(self, jobs: int, number: int) -> Spent:
        return callers.from_threads(self._noop.send, jobs, number)

    bulk = enqueue

    def process(self, jobs: int) -> Spent:
        return self._process(jobs, self._worker(PREFETCH))

    def process_default(self, jobs: int) -> Spent:
        return self._process(jobs, self._worker(None))

    def _process(self, jobs: int, worker: Any) -> Spent:
        countdown.left, countdown.at_the_end = jobs, self._done.set
        watch = Watch()
        worker.start()
        self._done.wait()
        self.broker.join("default", interval=1)
        spent = watch.spent()
        worker.stop()
        return spent

    def serve(self) -> None:
        self._worker(PREFETCH).start()
        ready()
        threading.Event().wait()

    def _worker(self, prefetch: int | None) -> Any:
        worker = dramatiq.Worker(self.broker, worker_threads=THREADS)
        if prefetch:
            worker.queue_prefetch = prefetch  # or the variable dramatiq_queue_prefetch
        return worker

    def call(self, times: int) -> list[float]:
        return [self._round_trip(payload) for payload in payloads(times)]

    def _round_trip(self, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        assert self._echo.send(**payload).get_result(block=True, timeout=30_000) == payload["number"]
        return time.perf_counter() - began


def noop(number: int, text: str) -> None:
    countdown.one()


def echo(number: int, text: str) -> int:
    return number


if __name__ == "__main__":
    main({"dramatiq": OnDramatiq})
