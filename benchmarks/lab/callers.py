"""Single enqueues from several callers at once: coroutines of one loop, or threads. And the loop that all peers use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.subject import payloads

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop, which every queue on asyncio is measured with."""
    import uvloop

    return uvloop.run(work)


async def from_coroutines(enqueue: Callable[..., Awaitable[object]], jobs: int, callers: int) -> Spent:
    """Each caller awaits its enqueue before its next one. `enqueue` takes the payload as keywords."""
    waiting = payloads(jobs)

    async def caller() -> None:
        for payload in waiting:
            await enqueue(**payload)

    watch = Watch()
    if callers == 1:
        await caller()
    else:
        await asyncio.gather(*(caller() for _ in range(callers)))
    return watch.spent()


def from_threads(enqueue: Callable[..., object], jobs: int, threads: int) -> Spent:
    """Each thread waits for its enqueue before its next one. `enqueue` takes the payload as keywords."""

    def caller(count: int) -> None:
        for payload in payloads(count):
            enqueue(**payload)

    shares = [jobs // threads + (number < jobs % threads) for number in range(threads)]
    watch = Watch()
    if threads == 1:
        caller(jobs)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(caller, shares))
    return watch.spent()
