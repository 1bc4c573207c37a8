"""arq: one worker, uvloop, many jobs at a time, no pause between two looks at a queue that is not empty.

It polls: every 500 ms by default, here every 10 ms, worker and caller, which its idle CPU shows. The no-op's result is
not kept. There is no bulk enqueue: calls under way side by side are the fastest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import islice
from pathlib import Path
from typing import Any

import uvloop  # type: ignore[import-not-found, unused-ignore]
from arq import create_pool, func  # type: ignore[import-not-found]
from arq.connections import RedisSettings  # type: ignore[import-not-found]
from arq.worker import Worker  # type: ignore[import-not-found]

from benchmarks.lab.measure import BARE_POLL
from benchmarks.lab.redis_place import url_of
from benchmarks.lab.subject import main, payloads, ready

AT_ONCE = 100


class OnArq:
    delivery = "at least once: a job whose worker dies runs again after job_timeout; results are kept on request"
    durability = "in the server's memory"
    durable = False

    def __init__(self, path: Path) -> None:
        logging.disable(logging.ERROR)
        self.settings: Any = RedisSettings.from_dsn(url_of(path))

    def enqueue(self, jobs: int) -> float:
        return float(uvloop.run(self._add(jobs, 1)))

    def bulk(self, jobs: int) -> float:
        return float(uvloop.run(self._add(jobs, AT_ONCE)))

    async def _add(self, jobs: int, at_once: int) -> float:
        pool: Any = await create_pool(self.settings)
        waiting = payloads(jobs)
        began = time.perf_counter()
        while part := list(islice(waiting, at_once)):
            await asyncio.gather(*(pool.enqueue_job("noop", **payload) for payload in part))
        return time.perf_counter() - began

    def process(self, jobs: int) -> float:
        return float(uvloop.run(self._process(jobs)))

    async def _process(self, jobs: int) -> float:
        worker = self._worker(burst=True, poll_delay=0)
        began = time.perf_counter()
        await worker.main()
        seconds = time.perf_counter() - began
        assert worker.jobs_complete == jobs, worker.jobs_complete
        await worker.close()
        return seconds

    def serve(self) -> None:
        uvloop.run(self._serve())

    async def _serve(self) -> None:
        await self._worker(on_startup=tell_ready, poll_delay=BARE_POLL).main()

    def _worker(self, **options: Any) -> Any:
        functions = [func(noop, keep_result=0), func(echo)]
        return Worker(functions, redis_settings=self.settings, max_jobs=AT_ONCE, handle_signals=False, **options)

    def call(self, times: int) -> list[float]:
        return list(uvloop.run(self._call(times)))

    async def _call(self, times: int) -> list[float]:
        pool: Any = await create_pool(self.settings)
        return [await self._round_trip(pool, payload) for payload in payloads(times)]

    async def _round_trip(self, pool: Any, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        job = await pool.enqueue_job("echo", **payload)
        assert await job.result(timeout=30, poll_delay=BARE_POLL) == payload["number"]
        return time.perf_counter() - began


async def noop(ctx: dict[str, Any], number: int, text: str) -> None:
    pass


async def echo(ctx: dict[str, Any], number: int, text: str) -> int:
    return number


async def tell_ready(ctx: dict[str, Any]) -> None:
    ready()


if __name__ == "__main__":
    main({"arq": OnArq})
