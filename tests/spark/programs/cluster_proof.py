"""Submitted to a cluster whose executors have nothing but what was submitted with it: says where they found it, and
takes the source, the sink, a stream of each and the lake for a turn. A line of JSON at the end."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millrace.spark.lake import Lake, LakePlace, StoreFeed, TakeRequest, take

ROWS = 600
TASKS = 4
BY_APP = {"app": "shop:app", "task": "confirm"}


def whereabouts(batches: Iterator[Any]) -> Iterator[Any]:
    """Of the Python that runs a task. `alone` is how it fares without what Spark tells it."""
    import pyarrow as pa

    import millrace

    shop = importlib.import_module("shop")

    for _ in batches:
        time.sleep(0.5)  # so that every executor gets a part
        alone = subprocess.run([sys.executable, "-I", "-c", "import millrace"], capture_output=True, check=False)
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "cwd": os.getcwd(),
                    "prefix": sys.prefix,
                    "millrace": str(millrace.__file__),
                    "shop": str(shop.__file__),
                    "alone": alone.stderr.decode().strip().rpartition("\n")[2],
                }
            ]
        )


def batch(spark: SparkSession, **store: str) -> DataFrame:
    return spark.read.format("millrace").options(**store).load()


def written(spark: SparkSession, **store: str) -> None:
    """Rows into the queue."""
    rows = spark.range(0, ROWS, 1, TASKS).selectExpr("id as order", "'ada@example.com' as to")
    write = rows.write.format("millrace").mode("append").options(**store)
    write.options(**BY_APP, idColumns="order").save()


def streamed(spark: SparkSession, folder: Path, about: Mapping[str, str], **store: str) -> None:
    """Files as they come into the queue, as jobs `about` something; and events as they come into files."""
    new = spark.range(ROWS, 2 * ROWS, 1, TASKS).selectExpr("id as order", "'bob@example.com' as to")
    new.write.parquet(f"{folder}/new")
    rows = spark.readStream.schema("order long, to string").parquet(f"{folder}/new")
    into = rows.writeStream.format("millrace").options(**store, **about)
    into.option("checkpointLocation", f"{folder}/in").trigger(availableNow=True).start().awaitTermination()

    events = spark.readStream.format("millrace").options(**store, table="events").load()
    out = events.writeStream.format("parquet").options(path=f"{folder}/out", checkpointLocation=f"{folder}/checked")
    out.trigger(availableNow=True).start().awaitTermination()


def main(folder: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    where = {"urlEnv": "JOBS_URL"}
    shape = "cwd string, prefix string, millrace string, shop string, alone string"
    found = spark.range(0, TASKS, 1, TASKS).mapInArrow(whereabouts, shape).collect()
    for _ in range(2):  # the second time, every row is in already
        written(spark, **where)
    streamed(spark, folder, BY_APP, **where)
    taken = take(LakePlace(folder / "lake"), spark, StoreFeed(spark, **where), TakeRequest(), lambda _text: None)
    jobs = batch(spark, urlFile="jobs-url", table="jobs", pushFilters="true")
    said = {
        "found": [row.asDict() for row in found],
        "jobs": jobs.where("state = 'waiting'").count(),
        "payloads": jobs.select("payload").distinct().count(),
        "events": batch(spark, **where, table="events").count(),
        "streamed": spark.read.parquet(f"{folder}/out").select("seq", "n").distinct().count(),
        "taken": taken.events,
        "lake": Lake(folder / "lake", spark).jobs().count(),
    }
    spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
