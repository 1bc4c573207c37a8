"""DataFrames into the queue: `python -m tests.spark.programs.killed_write FOLDER MASTER URL FIRST LAST [PARTNER]`.

Each of the batches FIRST to LAST is one write, which a task holds in the middle, as in `file_stream.py`. The program
can be killed there, and started again with the same batch. With PARTNER, `a` or `b`, two programs begin each write
together.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import functions as F

from millrace.spark.session import QUICK, session
from tests.spark.programs.file_stream import AT_ONCE, BATCH, FILES_AT_ONCE, SETTINGS, held


def main(folder: str, master: str, url: str, first: str, last: str, partner: str = "") -> None:
    spark = session("millrace-killed-write", master, memory="512m", java_options=QUICK, settings=SETTINGS)
    wide = F.repeat(F.lit("x"), 1_000).alias("wide")  # Spark passes rows on by 64 kB
    options = {"url": url, "task": "send", "batchSize": str(AT_ONCE), "payloadColumns": "n", "idColumns": "n"}
    for batch in range(int(first), int(last) + 1):
        numbers = spark.range(batch * BATCH, (batch + 1) * BATCH, 1, FILES_AT_ONCE)
        rows = numbers.select(F.col("id").cast("int").alias("n"), wide)
        rows = rows.mapInArrow(held(Path(folder)), rows.schema)
        if partner:
            meet(Path(folder), batch, partner)
        rows.write.format("millrace").mode("append").options(**options).save()
    spark.stop()


def meet(folder: Path, batch: int, partner: str) -> None:
    (folder / f"ready-{batch}-{partner}").touch()
    while not all((folder / f"ready-{batch}-{one}").exists() for one in "ab"):
        time.sleep(0.001)


if __name__ == "__main__":
    main(*sys.argv[1:])
