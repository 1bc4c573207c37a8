"""Submitted to a cluster whose executors have nothing but what was submitted with it: says where they found it, and
takes the source, the sink, a stream of each, the lake, a bulk operation and a drain for a turn. It then looks for the
password of the store's URL wherever Spark shows anything. A line of JSON at the end."""

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
from urllib.parse import urlsplit
from urllib.request import urlopen

from pyspark.sql import DataFrame, SparkSession

from millrace.cli.pipeline.options import SECRET_URL, options_for
from millrace.spark import bulk
from millrace.spark.lake import Lake, LakePlace, StoreFeed, TakeRequest, take
from millrace.spark.session import session

ROWS = 600
CANCELLED = 10
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


def streamed(spark: SparkSession, folder: Path, about: Mapping[str, str], **store: str) -> int:
    """Files as they come into the queue, as jobs `about` something; and events as they come into files. Return how many
    events the second stream was behind.
    """
    new = spark.range(ROWS, 2 * ROWS, 1, TASKS).selectExpr("id as order", "'bob@example.com' as to")
    new.write.parquet(f"{folder}/new")
    rows = spark.readStream.schema("order long, to string").parquet(f"{folder}/new")
    into = rows.writeStream.format("millrace").options(**store, **about)
    into.option("checkpointLocation", f"{folder}/in").trigger(availableNow=True).start().awaitTermination()

    events = spark.readStream.format("millrace").options(**store, table="events").load()
    out = events.writeStream.format("parquet").options(path=f"{folder}/out", checkpointLocation=f"{folder}/checked")
    query = out.trigger(availableNow=True).start()
    query.awaitTermination()
    lag: int = json.loads(query.recentProgress[0]["sources"][0]["latestOffset"])["events_behind"]
    return lag


def operated(spark: SparkSession, **store: str) -> dict[str, int]:
    """Some of the waiting jobs are cancelled by a predicate, and all others run. The rows of the table, by state."""
    shop = importlib.import_module("shop")
    url_env = store.get("urlEnv")
    where = f"get_json_object(payload_text, '$.order') < {CANCELLED}"
    some = bulk.select(spark, store.get("url"), where, "cancel", url_env=url_env)
    bulk.apply(some, store.get("url"), "cancel", url_env=url_env)
    shop.app.on_spark(spark, url=store.get("url"), url_env=url_env, queues="mail").wait(120)
    rows = batch(spark, **store, table="jobs").where("queue = 'mail'").groupBy("state").count().collect()
    return {row.state: row["count"] for row in rows}


def shown(spark: Any, jobs: Any) -> dict[str, str]:
    """What Spark shows to everybody who may look: plans, the pages and the REST interface of its UI, command lines."""
    context = spark.sparkContext
    rest = f"api/v1/applications/{context.applicationId}"
    pages = ["environment/", "SQL/", "executors/", f"{rest}/environment", f"{rest}/sql?details=true", f"{rest}/jobs"]
    found = {page: urlopen(f"{context.uiWebUrl}/{page}").read().decode() for page in pages}
    found["plan"] = jobs._jdf.queryExecution().toString()
    found["settings"] = str(spark.sql("SET -v").collect())
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found[str(file)] = file.read_text("utf-8", "replace")
        except OSError:  # it has ended
            continue
    return found


def main(folder: Path) -> None:
    url = os.environ[SECRET_URL]
    where = options_for(url)
    spark = session("proof", secrets={SECRET_URL: url})
    shape = "cwd string, prefix string, millrace string, shop string, alone string"
    found = spark.range(0, TASKS, 1, TASKS).mapInArrow(whereabouts, shape).collect()
    for _ in range(2):  # the second time, every row is in already
        written(spark, **where)
    lag = streamed(spark, folder, BY_APP, **where)
    taken = take(LakePlace(folder / "lake"), spark, StoreFeed(spark, **where), TakeRequest(), lambda _text: None)
    jobs = batch(spark, urlFile="jobs-url", table="jobs", pushFilters="true")
    said = {
        "found": [row.asDict() for row in found],
        "jobs": jobs.where("state = 'waiting'").count(),
        "payloads": jobs.select("payload").distinct().count(),
        "events": batch(spark, **where, table="events").count(),
        "streamed": spark.read.parquet(f"{folder}/out").select("seq", "n").distinct().count(),
        "lag": lag,
        "taken": taken.events,
        "lake": Lake(folder / "lake", spark).jobs().count(),
        "operated": operated(spark, **where),
        "by_environment": where != {"url": url},
    }
    password, texts = urlsplit(url).password, shown(spark, jobs)
    said["named"] = [name for name, text in texts.items() if SECRET_URL in text]
    said["shown"] = [name for name, text in texts.items() if password is not None and password in text]
    spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
