"""What docs/spark-upkeep.md says that upkeep costs is what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from millrace.domain.change import Change
from millrace.spark.upkeep import swept_in_shares
from millrace.testing.builders import a_claim, a_spec
from millrace.testing.clock import VirtualClock
from tests.object.archiving import compact, here, in_memory, rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark-upkeep.md"
KINDS = ("get", "put", "list", "delete")


async def test_the_documented_costs_are_those_that_are_counted():
    clock = VirtualClock()
    store, blobs = in_memory(clock)
    await store.connect()
    for part in range(10):
        await store.enqueue([a_spec(id=f"j{part}-{number}", keep_result=0) for number in range(100)])
        jobs = await store.claim(a_claim(100))
        await store.settle([(job.lease, Change.completed(b"1")) for job in jobs])
        await store.archive([job.id for job in jobs])
        clock.advance(1)
    clock.advance(60)
    await store.sweep(full=True)
    lines: list[str] = []

    async def cost(name: str, act: Callable[[], Awaitable[object]]) -> None:
        before = Counter(blobs.requests)
        await act()
        counted = Counter(blobs.requests) - before
        lines.append(f"| {name} | " + " | ".join(f"{counted[kind]:,}" for kind in KINDS) + " |")

    await cost("sweep, 1 share", lambda: swept_in_shares(store, here(store), 1))
    await cost("sweep, 16 shares", lambda: swept_in_shares(store, here(store), 16))
    await cost("compact-archive", lambda: compact(store))
    await cost("read the compacted jobs", lambda: rows(store, compacted="only"))

    written = PAGE.read_text(encoding="utf-8").partition("## What it costs")[2]
    stated = [line for line in written.splitlines() if line.startswith("|")][2:]
    assert stated == lines, f"put this into {PAGE.name}:\n" + "\n".join(lines)
