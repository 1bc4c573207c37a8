"""How fast Spark enqueues the rows of a DataFrame into a store, on two cores.

    python -m benchmarks.spark_write                    200,000 jobs into SQLite, by one task and by two
    python -m benchmarks.spark_write --store redis      the same on a server of its own
    python -m benchmarks.spark_write --jobs 1000000 --partitions 1 --repeat 3 --json

Each run writes into an empty store, at the durability that a user gets. SQLite has one writer at a time, so two tasks
only share the making of payloads and ids. Besides the time, the CPU time of all processes is measured: on a machine
with other work it is the steadier figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks.lab.new_store import KINDS, new_stores
from benchmarks.spark_read import processes_cpu
from millrace.store.connect import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def some_rows(spark: SparkSession, jobs: int, partitions: int) -> DataFrame:
    return spark.range(0, jobs, 1, partitions).selectExpr(
        "id AS n", "concat('user', id, '@example.com') AS to", "id * 0.5D AS amount"
    )


async def count(url: str) -> int:
    """How many jobs there are; makes the tables where there are none."""
    store = connect(url)
    await store.connect()
    try:
        return sum(counts.waiting for counts in await store.count())
    finally:
        await store.close()


def write_once(spark: SparkSession, url: str, jobs: int, partitions: int) -> tuple[float, float]:
    asyncio.run(count(url))
    frame = some_rows(spark, jobs, partitions)
    began, cpu = time.perf_counter(), processes_cpu()
    frame.write.format("millrace").mode("append").options(url=url, task="send_email").save()
    took = time.perf_counter() - began, processes_cpu() - cpu
    assert asyncio.run(count(url)) == jobs
    return took


def measure(kind: str, jobs: int, repeat: int, partitions: list[int], master: str) -> list[dict[str, Any]]:
    from millrace.spark.session import session

    found: list[dict[str, Any]] = []
    with new_stores(kind) as new_store:
        spark = session("millrace-bench", master)
        try:
            write_once(spark, new_store(), 1_000, 1)
            for tasks in partitions:
                runs = [write_once(spark, new_store(), jobs, tasks) for _ in range(repeat)]
                found.append(
                    {
                        "store": kind,
                        "jobs": jobs,
                        "master": master,
                        "partitions": tasks,
                        "jobs_per_second": round(jobs / min(runs)[0]),
                        "seconds": [round(seconds, 2) for seconds, _ in runs],
                        "cpu_us_per_job": round(min(cpu for _, cpu in runs) / jobs * 1e6, 2),
                        "load": round(os.getloadavg()[0], 1),
                    }
                )
        finally:
            spark.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Enqueue the rows of a DataFrame into a store.")
    parser.add_argument("--store", choices=KINDS, default="sqlite")
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for found in measure(given.store, given.jobs, given.repeat, given.partitions, given.master):
        if given.json:
            print(json.dumps(found))
            continue
        what = f"{found['jobs']:,} jobs into {found['store']} by {found['partitions']} task(s) on {found['master']}"
        print(f"{what}, best of {given.repeat}:")
        print(f"  {found['jobs_per_second']:>10,} jobs/s")
        print(f"  {found['cpu_us_per_job']:>10} µs of CPU per job, all processes")
        print(f"  runs: {found['seconds']} s; load {found['load']}")


if __name__ == "__main__":
    main()
