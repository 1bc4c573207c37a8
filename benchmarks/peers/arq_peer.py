"""arq: one worker, uvloop, many jobs at a time, no pause between two looks at a queue that is not empty.

It polls: every 500 ms by default, here every 10 ms, worker and caller, which its idle CPU shows. The no-op's result is
not kept. There is no bulk enqueue: calls under way side by side are the fastest.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

from arq import create_pool, func  # type: ignore[import-not-found]
from arq.connections import RedisSettings  # type: ignore[import-not-found]
from arq.worker import Worker  # type: ignore[import-not-found]

from benchmarks.lab import callers
from benchmarks.lab.measure import BARE_POLL, Spent, Watch
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

    def enqueue(self, jobs: int) -> Spent:
        return self.callers(jobs, 1)

    def callers(self, jobs: int, number: int) -> Spent:
        return callers.run(self._enqueue(jobs, number))

    async def _enqueue(self, jobs: int, number: int) -> Spent:
        pool: Any = await create_pool(self.settings)
        return await callers.from_coroutines(partial(pool.enqueue_job, "noop"), jobs, number)

    def bulk(self, jobs: int) -> Spent:
        return self.callers(jobs, AT_ONCE)

    def process(self, jobs: int) -> Spent:
        return callers.run(self._process(jobs, max_jobs=AT_ONCE, poll_delay=0))

    def process_default(self, jobs: int) -> Spent:
        return callers.run(self._process(jobs))

    async def _process(self, jobs: int, **options: Any) -> Spent:
        worker = self._worker(burst=True, **options)
        watch = Watch()
        await worker.main()
        spent = watch.spent()
        assert worker.jobs_complete == jobs, worker.jobs_complete
        await worker.close()
        return spent

    def serve(self) -> None:
        callers.run(self._serve())

    async def _serve(self) -> None:
        await self._worker(on_startup=tell_ready, max_jobs=AT_ONCE, poll_delay=BARE_POLL).main()

    def _worker(self, **options: Any) -> Any:
        functions = [func(noop, keep_result=0), func(echo)]
        return Worker(functions, redis_settings=self.settings, handle_signals=False, **options)

    def call(self, times: int) -> list[float]:
        return callers.run(self._call(times))

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
