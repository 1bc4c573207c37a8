"""Drain on a cluster of processes and kill an executor in the middle. A program of its own: it starts a JVM and kills
others, which no other test should share.

Executors are JVMs with Python processes under them. The one that is killed goes with all of these, by SIGKILL.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millrace.spark.open import opened
from millrace.spark.session import QUICK, session
from tests.spark.processes import below, executors, kill_together, stop_together
from tests.spark.programs.drain_shop import app, ship

JOBS = 240
PARKED = 200  # written to another queue, and read again, by the executors
SECONDS = 0.1
LEASE = 4
SLOTS = 4
ENOUGH = 60  # runs before the kill


def ran(ledger: Path) -> list[tuple[int, int]]:
    """Job number and process of each run."""
    return [(int(one), int(two)) for one, two in (line.split() for line in ledger.read_text().splitlines())]


def kill_one(ledger: Path) -> dict[str, Any]:
    """One executor that has run jobs, with all its processes."""
    workers = {pid for _, pid in ran(ledger)}
    victim = next(pid for pid in executors(os.getpid()) if workers & set(below(pid)))
    doomed = [victim, *below(victim)]
    stop_together(doomed)
    before = ran(ledger)
    kill_together(doomed)
    return {"killed": [pid for pid in doomed if pid in workers], "ran_before": len(before)}


def park(spark: SparkSession, url: str) -> None:
    """Rows as jobs, by tasks on all executors; the second time, every row is in already."""
    rows = spark.range(0, PARKED, 1, 4).selectExpr("id as number")
    for _ in range(2):
        write = rows.write.format("millrace").mode("append").options(url=url, queue="parked", idColumns="number")
        write.options(app="tests.spark.programs.drain_shop:app", task="refuse").save()


def table(spark: SparkSession, url: str, name: str) -> DataFrame:
    return spark.read.format("millrace").options(url=url, table=name, partitions=4).load()


def main(folder: Path) -> None:
    ledger = folder / "ledger"
    ledger.touch()
    url = f"sqlite:///{folder}/jobs.db?durability=relaxed"
    with opened(url) as store:
        specs = [ship.options(retry=["100ms"]).spec(n, str(ledger), SECONDS) for n in range(JOBS)]
        store.run(store.store.enqueue(specs))
    spark = session(
        "millrace-drain-cluster",
        "local-cluster[2,1,1024]",
        java_options=QUICK,
        settings={"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": QUICK},
    )
    try:
        park(spark, url)
        drain = app.on_spark(spark, url=url, queues="orders", partitions=2, slots=SLOTS, lease=LEASE)
        end = time.monotonic() + 60
        while len({pid for _, pid in ran(ledger)}) < 2 or len(ran(ledger)) < ENOUGH:
            assert time.monotonic() < end and not drain.done, "both executors should have begun"
            time.sleep(0.01)
        said = kill_one(ledger)
        outcome = drain.wait(90)
        found = table(spark, url, "jobs").groupBy("queue", "state").count().collect()
        events = table(spark, url, "events").where("queue = 'parked'").select("seq", "n").distinct().count()
    finally:
        spark.stop()
    runs = Counter(number for number, _ in ran(ledger))
    first: dict[int, int] = {}
    for number, pid in ran(ledger):
        first.setdefault(number, pid)
    said |= {
        "ran": len(runs),
        "states": {row.state: row["count"] for row in found if row.queue == "orders"},
        "parked": {row.state: row["count"] for row in found if row.queue == "parked"},
        "parked_events": events,
        "again": {number: first[number] for number, times in runs.items() if times > 1},
        "most_runs": max(runs.values()),
        "attempts": sorted(worker.attempt for worker in outcome.workers),
        "completed": outcome.completed,
        "seconds": round(outcome.seconds, 1),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
