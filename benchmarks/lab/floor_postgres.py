"""The floor under the PostgreSQL store: asyncpg on uvloop, and one table.

The least that a queue which keeps its jobs has to write: a row per job, an update when it is claimed, another when it
has ended. A single enqueue is one INSERT; in bulk, arrays are unnested, or rows are copied ("floor-copy"). 200 jobs are
ended and 200 claimed per statement, on two connections. Each statement waits for the disk. There is no history, no
lease, no retry and no rule. No index has the state, so that updates stay on the page of their row.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.lab import callers
from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.postgres_place import url_of
from benchmarks.lab.subject import main, payloads

ENQUEUES, CLAIMS = 5_000, 200
LOOPS = 2  # that claim and end: while one waits for the disk, the other works
SCHEMA = """
CREATE TABLE job (
    seq bigserial PRIMARY KEY, state smallint NOT NULL DEFAULT 0, payload bytea NOT NULL, result bytea
) WITH (fillfactor = 40)
"""
ENQUEUE = "INSERT INTO job (payload) VALUES ($1)"
UNNEST = "INSERT INTO job (payload) SELECT unnest($1::bytea[])"
WORK = """
WITH ended AS (UPDATE job SET state = 2, result = 'null' WHERE seq = ANY ($1::bigint[]))
UPDATE job SET state = 1 WHERE seq = ANY (ARRAY(
    SELECT seq FROM job WHERE seq > $2 AND state = 0 ORDER BY seq LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING seq, payload
"""


class Floor:
    durability = "fsync per enqueue, and per claim and end"
    durable = True

    def __init__(self, path: Path) -> None:
        self.url = url_of(path)

    def enqueue(self, jobs: int) -> Spent:
        return callers.run(self._enqueue(jobs))

    async def _enqueue(self, jobs: int) -> Spent:
        async with self._line(install=True) as line:
            insert = await line.prepare(ENQUEUE)
            watch = Watch()
            for payload in payloads(jobs):
                await insert.fetch(json.dumps(payload).encode())
            return watch.spent()

    def bulk(self, jobs: int) -> Spent:
        return callers.run(self._bulk(jobs))

    async def _bulk(self, jobs: int) -> Spent:
        async with self._line(install=True) as line:
            watch = Watch()
            bodies = (json.dumps(payload).encode() for payload in payloads(jobs))
            while part := list(islice(bodies, ENQUEUES)):
                await self._add(line, part)
            return watch.spent()

    async def _add(self, line: Any, bodies: list[bytes]) -> None:
        await line.execute(UNNEST, bodies)

    def process(self, jobs: int) -> Spent:
        return callers.run(self._process(jobs))

    async def _process(self, jobs: int) -> Spent:
        watch = Watch()
        assert sum(await asyncio.gather(*(self._work() for _ in range(LOOPS)))) == jobs
        return watch.spent()

    async def _work(self) -> int:
        done, last = 0, 0
        ended: list[int] = []
        async with self._line() as line:
            while rows := await line.fetch(WORK, ended, last, CLAIMS):
                for row in rows:
                    noop(**json.loads(row[1]))
                ended = [row[0] for row in rows]
                done, last = done + len(rows), max(ended)
        return done

    @asynccontextmanager
    async def _line(self, *, install: bool = False) -> AsyncIterator[Any]:
        line = await asyncpg.connect(self.url)
        try:
            if install:
                await line.execute(SCHEMA)
            yield line
        finally:
            await line.close()


class Copied(Floor):
    """Only the bulk enqueue is of interest."""

    enqueue = process = None  # type: ignore[assignment]

    async def _add(self, line: Any, bodies: list[bytes]) -> None:
        await line.copy_records_to_table("job", columns=["payload"], records=[(body,) for body in bodies])


def noop(number: int, text: str) -> None:
    pass


if __name__ == "__main__":
    main({"floor": Floor, "floor-copy": Copied})
