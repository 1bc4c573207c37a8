"""How fast Spark reads the feed of a store: every column of every event, on two cores.

    python -m benchmarks.spark_read                     1,000,000 events of a SQLite store
    python -m benchmarks.spark_read --store postgres    the same on a server of its own
    python -m benchmarks.spark_read --events 100000 --repeat 5 --json

The feed is made by enqueueing, claiming and settling jobs in batches, as bulk producers and workers do. Besides the
time, the CPU time of all processes is measured: on a machine with other work it is the steadier figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lab.new_store import KINDS, new_stores
from millrace.domain.change import Change
from millrace.domain.job import Spec
from millrace.domain.request import Claim
from millrace.store.connect import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 1_000


async def make_feed(url: str, events: int, first: int = 0) -> int:
    """Three events for each job; answers how many there are. The jobs are numbered from a third of `first` on."""
    store = connect(url)
    await store.connect()
    try:
        begin, end = first // 3, (first + events) // 3
        for number in range(begin, end, BATCH):
            ids = range(number, min(number + BATCH, end))
            await store.enqueue([Spec(f"{number:032x}", "send_email", "mail", b'{"to": "ada"}') for number in ids])
            jobs = await store.claim(Claim(("mail",), "worker-1", limit=BATCH))
            await store.settle([(job.lease, Change.completed(b"null", duration=12)) for job in jobs])
        return sum(span.count for span in await store.event_spans(None, 1))
    finally:
        await store.close()


def processes_cpu() -> float:
    """CPU seconds of this process, the JVM, its Python workers, and the server if it was started here."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    ours = descendants(os.getpid())
    for pid in ours:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15]) / ticks  # of the process, and of its ended children
    return total


def descendants(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def read_once(spark: SparkSession, frame: DataFrame) -> tuple[float, float]:
    began, cpu = time.perf_counter(), processes_cpu()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began, processes_cpu() - cpu


def measure(kind: str, events: int, repeat: int, master: str) -> dict[str, Any]:
    from millrace.spark.session import session

    with new_stores(kind, "?durability=relaxed" if kind == "sqlite" else "") as new_store:
        url = new_store()
        made = asyncio.run(make_feed(url, events))
        spark = session("millrace-bench", master)
        try:
            frame = spark.read.format("millrace").options(url=url, table="events").load()
            assert frame.count() == made
            runs = [read_once(spark, frame) for _ in range(repeat)]
        finally:
            spark.stop()
    best = min(runs)
    return {
        "store": kind,
        "events": made,
        "master": master,
        "rows_per_second": round(made / best[0]),
        "seconds": [round(seconds, 2) for seconds, _ in runs],
        "cpu_us_per_row": round(min(cpu for _, cpu in runs) / made * 1e6, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Read a store's events with Spark.")
    parser.add_argument("--store", choices=KINDS, default="sqlite")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.store, given.events, given.repeat, given.master)
    if given.json:
        print(json.dumps(found))
        return
    print(f"{found['events']:,} events of {found['store']} read on {found['master']}, best of {given.repeat}:")
    print(f"  {found['rows_per_second']:>10,} rows/s")
    print(f"  {found['cpu_us_per_row']:>10} µs of CPU per row, all processes")
    print(f"  runs: {found['seconds']} s; load {found['load']}")


if __name__ == "__main__":
    main()
