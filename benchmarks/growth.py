"""How the cost of claim and settle grows with the number of waiting jobs. It should not.

    python -m benchmarks.growth --store sqlite|memory|redis|postgres [--sizes 1000,10000,100000,1000000]
                                [--groups 100] [--json]

Straight on the store, without a worker: claim 100, settle 100 as completed, then enqueue 100 of the same kind, which
is not timed, so that the depth stays what it is. The crowd is mixed: several tasks and priorities, a fifth in groups,
a fifth scheduled for later.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.lab import postgres_place, redis_place
from benchmarks.lab.child import end_in_order, say
from benchmarks.lab.subject import PLACES, TEXT
from millrace.domain.change import Change
from millrace.domain.job import HOUR, Job, Spec
from millrace.domain.request import Claim, Receipt
from millrace.store.connect import connect
from millrace.store.protocol import Store

SIZES = (1_000, 10_000, 100_000, 1_000_000)
BATCH = 100
CALLS = 40
WARM_UP = 3
FILL = 5_000
LIMIT = 600.0  # seconds of filling; what does not fit is left out, and said
TASKS = ("mail", "thumbnail", "report", "sync")
PRIORITIES = (0, 0, 0, 5, 10)

numbers = count()


def a_spec(groups: int, like: Job | None = None) -> Spec:
    """The next one of the mixed crowd, or one like a job that was just settled."""
    number = next(numbers)
    fields: dict[str, Any] = {"id": f"job-{number:09}", "token": f"{number:x}", "payload": TEXT.encode()}
    if like is not None:
        old = like.spec
        return Spec(**fields, task=old.task, priority=old.priority, group=old.group)
    kind = number % 5
    return Spec(
        **fields,
        task=TASKS[number // 5 % len(TASKS)],
        priority=PRIORITIES[number // 7 % len(PRIORITIES)],
        group=f"group-{number // 5 % groups}" if kind == 1 else None,
        delay=HOUR * (1 + number % 24) if kind == 2 else 0,
    )


async def fill(store: Store, size: int, groups: int, until: float) -> bool:
    """Add `size` jobs; False when the time was up. Those in groups apart: they would slow down a whole call."""
    for start in range(0, size, FILL):
        specs = [a_spec(groups) for _ in range(min(FILL, size - start))]
        for grouped in (False, True):
            if part := [spec for spec in specs if (spec.group is not None) == grouped]:
                await store.enqueue(part)
        if perf_counter() > until:
            return False
    return True


async def turn(store: Store, groups: int) -> tuple[float, float]:
    """Milliseconds of one claim and of one settle, with the depth put back."""
    began = perf_counter()
    jobs = await store.claim(Claim(("default",), "growth", BATCH))
    claimed = perf_counter()
    receipts = await store.settle([(job.lease, Change.completed()) for job in jobs])
    settled = perf_counter()
    assert len(jobs) == BATCH and set(receipts) == {Receipt.OK}
    await store.enqueue([a_spec(groups, job) for job in jobs])
    return 1_000 * (claimed - began), 1_000 * (settled - claimed)


@contextmanager
def a_place(store: str) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
    """The URL of an empty store, and what waits until its server has digested what it got."""

    async def nothing() -> None:
        pass

    match store:
        case "redis":
            with redis_place.a_server() as fresh:
                fresh()
                yield redis_place.url_of(Path(PLACES[0])), nothing
        case "postgres":
            with postgres_place.a_server() as fresh:
                fresh()
                url = postgres_place.url_of(Path(PLACES[0]))
                yield url, lambda: postgres_place.quiet(url)
        case "sqlite":
            with TemporaryDirectory(prefix="millrace-bench-") as place:
                yield f"sqlite:///{place}/jobs.db", nothing
        case _:
            yield "memory://", nothing


async def grow(
    url: str, sizes: Sequence[int], groups: int, quiet: Callable[[], Awaitable[None]]
) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    store = connect(url)
    await store.connect()
    until, depth = perf_counter() + LIMIT, 0
    for size in sizes:
        began = perf_counter()
        if not await fill(store, size - depth, groups, until):
            say(f"{size:,} jobs: left out, filling took longer than {LIMIT:g} s")
            break
        depth = size
        say(f"{size:,} jobs wait; filled in {perf_counter() - began:.1f} s")
        gc.collect()
        gc.freeze()  # the crowd itself is no garbage; without this a collection that walks it lands in the figures
        await quiet()
        os.sync()  # nor is the disk to be busy with what filling has left: settles would wait for that too
        turns = [await turn(store, groups) for _ in range(WARM_UP + CALLS)][WARM_UP:]
        claim, settle, both = (median(times) for times in (*zip(*turns, strict=True), [sum(one) for one in turns]))
        found.append({"jobs": size, "claim": claim, "settle": settle, "ms": both, "factor": 1.0})
        found[-1]["factor"] = both / found[0]["ms"]
    await store.close()
    return found


def table(found: Sequence[dict[str, float]]) -> str:
    lines = [f"{'waiting':>12}  {'claim ms':>9}  {'settle ms':>9}  {'both ms':>9}  {'factor':>7}"]
    for one in found:
        figures = f"{one['claim']:9.2f}  {one['settle']:9.2f}  {one['ms']:9.2f}  {one['factor']:7.2f}"
        lines.append(f"{one['jobs']:12,.0f}  {figures}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of claim(100) and settle(100), by number of waiting jobs.")
    parser.add_argument("--store", choices=["sqlite", "memory", "redis", "postgres"], default="sqlite")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of waiting jobs, by commas")
    parser.add_argument("--groups", type=int, default=100, help="number of groups, which a fifth of the jobs share")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    asked = parser.parse_args()
    sizes = sorted({int(size) for size in asked.sizes.split(",")})
    end_in_order()
    with a_place(asked.store) as (url, quiet):
        found = asyncio.run(grow(url, sizes, asked.groups, quiet))
    print(json.dumps({"store": asked.store, "sizes": found}, indent=2) if asked.json else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
