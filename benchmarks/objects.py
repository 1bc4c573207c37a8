"""The object store, measured: on a bucket of its own test server, on a directory, or on any URL.

python -m benchmarks.objects [--on ministack|directory|directory-relaxed|URL] [--jobs 1000] [--json]
python -m benchmarks.objects --only process,claims,growth,race,idle

bulk      jobs enqueued per second, 500 a call
process   jobs per second by one worker process, 10 slots and a no-op handler; requests per job, and what a claim takes
          then: ten jobs each time, beside the settling of ten
claims    milliseconds of a claim: p50 and p99 of 1,000, by a worker of 10 slots whose handlers take 50 to 200 ms
growth    milliseconds and requests of a claim of 10 with ever more jobs waiting
race      16 workers for the same jobs: swaps that were lost to others, per job
idle      requests per second of a worker that has had nothing to do for a minute
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, cast

from millrace import App
from millrace.domain.change import Change
from millrace.domain.job import Job, Spec
from millrace.domain.request import Claim
from millrace.store.connect import connect
from millrace.store.object.store import ObjectStore

PARTS = ("bulk", "process", "claims", "growth", "race", "idle")
SIZES = (1_000, 10_000, 100_000)
RACERS = 16
CLAIMS = 1_000
SETTLED_DOWN = 60.0  # seconds after which an idle worker is looked at
LOOK = 20.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def somewhere(name: str) -> Iterator[str]:
    """The URL of an empty store."""
    if name == "ministack":
        from tests.servers.ministack import running_ministack

        with TemporaryDirectory() as folder, running_ministack(Path(folder)) as server:
            os.environ.update(AWS_ACCESS_KEY_ID=server.access_key, AWS_SECRET_ACCESS_KEY=server.secret_key)
            from millrace.store.object.s3 import BucketAddress, S3Blobs

            url = f"s3://bench/{uuid.uuid4().hex}?endpoint={server.endpoint}"
            S3Blobs(BucketAddress.parse(url)).admin.setup()
            yield url
    elif name.startswith("directory"):
        with TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
            yield f"file://{folder}/store" + ("?durability=relaxed" if name.endswith("relaxed") else "")
    else:
        yield name


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[ObjectStore]:
    store = cast("ObjectStore", connect(url))
    await store.connect()
    try:
        yield store
    finally:
        await store.close()


def specs(count: int) -> list[Spec]:
    return [Spec(str(uuid.uuid4()), "noop", payload=b"{}", token=uuid.uuid4().hex) for _ in range(count)]


async def fill(store: ObjectStore, count: int) -> float:
    """Jobs per second."""
    began = time.perf_counter()
    for start in range(0, count, 500):
        await store.enqueue(specs(min(500, count - start)))
    return count / (time.perf_counter() - began)


def since(store: ObjectStore, before: Counter[str]) -> Counter[str]:
    return Counter({kind: count - before[kind] for kind, count in store.blobs.requests.items()})


def shown(requests: Counter[str], per: float) -> dict[str, float]:
    return {kind: round(count / per, 2) for kind, count in sorted(requests.items()) if round(count / per, 2)}


class Timed:
    """How long each claim that found something took."""

    def __init__(self, store: ObjectStore) -> None:
        self.took: list[float] = []
        self.enough = asyncio.Event()  # as many as percentiles need
        self._claim = store.claim
        store.claim = self.claim  # type: ignore[method-assign]

    async def claim(self, request: Claim) -> list[Job]:
        began = time.perf_counter()
        jobs = await self._claim(request)
        if jobs:
            self.took.append((time.perf_counter() - began) * 1000)
        if len(self.took) >= CLAIMS:
            self.enough.set()
        return jobs

    def percentile(self, share: float) -> float:
        ordered = sorted(self.took)
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) if ordered else 0.0


async def noop() -> None: ...


async def a_while() -> None:
    await asyncio.sleep(random.uniform(0.05, 0.2))


async def process(url: str, jobs: int, slots: int) -> dict[str, Any]:
    """One worker works off what is there."""
    app = App(url)
    app.task(name="noop")(noop)
    async with app:
        store = cast("ObjectStore", await app.connected())
        bulk = await fill(store, jobs)
        before = Counter(store.blobs.requests)
        timed = Timed(store)
        began = time.perf_counter()
        await app.worker(slots=slots, burst=True, name="bench").run()
        rate = jobs / (time.perf_counter() - began)
        return {
            "bulk": round(bulk),
            "process": round(rate),
            "requests per job": shown(since(store, before), jobs),
            "claim p50 ms": timed.percentile(0.5),
            "claim p99 ms": timed.percentile(0.99),
        }


async def claims(url: str, slots: int) -> dict[str, Any]:
    """Claims as they come when jobs take a while: as many jobs as slots have become free."""
    app = App(url)
    app.task(name="noop")(a_while)
    async with app:
        store = cast("ObjectStore", await app.connected())
        await fill(store, 4 * CLAIMS)
        timed = Timed(store)
        async with app.worker(slots=slots, name="bench"), asyncio.timeout(600):
            await timed.enough.wait()
    return {"claims": len(timed.took), "p50 ms": timed.percentile(0.5), "p99 ms": timed.percentile(0.99)}


async def growth(url: str, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with opened(url) as store:
        waiting = 0
        for size in sizes:
            await fill(store, size - waiting)
            waiting = size
            took: list[float] = []
            before = Counter(store.blobs.requests)
            for _ in range(30):
                store.engine.ready.forget()  # every claim lists: the dearest way
                began = time.perf_counter()
                jobs = await store.claim(Claim(("default",), "bench", 10))
                took.append((time.perf_counter() - began) * 1000)
                await store.settle([(job.lease, Change.release()) for job in jobs])
            listed = since(store, before)["list"] / 30
            rows.append({"waiting": size, "claim ms": round(median(took), 1), "listings per claim": round(listed, 1)})
            say(f"  {size} waiting: {rows[-1]['claim ms']} ms, {listed:.1f} listings")
    return rows


async def race(url: str, jobs: int) -> dict[str, Any]:
    """Racers that each have a connection of their own, as processes would."""
    async with opened(url) as first:
        await fill(first, jobs)
        racers = [cast("ObjectStore", connect(url)) for _ in range(RACERS)]
        for racer in racers:
            await racer.connect()
        runs: Counter[str] = Counter()

        async def work(store: ObjectStore, name: str) -> None:
            idle = 0
            while idle < 3:
                taken = await store.claim(Claim(("default",), name, 10))
                idle = 0 if taken else idle + 1
                runs.update(job.id for job in taken)
                await store.settle([(job.lease, Change.completed()) for job in taken])

        began = time.perf_counter()
        await asyncio.gather(*(work(store, f"w{n}") for n, store in enumerate(racers)))
        took = time.perf_counter() - began
        lost = sum(racer.engine.tally["lost"] for racer in racers)
        for racer in racers:
            await racer.close()
    assert len(runs) == jobs, f"{len(runs)} of {jobs} jobs ran"
    assert max(runs.values()) == 1, "a job ran twice"
    return {"workers": RACERS, "jobs/s": round(jobs / took), "lost swaps per job": round(lost / jobs, 2)}


async def idle(url: str) -> dict[str, Any]:
    app = App(url)
    app.task(name="noop")(noop)
    async with app:
        store = cast("ObjectStore", await app.connected())
        worker = asyncio.create_task(app.worker(name="bench").run())
        await asyncio.sleep(SETTLED_DOWN)
        before, began = Counter(store.blobs.requests), time.perf_counter()
        await asyncio.sleep(LOOK)
        spent = since(store, before)
        seconds = time.perf_counter() - began
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        return {"requests/s": round(spent.total() / seconds, 2), "by kind": shown(spent, seconds)}


async def measure(place: str, parts: set[str], jobs: int, slots: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"on": place.partition("?")[0], "jobs": jobs, "slots": slots, "load": os.getloadavg()[0]}
    if parts & {"bulk", "process"}:
        say(f"one worker works off {jobs} jobs")
        with somewhere(place) as url:
            found |= await process(url, jobs, slots)
    if "claims" in parts:
        say(f"{CLAIMS} claims of a worker whose jobs take a while")
        with somewhere(place) as url:
            found["claims"] = await claims(url, slots)
    if "growth" in parts:
        say("claims among ever more jobs")
        with somewhere(place) as url:
            found["growth"] = await growth(url, sizes)
    if "race" in parts:
        say(f"{RACERS} workers race")
        with somewhere(place) as url:
            found["race"] = await race(url, jobs)
    if "idle" in parts:
        say(f"an idle worker, for {SETTLED_DOWN + LOOK:g} s")
        with somewhere(place) as url:
            found["idle"] = await idle(url)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--on", default="ministack", help="ministack, directory, directory-relaxed, or a URL")
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--only", default=",".join(PARTS), help=", ".join(PARTS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts = set(options.only.split(","))
    unknown = parts - set(PARTS)
    if unknown:
        parser.error(f"there is no part {unknown.pop()!r}; there are {', '.join(PARTS)}")
    sizes = tuple(map(int, options.sizes.split(",")))
    found = asyncio.run(measure(options.on, parts, options.jobs, options.slots, sizes))
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
