"""Celery on Redis: JSON messages, late acknowledgements, and tasks run in the worker's own process (the solo pool).

Of its pools in one process, solo ran no-ops fastest here: threads and greenlets add a hand-over per task, and prefork a
second process. What its guide on optimizing and the worker's own options name is set: no results where nobody reads
them, a prefetch multiplier for short tasks, and none of the chatter between workers (gossip, mingle, heartbeats). It
has no bulk enqueue: a group sends its tasks one by one.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, signals  # type: ignore[import-not-found]
from celery.worker import state  # type: ignore[import-not-found]

from benchmarks.lab import callers
from benchmarks.lab.countdown import countdown
from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.redis_place import url_of
from benchmarks.lab.subject import main, payloads, ready

PREFETCH = 100
UNACKED = "unacked"  # kombu's hash of messages that are taken and not acknowledged


class OnCelery:
    delivery = "at least once after a visibility timeout of 1 h (acks_late); results on request"
    durability = "in the server's memory"
    durable = False
    handlers = "def"

    def __init__(self, path: Path) -> None:
        url = url_of(path)
        self.app = Celery("bench", broker=url, backend=url)
        self.app.conf.update(
            task_acks_late=True,
            worker_prefetch_multiplier=PREFETCH,
            worker_hijack_root_logger=False,
            worker_redirect_stdouts=False,
            worker_send_task_events=False,
            broker_connection_retry_on_startup=True,
        )
        self._done = threading.Event()
        self._noop: Any = self.app.task(name="noop", ignore_result=True)(noop)
        self._echo: Any = self.app.task(name="echo")(echo)

    def enqueue(self, jobs: int) -> Spent:
        return self.threads(jobs, 1)

    def threads(self, jobs: int, number: int) -> Spent:
        self._noop.app.connection_for_write().ensure_connection()
        return callers.from_threads(self._noop.delay, jobs, number)

    bulk = enqueue

    def process(self, jobs: int) -> Spent:
        countdown.left, countdown.at_the_end = jobs, self._done.set
        ended: list[Spent] = []
        watch = Watch()
        threading.Thread(target=self._end_when_all_is_settled, args=(watch, ended), daemon=True).start()
        self._work()
        return ended[0]

    def _end_when_all_is_settled(self, watch: Watch, ended: list[Spent]) -> None:
        self._done.wait()
        with self.app.connection_for_read() as connection:
            client = connection.default_channel.client
            while client.hlen(UNACKED):
                time.sleep(0.001)
        ended.append(watch.spent())
        state.should_stop = 0

    def serve(self) -> None:
        signals.worker_ready.connect(lambda **_: ready(), weak=False)
        self._work()

    def _work(self) -> None:
        self.app.Worker(
            pool="solo", quiet=True, loglevel="ERROR", without_gossip=True, without_mingle=True, without_heartbeat=True
        ).start()

    def call(self, times: int) -> list[float]:
        return [self._round_trip(payload) for payload in payloads(times)]

    def _round_trip(self, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        assert self._echo.apply_async(kwargs=payload).get(timeout=30) == payload["number"]
        return time.perf_counter() - began


def noop(number: int, text: str) -> None:
    countdown.one()


def echo(number: int, text: str) -> int:
    return number


if __name__ == "__main__":
    main({"celery": OnCelery})
