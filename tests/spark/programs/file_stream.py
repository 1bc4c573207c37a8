"""A stream of files into the queue. In the middle of each micro-batch a task waits, so that a test can kill what it
likes: with some rows of the batch in the store, and others not."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from millrace.spark.session import QUICK, session

ROWS = 2_000  # of a file
AT_ONCE = 50  # rows, which the sink enqueues together
FILES_AT_ONCE = 2
BATCH = FILES_AT_ONCE * ROWS
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(AT_ONCE),
    "spark.sql.files.minPartitionNum": str(FILES_AT_ONCE),  # else it depends on the executors that are there
    "spark.task.maxFailures": "100",
    "spark.deploy.maxExecutorRetries": "-1",
}


def held(folder: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """In the middle of the first file of each micro-batch, a task says who it is, and waits for the test."""

    def passing(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            number, row = divmod(batch.column("n")[0].as_py(), BATCH)
            if row == ROWS // 2:
                draft = folder / f"draft-{os.getpid()}"
                draft.write_text(str(os.getpid()))
                draft.replace(folder / f"holding-{number}")
                while not (folder / f"go-{number}").exists():
                    time.sleep(0.02)
            yield batch

    return passing


def main(folder: str, master: str, url: str) -> None:
    spark = session("millrace-file-stream", master, memory="512m", java_options=QUICK, settings=SETTINGS)
    source = spark.readStream.schema("n int, wide string").option("maxFilesPerTrigger", FILES_AT_ONCE)
    rows = source.json(f"{folder}/in")
    rows = rows.mapInArrow(held(Path(folder)), rows.schema)
    options = {"url": url, "task": "send", "batchSize": str(AT_ONCE), "payloadColumns": "n"}
    query = rows.writeStream.format("millrace").options(**options, checkpointLocation=f"{folder}/at")
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
