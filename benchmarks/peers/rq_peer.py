"""RQ: a SimpleWorker, which runs jobs in its own process; the default one forks for each and did a tenth of that.

Bulk is `enqueue_many`, a pipeline, 1,000 at a time. A no-op's record is removed when it has run (`result_ttl=0`); the
trip waits for its result in a stream.
"""

from __future__ import annotations

import logging
import time
from itertools import islice
from pathlib import Path
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker  # type: ignore[import-not-found]

from benchmarks.lab import callers
from benchmarks.lab.countdown import countdown
from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.redis_place import url_of
from benchmarks.lab.subject import main, payloads, ready

NOOP, ECHO = "benchmarks.peers.rq_peer.noop", "benchmarks.peers.rq_peer.echo"
BATCH = 1_000


class OnRq:
    delivery = "at most once: a job whose worker dies has failed, and is retried if it has retries; results kept 500 s"
    durability = "in the server's memory"
    durable = False
    handlers = "def"

    def __init__(self, path: Path) -> None:
        logging.disable(logging.ERROR)
        self.client = Redis.from_url(url_of(path))
        self.queue: Any = Queue(connection=self.client)

    def enqueue(self, jobs: int) -> Spent:
        return self.threads(jobs, 1)

    def threads(self, jobs: int, number: int) -> Spent:
        return callers.from_threads(self._enqueue_one, jobs, number)

    def _enqueue_one(self, **payload: Any) -> None:
        self.queue.enqueue(NOOP, kwargs=payload, result_ttl=0)

    def bulk(self, jobs: int) -> Spent:
        watch = Watch()
        waiting = (Queue.prepare_data(NOOP, kwargs=payload, result_ttl=0) for payload in payloads(jobs))
        while part := list(islice(waiting, BATCH)):
            self.queue.enqueue_many(part)
        return watch.spent()

    def process(self, jobs: int) -> Spent:
        countdown.left = jobs
        worker: Any = SimpleWorker([self.queue], connection=self.client)
        watch = Watch()
        worker.work(burst=True, logging_level="ERROR")
        spent = watch.spent()
        assert countdown.left == 0
        return spent

    def serve(self) -> None:
        ready()
        SimpleWorker([self.queue], connection=self.client).work(logging_level="ERROR")

    def call(self, times: int) -> list[float]:
        return [self._round_trip(payload) for payload in payloads(times)]

    def _round_trip(self, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        job = self.queue.enqueue(ECHO, kwargs=payload)
        assert job.latest_result(timeout=30).return_value == payload["number"]
        return time.perf_counter() - began


def noop(number: int, text: str) -> None:
    countdown.one()


def echo(number: int, text: str) -> int:
    return number


if __name__ == "__main__":
    main({"rq": OnRq})
