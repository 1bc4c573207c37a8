"""PgQueuer: asyncpg, uvloop, a large batch, and the settings for autovacuum of its guide on performance.

As that guide recommends, a worker has one connection and producers have a pool. "pgqueuer" has only logged tables
("durable"), its default. In "pgqueuer-balanced" the log of states is unlogged, so that a crash of the server loses it.

It keeps no results but tells that a job has ended (CompletionWatcher). Ends are written in batches, of as many as are
claimed at a time or every 100 ms, so the worker of the round trips claims one at a time; and the watcher looks 1 ms
after it was notified, not 50.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.adapters.persistence.qb import (  # type: ignore[import-not-found]
    DBSettings,
    Durability,
    QueryBuilderEnvironment,
)
from pgqueuer.adapters.persistence.queries import Queries  # type: ignore[import-not-found]
from pgqueuer.core.completion import CompletionWatcher  # type: ignore[import-not-found]
from pgqueuer.domain.types import QueueExecutionMode  # type: ignore[import-not-found]

from benchmarks.lab import callers
from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.postgres_place import url_of
from benchmarks.lab.subject import main, payloads, ready

CLAIMS, ENQUEUES, POOL = 200, 2_000, 10


class OnPgQueuer:
    delivery = (
        "at least once: a job runs again 30 s after the last heartbeat of its worker; "
        "results are not kept, a log of states is kept"
    )
    durability = "fsync per enqueue, claim and end"
    durable = True
    level = Durability.durable

    def __init__(self, path: Path) -> None:
        logging.disable(logging.ERROR)
        self.url = url_of(path)

    @asynccontextmanager
    async def _open(self, *, install: bool = False) -> AsyncIterator[Any]:
        async with asyncpg.create_pool(self.url, min_size=2, max_size=POOL) as pool:
            queuer: Any = PgQueuer.from_asyncpg_pool(pool)
            if install and not await queuer.queries.schema_is_installed():
                queries = Queries(queuer.connection, qbe=QueryBuilderEnvironment(DBSettings(durability=self.level)))
                await queries.install()
                await queries.optimize_autovacuum()
            yield queuer

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[Any]:
        line = await asyncpg.connect(self.url)
        try:
            queuer: Any = PgQueuer.from_asyncpg_connection(line)
            queuer.entrypoint("noop")(noop)
            yield queuer.qm
        finally:
            await line.close()

    def enqueue(self, jobs: int) -> Spent:
        return self.callers(jobs, 1)

    def callers(self, jobs: int, number: int) -> Spent:
        return callers.run(self._enqueue(jobs, number))

    async def _enqueue(self, jobs: int, number: int) -> Spent:
        async with self._open(install=True) as queuer:
            return await callers.from_coroutines(
                lambda **payload: queuer.queries.enqueue("noop", json.dumps(payload).encode()), jobs, number
            )

    def bulk(self, jobs: int) -> Spent:
        return callers.run(self._bulk(jobs))

    async def _bulk(self, jobs: int) -> Spent:
        async with self._open(install=True) as queuer:
            watch = Watch()
            bodies = (json.dumps(payload).encode() for payload in payloads(jobs))
            while part := list(islice(bodies, ENQUEUES)):
                await queuer.queries.enqueue(["noop"] * len(part), part, [0] * len(part))
            return watch.spent()

    def process(self, jobs: int) -> Spent:
        return callers.run(self._process(batch_size=CLAIMS))

    def process_default(self, jobs: int) -> Spent:
        return callers.run(self._process())

    async def _process(self, **options: int) -> Spent:
        async with self._worker() as manager:
            watch = Watch()
            await manager.run(mode=QueueExecutionMode.drain, **options)
            return watch.spent()

    def serve(self) -> None:
        callers.run(self._serve())

    async def _serve(self) -> None:
        async with self._open(install=True), self._worker() as manager:
            ready()
            await manager.run(batch_size=1)

    def call(self, times: int) -> list[float]:
        return callers.run(self._call(times))

    async def _call(self, times: int) -> list[float]:
        async with self._open() as queuer:
            watcher: Any = CompletionWatcher(
                queuer.connection, queries=queuer.queries, debounce=timedelta(milliseconds=1)
            )
            async with queuer.connection, watcher:  # it gives back the connection that listens
                return [await self._round_trip(queuer, watcher, payload) for payload in payloads(times)]

    async def _round_trip(self, queuer: Any, watcher: Any, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        [job] = await queuer.queries.enqueue("noop", json.dumps(payload).encode())
        assert await asyncio.wait_for(watcher.wait_for(job), 30) == "successful"
        return time.perf_counter() - began


class Balanced(OnPgQueuer):
    durability = "fsync per enqueue, claim and end; the log of states is unlogged"
    level = Durability.balanced


async def noop(job: Any) -> None:
    json.loads(job.payload)


if __name__ == "__main__":
    main({"pgqueuer": OnPgQueuer, "pgqueuer-balanced": Balanced})
