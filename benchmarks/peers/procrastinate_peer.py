"""Procrastinate: psycopg with its C part, uvloop, many jobs at a time over a pool as large.

Finished jobs are kept, its default, but no results: a trip ends when whoever asked sees that the job has succeeded;
asked every 10 ms.
"""

from __future__ import annotations

import logging
import time
from itertools import islice
from pathlib import Path
from typing import Any

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]

from benchmarks.lab import callers
from benchmarks.lab.countdown import until
from benchmarks.lab.measure import BARE_POLL, Spent, Watch
from benchmarks.lab.postgres_place import url_of
from benchmarks.lab.subject import main, payloads, ready

AT_ONCE = 20
BATCH = 1_000


class OnProcrastinate:
    delivery = "at most once: the user has to find and retry stalled jobs; no results, jobs kept"
    durability = "fsync per enqueue, claim and end"
    durable = True

    def __init__(self, path: Path) -> None:
        logging.disable(logging.ERROR)
        self.app: Any = App(connector=PsycopgConnector(conninfo=url_of(path), min_size=1, max_size=AT_ONCE + 2))
        self._noop: Any = self.app.task(name="noop")(noop)

    def enqueue(self, jobs: int) -> Spent:
        return self.callers(jobs, 1)

    def callers(self, jobs: int, number: int) -> Spent:
        return callers.run(self._enqueue(jobs, number))

    async def _enqueue(self, jobs: int, number: int) -> Spent:
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()
            return await callers.from_coroutines(self._noop.defer_async, jobs, number)

    def bulk(self, jobs: int) -> Spent:
        return callers.run(self._bulk(jobs))

    async def _bulk(self, jobs: int) -> Spent:
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()
            waiting = payloads(jobs)
            watch = Watch()
            while part := list(islice(waiting, BATCH)):
                await self._noop.batch_defer_async(*part)
            return watch.spent()

    def process(self, jobs: int) -> Spent:
        return callers.run(self._process(concurrency=AT_ONCE))

    def process_default(self, jobs: int) -> Spent:
        return callers.run(self._process())

    async def _process(self, **options: int) -> Spent:
        async with self.app.open_async():
            watch = Watch()
            await self._work(wait=False, **options)
            return watch.spent()

    def serve(self) -> None:
        callers.run(self._serve())

    async def _serve(self) -> None:
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()
            ready()
            await self._work(wait=True, concurrency=AT_ONCE)

    async def _work(self, *, wait: bool, **options: int) -> None:
        await self.app.run_worker_async(wait=wait, install_signal_handlers=False, **options)

    def call(self, times: int) -> list[float]:
        return callers.run(self._call(times))

    async def _call(self, times: int) -> list[float]:
        async with self.app.open_async():
            return [await self._round_trip(payload) for payload in payloads(times)]

    async def _round_trip(self, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        job = await self._noop.defer_async(**payload)

        async def succeeded() -> bool:
            return bool((await self.app.job_manager.get_job_status_async(job)).value == "succeeded")

        await until(succeeded, BARE_POLL)
        return time.perf_counter() - began


async def noop(number: int, text: str) -> None:
    pass


if __name__ == "__main__":
    main({"procrastinate": OnProcrastinate})
