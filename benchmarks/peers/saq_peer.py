"""SAQ on Redis: one worker with many jobs at a time, uvloop. Results are kept, for ten minutes, and callers are told.

There is no bulk enqueue: calls under way side by side are the fastest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from saq import Queue, Worker  # type: ignore[import-not-found]

from benchmarks.lab import callers
from benchmarks.lab.countdown import countdown, until
from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.redis_place import url_of
from benchmarks.lab.subject import main, payloads, ready

AT_ONCE = 100


class OnSaq:
    delivery = "at least once: a sweep finds stuck jobs; results kept 10 min"
    durability = "in the server's memory"
    durable = False

    def __init__(self, path: Path) -> None:
        logging.disable(logging.ERROR)
        self.url = url_of(path)

    def queue(self) -> Any:
        return Queue.from_url(self.url, max_concurrent_ops=AT_ONCE)

    def enqueue(self, jobs: int) -> Spent:
        return self.callers(jobs, 1)

    def callers(self, jobs: int, number: int) -> Spent:
        return callers.run(self._enqueue(jobs, number))

    async def _enqueue(self, jobs: int, number: int) -> Spent:
        queue = self.queue()
        await queue.connect()
        spent = await callers.from_coroutines(partial(queue.enqueue, "noop"), jobs, number)
        await queue.disconnect()
        return spent

    def bulk(self, jobs: int) -> Spent:
        return self.callers(jobs, AT_ONCE)

    def process(self, jobs: int) -> Spent:
        return callers.run(self._process(jobs, concurrency=AT_ONCE))

    def process_default(self, jobs: int) -> Spent:
        return callers.run(self._process(jobs))

    async def _process(self, jobs: int, **options: int) -> Spent:
        countdown.left = jobs
        queue = self.queue()
        await queue.connect()
        worker: Any = Worker(queue, [("noop", noop), ("echo", echo)], **options)
        watch = Watch()
        working = asyncio.create_task(worker.start())
        await countdown.over.wait()

        async def settled() -> bool:
            return not await queue.count("incomplete")

        await until(settled)
        spent = watch.spent()
        await worker.stop()
        await working
        await queue.disconnect()
        return spent

    def serve(self) -> None:
        callers.run(self._serve())

    async def _serve(self) -> None:
        queue = self.queue()
        await queue.connect()
        functions = [("noop", noop), ("echo", echo)]
        await Worker(queue, functions, concurrency=AT_ONCE, startup=[tell_ready]).start()

    def call(self, times: int) -> list[float]:
        return callers.run(self._call(times))

    async def _call(self, times: int) -> list[float]:
        queue = self.queue()
        await queue.connect()
        return [await self._round_trip(queue, payload) for payload in payloads(times)]

    async def _round_trip(self, queue: Any, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        job = await queue.enqueue("echo", **payload)
        while not job.completed:
            with suppress(TimeoutError):  # it was told between a look and the beginning of listening
                await job.refresh(0.1)  # waits to be told; `Queue.apply` polls, every 500 ms
        assert job.result == payload["number"]
        return time.perf_counter() - began


async def noop(ctx: dict[str, Any], *, number: int, text: str) -> None:
    countdown.one()


async def echo(ctx: dict[str, Any], *, number: int, text: str) -> int:
    return number


async def tell_ready(ctx: dict[str, Any]) -> None:
    ready()


if __name__ == "__main__":
    main({"saq": OnSaq})
