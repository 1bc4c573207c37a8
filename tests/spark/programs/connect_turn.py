"""A client of a Connect server: it has no JVM, and the server has the session. The sink, a stream into the queue, a
stream out of it, the lake, a bulk operation and a drain, each for a turn. A line of JSON at the end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from millrace.spark import register
from millrace.spark.lake import Lake, LakePlace, StoreFeed, TakeRequest, take
from tests.spark.programs.cluster_proof import batch, operated, streamed, written


def main(remote: str, store: dict[str, str], folder: Path, *archives: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    register(spark)
    spark.addArtifacts(str(folder / "shop.py"), pyfile=True)
    for archive in archives:
        spark.addArtifacts(archive, archive=True)
    for _ in range(2):  # the second time, every row is in already
        written(spark, **store)
    place, feed = LakePlace(folder / "lake"), StoreFeed(spark, **store)
    first = take(place, spark, feed, TakeRequest(), lambda _text: None)
    lag = streamed(spark, folder, {"task": "confirm", "queue": "mail"}, **store)
    second = take(place, spark, feed, TakeRequest(), lambda _text: None)
    lake = Lake(folder / "lake", spark)
    said = {
        "jobs": batch(spark, **store, table="jobs").where("queue = 'mail'").count(),
        "events": batch(spark, **store, table="events").count(),
        "streamed": spark.read.parquet(f"{folder}/out").select("seq", "n").distinct().count(),
        "taken": [first.events, second.events],
        "lake": lake.jobs().count(),
        "throughput": lake.throughput(by="hour").selectExpr("sum(enqueued)").collect()[0][0],
        "lag": lag,
        "operated": operated(spark, **store),
        "session": type(spark).__module__,
    }
    spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
