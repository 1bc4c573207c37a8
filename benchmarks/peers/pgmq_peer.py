"""pgmq: send, read, archive; its SQL functions, which its Python package brings along, so no extension is needed.

A message queue, not a job queue: no handlers, retries, schedules or states. The loop around it is ours, on asyncpg and
uvloop: 200 messages per read, each 200 archived in one call, as one does to keep them; its users poll, here every
10 ms. It has no results: a trip ends when whoever asked sees the message in the archive.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg
from pgmq import get_embedded_install_sql  # type: ignore[import-not-found]

from benchmarks.lab import callers
from benchmarks.lab.countdown import until
from benchmarks.lab.measure import BARE_POLL, Spent, Watch
from benchmarks.lab.postgres_place import url_of
from benchmarks.lab.subject import main, payloads, ready

CLAIMS, ENQUEUES, LEASE, POOL = 200, 2_000, 30, 10
LOOPS = 2  # readers: while one waits for the disk, the other works
SEND = "SELECT pgmq.send('bench', $1::jsonb)"
SEND_BATCH = "SELECT pgmq.send_batch('bench', $1::jsonb[])"
READ = "SELECT msg_id, message FROM pgmq.read('bench', $1, $2)"
ARCHIVED = "SELECT EXISTS (SELECT FROM pgmq.a_bench WHERE msg_id = $1)"
ARCHIVE = "SELECT pgmq.archive('bench', $1::bigint[])"


class OnPgmq:
    delivery = (
        "at least once: a message is delivered again after the visibility timeout; "
        "results are not kept, messages are archived"
    )
    durability = "fsync per send, read and archive"
    durable = True

    def __init__(self, path: Path) -> None:
        self.url = url_of(path)

    @asynccontextmanager
    async def _open(self, *, install: bool = False) -> AsyncIterator[Any]:
        line = await asyncpg.connect(self.url)
        try:
            if install:
                await line.execute(get_embedded_install_sql())
                await line.execute("SELECT pgmq.create('bench')")
            yield line
        finally:
            await line.close()

    def enqueue(self, jobs: int) -> Spent:
        return self.callers(jobs, 1)

    def callers(self, jobs: int, number: int) -> Spent:
        return callers.run(self._enqueue(jobs, number))

    async def _enqueue(self, jobs: int, number: int) -> Spent:
        async with self._open(install=True), asyncpg.create_pool(self.url, max_size=POOL) as pool:
            return await callers.from_coroutines(
                lambda **payload: pool.fetchval(SEND, json.dumps(payload)), jobs, number
            )

    def bulk(self, jobs: int) -> Spent:
        return callers.run(self._bulk(jobs))

    async def _bulk(self, jobs: int) -> Spent:
        async with self._open(install=True) as line:
            watch = Watch()
            bodies = (json.dumps(payload) for payload in payloads(jobs))
            while part := list(islice(bodies, ENQUEUES)):
                await line.fetch(SEND_BATCH, part)
            return watch.spent()

    def process(self, jobs: int) -> Spent:
        return callers.run(self._process(jobs))

    async def _process(self, jobs: int) -> Spent:
        watch = Watch()
        assert sum(await asyncio.gather(*(self._until_empty() for _ in range(LOOPS)))) == jobs
        return watch.spent()

    async def _until_empty(self) -> int:
        done = 0
        async with self._open() as line:
            while number := await work(line):
                done += number
        return done

    def serve(self) -> None:
        callers.run(self._serve())

    async def _serve(self) -> None:
        async with self._open(install=True) as line:
            ready()
            while True:
                if not await work(line):
                    await asyncio.sleep(BARE_POLL)

    def call(self, times: int) -> list[float]:
        return callers.run(self._call(times))

    async def _call(self, times: int) -> list[float]:
        async with self._open() as line:
            return [await self._round_trip(line, payload) for payload in payloads(times)]

    async def _round_trip(self, line: Any, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        number = await line.fetchval(SEND, json.dumps(payload))
        await until(lambda: line.fetchval(ARCHIVED, number), BARE_POLL)
        return time.perf_counter() - began


async def work(line: Any) -> int:
    """Run what there is, 200 messages at most; how many there were."""
    messages = await line.fetch(READ, LEASE, CLAIMS)
    if messages:
        await asyncio.gather(*(noop(**json.loads(body)) for _, body in messages))
        await line.fetch(ARCHIVE, [number for number, _ in messages])
    return len(messages)


async def noop(number: int, text: str) -> None:
    pass


if __name__ == "__main__":
    main({"pgmq": OnPgmq})
