"""PgQueuer: asyncpg, uvloop, batches of 100; its logged tables ("durable"), which is the default.

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
import uvloop  # type: ignore[import-not-found, unused-ignore]
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.core.completion import CompletionWatcher  # type: ignore[import-not-found]
from pgqueuer.domain.types import QueueExecutionMode  # type: ignore[import-not-found]

from benchmarks.lab.postgres_place import url_of
from benchmarks.lab.subject import main, payloads, ready

CLAIMS, ENQUEUES = 100, 1_000


class OnPgQueuer:
    delivery = (
        "at least once: a job runs again 30 s after the last heartbeat of its worker; "
        "results are not kept, a log of states is kept"
    )
    durability = "fsync per enqueue, claim and end"
    durable = True

    def __init__(self, path: Path) -> None:
        logging.disable(logging.ERROR)
        self.url = url_of(path)

    @asynccontextmanager
    async def _open(self, *, install: bool = False) -> AsyncIterator[Any]:
        async with asyncpg.create_pool(self.url, min_size=2, max_size=5) as pool:
            queuer: Any = PgQueuer.from_asyncpg_pool(pool)
            queuer.entrypoint("noop")(noop)
            if install and not await queuer.queries.schema_is_installed():
                await queuer.queries.install()
            yield queuer

    def enqueue(self, jobs: int) -> float:
        return float(uvloop.run(self._enqueue(jobs)))

    async def _enqueue(self, jobs: int) -> float:
        async with self._open(install=True) as queuer:
            began = time.perf_counter()
            for payload in payloads(jobs):
                await queuer.queries.enqueue("noop", json.dumps(payload).encode())
            return time.perf_counter() - began

    def bulk(self, jobs: int) -> float:
        return float(uvloop.run(self._bulk(jobs)))

    async def _bulk(self, jobs: int) -> float:
        async with self._open(install=True) as queuer:
            began = time.perf_counter()
            bodies = (json.dumps(payload).encode() for payload in payloads(jobs))
            while part := list(islice(bodies, ENQUEUES)):
                await queuer.queries.enqueue(["noop"] * len(part), part, [0] * len(part))
            return time.perf_counter() - began

    def process(self, jobs: int) -> float:
        return float(uvloop.run(self._process()))

    async def _process(self) -> float:
        async with self._open() as queuer:
            began = time.perf_counter()
            await queuer.qm.run(batch_size=CLAIMS, mode=QueueExecutionMode.drain)
            return time.perf_counter() - began

    def serve(self) -> None:
        uvloop.run(self._serve())

    async def _serve(self) -> None:
        async with self._open(install=True) as queuer:
            ready()
            await queuer.qm.run(batch_size=1)

    def call(self, times: int) -> list[float]:
        return list(uvloop.run(self._call(times)))

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


async def noop(job: Any) -> None:
    json.loads(job.payload)


if __name__ == "__main__":
    main({"pgqueuer": OnPgQueuer})
