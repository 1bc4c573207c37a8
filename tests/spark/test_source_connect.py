"""Through Spark Connect: the client has no JVM, and the server finds the source by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import Place
from tests.spark.filled import fill

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from millrace.spark import register
from millrace.spark.java import use_java

url, folder = sys.argv[1:]
use_java()
builder = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "1g").getOrCreate()
register(spark)
jobs = spark.read.format("millrace").options(url=url, table="jobs").load()
events = spark.read.format("millrace").options(url=url, table="events", columns="seq,n").load()
print(jobs.count(), jobs.where("state = 'dead'").count(), events.distinct().count())
stream = spark.readStream.format("millrace").options(url=url, table="events").load()
query = (
    stream.writeStream.format("parquet")
    .options(path=f"{folder}/events", checkpointLocation=f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(spark.read.parquet(f"{folder}/events").count())
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.nightly
def test_tables_and_streams_work_through_connect(sqlite: Place, tmp_path: Path):
    with sqlite.open() as found:
        found.run(fill(found.store))
        [span] = found.run(found.store.event_spans(None, 1))

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, sqlite.url, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert done.returncode == 0, done.stderr[-4_000:]
    assert done.stdout.splitlines() == [f"21 4 {span.count}", str(span.count)]
