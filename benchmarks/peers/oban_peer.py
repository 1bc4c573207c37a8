"""Oban for Python (the open one, not Pro): psycopg with its C part, uvloop, a queue with many jobs at a time.

It keeps no results unless a job records one: a trip ends when whoever asked sees that the job is completed; asked every
10 ms. Oban asks for Python 3.12 because of one line, a type alias that nothing reads at run time; on 3.11 that line is
passed over when it is imported.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.machinery import PathFinder, SourceFileLoader
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.lab import callers
from benchmarks.lab.countdown import countdown, until
from benchmarks.lab.measure import BARE_POLL, Spent, Watch
from benchmarks.lab.postgres_place import url_of
from benchmarks.lab.subject import main, payloads, ready

ALIAS = b"\ntype Result[T] = "


class WithoutAlias(SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, **options: Any) -> Any:  # type: ignore[override]
        return super().source_to_code(bytes(data).replace(ALIAS, b"\nResult = list  # "), path, **options)


class OnlyOnOldPython(PathFinder):
    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        found = super().find_spec(fullname, path, target) if fullname == "oban.job" else None
        if found is not None and found.origin is not None:
            found.loader = WithoutAlias(fullname, found.origin)
        return found


if sys.version_info < (3, 12):
    sys.meta_path.insert(0, OnlyOnOldPython)

from oban import Oban, job  # type: ignore[import-not-found] # noqa: E402
from oban.schema import install as install_schema  # type: ignore[import-not-found] # noqa: E402

AT_ONCE, ENQUEUES = 200, 1_000


class OnOban:
    delivery = "at least once, if attempts are left: a dead worker is detected after 60 s; no results, jobs kept"
    durability = "fsync per enqueue, claim and end"
    durable = True

    def __init__(self, path: Path) -> None:
        logging.disable(logging.ERROR)
        self.url = url_of(path)

    @asynccontextmanager
    async def _open(self, *, install: bool = False, queues: dict[str, int] | None = None) -> AsyncIterator[Any]:
        pool: Any = await Oban.create_pool(self.url)
        try:
            if install:
                await install_schema(pool)
            async with Oban(pool=pool, queues=queues or {}) as oban:
                yield oban
        finally:
            await pool.close()

    def enqueue(self, jobs: int) -> Spent:
        return self.callers(jobs, 1)

    def callers(self, jobs: int, number: int) -> Spent:
        return callers.run(self._enqueue(jobs, number))

    async def _enqueue(self, jobs: int, number: int) -> Spent:
        async with self._open(install=True) as oban:
            return await callers.from_coroutines(lambda **payload: oban.enqueue(Noop.new(**payload)), jobs, number)

    def bulk(self, jobs: int) -> Spent:
        return callers.run(self._bulk(jobs))

    async def _bulk(self, jobs: int) -> Spent:
        async with self._open(install=True) as oban:
            waiting = (Noop.new(**payload) for payload in payloads(jobs))
            watch = Watch()
            while part := list(islice(waiting, ENQUEUES)):
                await oban.enqueue_many(part)
            return watch.spent()

    def process(self, jobs: int) -> Spent:
        return callers.run(self._process(jobs, AT_ONCE))

    def process_default(self, jobs: int) -> Spent:
        return callers.run(self._process(jobs, 10))

    async def _process(self, jobs: int, at_once: int) -> Spent:
        countdown.left = jobs
        watch = Watch()
        async with self._open(queues={"default": at_once}):
            await countdown.over.wait()
        return watch.spent()  # leaving has written the ends that were left

    def serve(self) -> None:
        callers.run(self._serve())

    async def _serve(self) -> None:
        async with self._open(install=True, queues={"default": AT_ONCE}):
            ready()
            await asyncio.Event().wait()

    def call(self, times: int) -> list[float]:
        return callers.run(self._call(times))

    async def _call(self, times: int) -> list[float]:
        async with self._open() as oban:
            return [await self._round_trip(oban, payload) for payload in payloads(times)]

    async def _round_trip(self, oban: Any, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        sent = await oban.enqueue(Noop.new(**payload))

        async def completed() -> bool:
            return bool((await oban.get_job(sent.id)).state == "completed")

        await until(completed, BARE_POLL)
        return time.perf_counter() - began


async def noop(number: int, text: str) -> None:
    countdown.one()


Noop: Any = job(queue="default")(noop)


if __name__ == "__main__":
    main({"oban": OnOban})
