"""Chancy: psycopg with its C part, uvloop, its asyncio executor, many jobs at a time, eager polling.

Of its default plugins those that lead, prune and recover lost jobs are on; metrics and workflows, which look at each
end, are off: with them it processed about half as much.

It keeps no results: a trip ends when whoever asked sees that the job has succeeded; asked every 10 ms. Ends are written
in batches, every second by default (`send_outgoing_interval`), here every 100 ms, and 10 ms for the trips.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from chancy import Chancy, Job, Queue, Worker  # type: ignore[import-not-found]
from chancy.plugins.leadership import Leadership  # type: ignore[import-not-found]
from chancy.plugins.pruner import Pruner  # type: ignore[import-not-found]
from chancy.plugins.recovery import Recovery  # type: ignore[import-not-found]

from benchmarks.lab import callers
from benchmarks.lab.countdown import countdown
from benchmarks.lab.measure import BARE_POLL, Spent, Watch
from benchmarks.lab.postgres_place import url_of
from benchmarks.lab.subject import main, payloads, ready

AT_ONCE, ENQUEUES = 1_000, 1_000
NOOP = "benchmarks.peers.chancy_peer.noop"
QUEUE = "default"


class OnChancy:
    delivery = "at least once, if attempts are left: a dead worker is detected after 90 s; no results, jobs kept"
    durability = "fsync per enqueue, claim and end"
    durable = True

    def __init__(self, path: Path) -> None:
        logging.disable(logging.ERROR)
        self.url = url_of(path)

    @asynccontextmanager
    async def _open(self, *, install: bool = False) -> AsyncIterator[Any]:
        plugins = [Leadership(), Pruner(), Recovery()]
        async with Chancy(self.url, plugins=plugins, no_default_plugins=True) as chancy:
            if install:
                await chancy.migrate()
                await chancy.declare(
                    Queue(QUEUE, concurrency=AT_ONCE, executor=Chancy.Executor.Async, eager_polling=True), upsert=True
                )
            yield chancy

    def enqueue(self, jobs: int) -> Spent:
        return self.callers(jobs, 1)

    def callers(self, jobs: int, number: int) -> Spent:
        return callers.run(self._enqueue(jobs, number))

    async def _enqueue(self, jobs: int, number: int) -> Spent:
        async with self._open(install=True) as chancy:
            return await callers.from_coroutines(lambda **payload: chancy.push(a_job(payload)), jobs, number)

    def bulk(self, jobs: int) -> Spent:
        return callers.run(self._bulk(jobs))

    async def _bulk(self, jobs: int) -> Spent:
        async with self._open(install=True) as chancy:
            waiting = (a_job(payload) for payload in payloads(jobs))
            watch = Watch()
            while part := list(islice(waiting, 10 * ENQUEUES)):
                async for _ in chancy.push_many(part, batch_size=ENQUEUES):
                    pass
            return watch.spent()

    def process(self, jobs: int) -> Spent:
        return callers.run(self._process(jobs))

    async def _process(self, jobs: int) -> Spent:
        countdown.left = jobs
        async with self._open() as chancy:
            worker = a_worker(chancy, outgoing=0.1)
            watch = Watch()
            await worker.start()
            await countdown.over.wait()
            await worker.stop()  # which writes the ends that are left
            return watch.spent()

    def serve(self) -> None:
        callers.run(self._serve())

    async def _serve(self) -> None:
        async with self._open(install=True) as chancy:
            worker = a_worker(chancy, outgoing=BARE_POLL)
            await worker.start()
            ready()
            await worker.wait_for_shutdown()

    def call(self, times: int) -> list[float]:
        return callers.run(self._call(times))

    async def _call(self, times: int) -> list[float]:
        async with self._open() as chancy:
            return [await self._round_trip(chancy, payload) for payload in payloads(times)]

    async def _round_trip(self, chancy: Any, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        job = await chancy.wait_for_job(await chancy.push(a_job(payload)), interval=BARE_POLL, timeout=30)
        assert job.state.value == "succeeded"
        return time.perf_counter() - began


def a_job(payload: dict[str, Any]) -> Any:
    return Job(func=NOOP, kwargs=payload, queue=QUEUE)


def a_worker(chancy: Any, outgoing: float) -> Any:
    worker = Worker(chancy, register_signal_handlers=False)
    worker.send_outgoing_interval = outgoing
    return worker


async def noop(*, number: int, text: str) -> None:
    countdown.one()


if __name__ == "__main__":
    main({"chancy": OnChancy})
