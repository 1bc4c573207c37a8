"""Moves jobs in all states from store to store with `millrace move`, kills the mover in each leg, and compares.

python -m proof.programs.moving --jobs 100000 sqlite:///a.db postgresql://… redis://… file:///tmp/jobs sqlite:///b.db
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise, zip_longest
from typing import Any

import msgspec

from millrace.domain.change import Change
from millrace.domain.export import ExportedHold, comparable, identity
from millrace.domain.job import Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim
from millrace.domain.retry import RetryPolicy
from millrace.store.connect import connect
from millrace.store.protocol import Store
from millrace.store.transfer import closed, total

CHUNK = 1_000
HOUR = 3_600_000
_BROKEN = Failure("RuntimeError", "it broke", "Traceback …")


class Leg(msgspec.Struct):
    """One move: the schemes of its stores, the seconds of the last, complete run, and how far killed runs came."""

    source: str
    target: str
    records: int = 0
    seconds: float = 0.0
    kills: int = 0

    def __str__(self) -> str:
        rate = self.records / self.seconds if self.seconds else 0
        return f"{self.source} -> {self.target}: {self.records:,} jobs in {self.seconds:.1f} s, {rate:,.0f} jobs/s"


# ── jobs in all states ────────────────────────────────────────────────────────────────────────────


async def fill(store: Store, jobs: int) -> None:
    """Enqueue this many jobs of all kinds, and run, retry, bury, cancel, delete and replay some of them."""
    await store.control("queue", "pool", {"lanes": 8, "paused_lanes": (7,)})
    await store.control("queue", "paused", {"paused": True})
    await store.control("queue", "rest", {"keep_dead": None, "dead_cap": None, "max_running": 10_000})
    await store.control("task", "work", {"max_running": 1_000_000})
    for first in range(0, jobs, CHUNK):
        specs = [_spec(number) for number in range(first, min(jobs, first + CHUNK))]
        await store.enqueue(specs)
        await _run_some(store, len(specs) // 2)


def _spec(number: int) -> Spec:
    kind = number % 20
    facts: dict[str, Any] = {"queue": "rest" if number % 3 else "main", "priority": number % 4}
    if kind in (1, 2):
        facts |= {"group": f"group-{number % 997}", "queue": "grouped"}
    elif kind == 3:
        facts |= {"delay": HOUR, "expires": 2 * HOUR}
    elif kind in (4, 5):
        facts |= {"queue": "pool", "group": f"customer-{number % 101}", "priority": 0}
    elif kind == 6:
        facts |= {"after": (f"job-{number - 1}", f"job-{number - 3}")}
    elif kind == 7:
        facts |= {"after": (f"job-{number - 1}",), "on_dependency": "wait"}
    elif kind == 8:
        scope = ("live", "window", "retained")[number % 3]
        facts |= {"key": f"key-{number}", "scope": scope, "window": HOUR if scope == "window" else 0}
    elif kind == 9:
        facts |= {"queue": "paused"}
    elif kind == 10:
        facts |= {"headers": {"trace": str(number)}, "payload": b"\xff\x00", "serde": "pickle"}
    return Spec(
        id=f"job-{number}",
        task="work" if number % 5 else "other",
        token=f"token-{number}",
        retry=RetryPolicy(initial=HOUR, maximum=HOUR),
        **{"payload": msgspec.json.encode({"number": number}), **facts},
    )


async def _run_some(store: Store, count: int) -> None:
    jobs = await store.claim(Claim(("main", "rest", "grouped", "pool"), "filler", count))
    endings = (
        Change.completed(b'{"sum":3}'),
        Change.completed(),
        Change.bury(_BROKEN, "explicit_fail"),
        Change.retry(_BROKEN, delay=HOUR),
        Change.snooze(HOUR),
        Change.completed(b"[1,2,3]"),
        Change.cancel(),
        Change.release(),
    )
    await store.settle([(job.lease, endings[job.seq % len(endings)]) for job in jobs])
    ids = [job.id for job in jobs]
    await store.archive(ids[2::40])
    await store.delete(ids[5::25])
    await store.replay(ids[6::40])


# ── moving and comparing ──────────────────────────────────────────────────────────────────────────


Digest = tuple[tuple[str, ...], bytes]  # what identifies a record, and a hash of all its fields except seqs


async def digest(store: Store) -> list[Digest]:
    """Return a digest of each record of a store. The order of keys is not defined."""
    found: list[Digest] = []
    holds: list[Digest] = []
    cursor: str | None = None
    while True:
        page = await store.export(cursor, CHUNK)
        for record in page.records:
            one = identity(record), blake2b(repr(comparable(record)).encode("utf-8", "surrogatepass"), digest_size=16)
            (holds if isinstance(record, ExportedHold) else found).append((one[0], one[1].digest()))
        if page.cursor is None:
            return [*found, *sorted(holds)]
        cursor = page.cursor


def mover(source: str, target: str, batch: int) -> subprocess.Popen[bytes]:
    """Start `millrace move`."""
    command = [
        sys.executable,
        "-m",
        "millrace",
        "move",
        "--from",
        source,
        "--to",
        target,
        "--batch",
        str(batch),
        "--json",
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


async def run_leg(source: str, target: str, *, batch: int, chance: random.Random, kills: int) -> Leg:
    """Move, killed `kills` times while records are being copied or compared, and then to the end."""
    leg = Leg(source.partition(":")[0], target.partition(":")[0])
    for _ in range(kills):
        with mover(source, target, batch) as process:
            leg.kills += await _kill(process, target, chance)
    begun = time.monotonic()
    with mover(source, target, batch) as process:
        output, _ = await asyncio.to_thread(process.communicate)
    leg.seconds = time.monotonic() - begun
    assert process.returncode == 0, f"millrace move ended with {process.returncode}"
    leg.records = msgspec.json.decode(output)["jobs"]
    return leg


async def _kill(process: subprocess.Popen[bytes], target: str, chance: random.Random) -> bool:
    """Kill the mover after a random number of pages. Return False if it ended before."""
    pages, seen = chance.randint(0, 6), set[str | None]()
    store: Store | None = None
    try:
        while process.poll() is None and len(seen) <= pages:
            if store is None:
                store = await _opened(target)
            why = None if store is None else await closed(store)
            if why is not None:
                seen.add(f"{why.stage} {why.cursor}")
            await asyncio.sleep(chance.random() * 0.02)
        if process.poll() is not None:
            return False
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return True
    finally:
        if store is not None:
            await store.close()


async def _opened(url: str) -> Store | None:
    """Open a store that the mover may be about to create."""
    path = url.partition("://")[2][1:]
    if url.startswith("sqlite:") and not os.path.exists(path):
        await asyncio.sleep(0.01)
        return None
    store = connect(url)
    await store.connect()
    return store


async def run(urls: Sequence[str], jobs: int, *, batch: int = 500, seed: int = 1, kills: int = 1) -> list[Leg]:
    """Fill the first store, move through all stores, and compare the last with the first after each leg."""
    chance = random.Random(seed)
    first = connect(urls[0])
    await first.connect()
    try:
        await fill(first, jobs)
        for name in ("main", "rest", "grouped", "pool"):
            assert sum(counts.running for counts in await first.count()) == 0, name
        wanted = await digest(first)
        counts = {row.queue: total(row) for row in await first.count()}
    finally:
        await first.close()
    legs = []
    for source, target in pairwise(urls):
        legs.append(await run_leg(source, target, batch=batch, chance=chance, kills=kills))
        print(legs[-1], flush=True)
        store = connect(target)
        await store.connect()
        try:
            assert {row.queue: total(row) for row in await store.count()} == counts
            found = await digest(store)
            different = next(((one, other) for one, other in zip_longest(wanted, found) if one != other), None)
            assert different is None, f"{legs[-1]} differs: {different}"
        finally:
            await store.close()
    return legs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("urls", nargs="*")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        urls = options.urls or [f"sqlite:///{folder}/a.db", f"sqlite:///{folder}/b.db"]
        asyncio.run(run(urls, options.jobs, batch=options.batch, seed=options.seed, kills=options.kills))


if __name__ == "__main__":
    main()
