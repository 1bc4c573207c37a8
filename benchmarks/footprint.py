"""The disk and memory that a job takes in each store, while it waits and after it has completed.

    python -m benchmarks.footprint --store sqlite|memory|directory|redis|postgres [--jobs 100000] [--bytes 100] [--json]

Straight on the store, without a worker: enqueue all jobs, measure, claim and settle all of them, measure again. A
completed job is kept with its payload and three events until its retention ends. Kinds of space:

    sqlite, postgres, directory    bytes on disk; a directory also has a number of files
    redis, memory                  bytes of memory, of the server or of the process
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.lab.child import end_in_order, say
from benchmarks.lab.new_store import new_stores
from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.request import Claim, Receipt
from millrace.store.connect import connect

Measure = Callable[[], Awaitable[dict[str, int]]]
BATCH = 1_000
PAGE = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def a_place(kind: str) -> Iterator[tuple[str, Measure]]:
    """The URL of an empty store, and what measures it."""
    match kind:
        case "memory":
            yield "memory://", process_memory
        case "directory":
            with TemporaryDirectory(prefix="millrace-bench-") as folder:
                yield f"file://{folder}/jobs?durability=relaxed", files_below(Path(folder))
        case "sqlite":
            with new_stores(kind) as new:
                url = new()
                yield url, files_below(Path(url.removeprefix("sqlite:///")).parent)
        case _:
            with new_stores(kind) as new:
                url = new()
                yield url, redis_memory(url) if kind == "redis" else postgres_size(url)


def files_below(folder: Path) -> Measure:
    async def measure() -> dict[str, int]:
        found = [os.stat(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names]
        return {"bytes": sum(one.st_blocks * 512 for one in found), "files": len(found)}

    return measure


async def process_memory() -> dict[str, int]:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: ASYNC230 - not a file on a disk
        return {"bytes": int(file.read().split()[1]) * PAGE}


def redis_memory(url: str) -> Measure:
    async def measure() -> dict[str, int]:
        from redis.asyncio import Redis

        async with Redis.from_url(url) as client:
            return {"bytes": int((await client.info("memory"))["used_memory"])}

    return measure


def postgres_size(url: str) -> Measure:
    async def measure() -> dict[str, int]:
        import asyncpg

        connection = await asyncpg.connect(url)
        try:
            return {"bytes": await connection.fetchval("SELECT pg_database_size(current_database())")}
        finally:
            await connection.close()

    return measure


async def footprint(url: str, measure: Measure, jobs: int, size: int) -> dict[str, Any]:
    """Per job, when all wait and when all have completed; and what is measured of an empty store."""
    payload = json.dumps("x" * (size - 2)).encode()
    store = connect(url)
    await store.connect()
    empty = await measure()
    for start in range(0, jobs, BATCH):
        specs = [
            Spec(id=f"job-{n:09}", token=f"{n:x}", task="mail", payload=payload) for n in range(start, start + BATCH)
        ]
        await store.enqueue(specs)
    say(f"{jobs:,} jobs wait")
    waiting = await measure()
    while claimed := await store.claim(Claim(("default",), "footprint", BATCH)):
        receipts = await store.settle([(job.lease, Change.completed()) for job in claimed])
        assert set(receipts) == {Receipt.OK}
    completed = await measure()
    await store.close()
    of_files = await measure()  # SQLite checkpoints its log when it is closed
    completed = of_files if "files" in of_files else completed
    return {
        "empty": empty,
        "waiting": {name: round((waiting[name] - empty[name]) / jobs, 1) for name in empty},
        "completed": {name: round((completed[name] - empty[name]) / jobs, 1) for name in empty},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Disk and memory per job, waiting and completed.")
    parser.add_argument("--store", choices=["sqlite", "memory", "directory", "redis", "postgres"], default="sqlite")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=100, help="size of each payload")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args()
    end_in_order()
    with a_place(asked.store) as (url, measure):
        found = asyncio.run(footprint(url, measure, asked.jobs, asked.bytes))
    if asked.json:
        print(json.dumps({"store": asked.store, "jobs": asked.jobs, **found}, indent=2))
        return 0
    for state in ("waiting", "completed"):
        print(f"{state:>10}  " + "  ".join(f"{value:10,.1f} {name} per job" for name, value in found[state].items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
