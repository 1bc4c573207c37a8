"""What each operation of the object store costs in requests: counted, not timed, so any machine says the same.

Run: python -m benchmarks.requests [--json]

Over the driver in memory, which counts as a bucket would: a read, a write and a listing are a request each, and a
deletion of up to 1,000 keys is one. The feed and the index are part of what is counted; the clock is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable

from millrace.domain.change import Change
from millrace.domain.job import Job
from millrace.domain.request import Claim, Extension, Query, Reclaim
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.testing.builders import a_spec

# What is done at intervals is left out, and no listing is used twice: a claim at its dearest.
OPTIONS = ObjectOptions(feed_delay=0, listing_reuse=0, look_every=3_600_000, index_mode="index-only")
KINDS = ("get", "put", "list", "delete")
LATER = 86_400.0


class Tally:
    """One row for each operation that was measured."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.rows: dict[str, Counter[str]] = {}

    async def cost(self, name: str, act: Callable[[], Awaitable[object]]) -> None:
        before = Counter(self._store.blobs.requests)
        await act()
        self.rows[name] = Counter(self._store.blobs.requests) - before


async def a_pair(max_running: int | None = None) -> tuple[ObjectStore, ObjectStore]:
    """A producer and a worker, each as in a process of its own, with one job behind them: nothing is the first time."""
    driver = MemoryBlobs()
    producer, worker = (ObjectStore(lambda: driver, options=OPTIONS, place=place) for place in ("producer", "worker"))
    await producer.connect()
    await worker.connect()
    if max_running is not None:
        await producer.control("queue", "default", {"max_running": max_running})
    await producer.enqueue([a_spec()])
    for job in await worker.claim(claim(1)):
        await worker.settle([(job.lease, Change.completed())])
    return producer, worker


def claim(limit: int) -> Claim:
    return Claim(("default",), "worker", limit)


async def without_options(rows: dict[str, Counter[str]]) -> None:
    producer, store = await a_pair()
    tally = Tally(store)
    await tally.cost("enqueue 1", lambda: producer.enqueue([a_spec(id="one")]))
    await tally.cost("enqueue 100, in one call", lambda: producer.enqueue([a_spec() for _ in range(100)]))
    jobs: list[Job] = []

    async def take() -> None:
        jobs.extend(await store.claim(claim(10)))

    await tally.cost("claim 10", take)
    await tally.cost("extend 10", lambda: store.extend([Extension(job.lease, 30_000) for job in jobs]))
    await tally.cost("settle 10", lambda: store.settle([(job.lease, Change.completed(b"1")) for job in jobs]))
    await tally.cost("get 1", lambda: store.get(["one"]))
    await tally.cost("find 50 of 102", lambda: store.find(Query(limit=50)))
    await tally.cost("count", store.count)
    await tally.cost("history of 1", lambda: store.history("one"))
    await tally.cost("events, a page of 100", lambda: store.events(None, 100))
    rows |= tally.rows


async def idle(rows: dict[str, Counter[str]]) -> None:
    _, store = await a_pair()
    tally = Tally(store)
    await store.claim(claim(10))
    await tally.cost("claim, nothing ready", lambda: store.claim(claim(10)))
    await tally.cost("wait, nothing comes", lambda: store.wait(("default",), None, 0.01))
    await tally.cost("reclaim, nothing lost", lambda: store.reclaim(Reclaim("worker", 100, 30_000)))
    await tally.cost("maintain, nothing due", store.maintain)
    rows |= tally.rows


async def with_more(
    rows: dict[str, Counter[str]], name: str, max_running: int | None = None, /, **spec: object
) -> None:
    """One job after the other, each with its feature: enqueue, claim, settle."""
    producer, store = await a_pair(max_running)
    tally = Tally(store)
    if spec.pop("parent", False):
        await producer.enqueue([a_spec(id="parent", delay=LATER)])
        spec["after"] = ("parent",)
    await tally.cost(f"enqueue 1, {name}", lambda: producer.enqueue([a_spec(id="one", **spec)]))
    if "after" in spec:
        rows |= tally.rows
        return
    jobs: list[Job] = []

    async def take() -> None:
        jobs.extend(await store.claim(claim(1)))

    await tally.cost(f"claim 1, {name}", take)
    await tally.cost(f"settle 1, {name}", lambda: store.settle([(jobs[0].lease, Change.completed())]))
    rows |= tally.rows


async def measured() -> dict[str, Counter[str]]:
    rows: dict[str, Counter[str]] = {}
    await without_options(rows)
    await with_more(rows, "without options")
    await with_more(rows, "with a group", group="g")
    await with_more(rows, "with a key", key="k")
    await with_more(rows, "after a parent", parent=True)
    await with_more(rows, "with max_running", 100)
    await idle(rows)
    return rows


def table(rows: dict[str, Counter[str]]) -> str:
    """As it stands in docs/stores.md."""
    lines = [f"| operation | {' | '.join(KINDS)} | requests |", "|---|---|---|---|---|---|"]
    for name, counted in rows.items():
        cells = " | ".join(str(counted[kind]) for kind in KINDS)
        lines.append(f"| {name} | {cells} | {sum(counted[kind] for kind in KINDS)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    rows = asyncio.run(measured())
    if parser.parse_args().json:
        print(json.dumps({name: dict(counted) for name, counted in rows.items()}))
        return
    print(table(rows))


if __name__ == "__main__":
    main()
