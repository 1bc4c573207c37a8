"""The optional table `payloads`: payload and result of finished jobs, for shadow replays of a time that the store has
forgotten.

It is filled after the takes, and its app transaction has the number of the newest take that it includes. So it is its
own cursor, and a run that dies in between is completed by the next one. Each job that finished is read once, by its id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millrace.domain.event import Kind
from millrace.spark.lake.delta import CommitConflict, commit, create, snapshot
from millrace.spark.lake.feed import StoreFeed
from millrace.spark.lake.place import LakePlace
from millrace.spark.lake.reading import read, settings
from millrace.spark.lake.steps import REMOVES, is_of
from millrace.spark.lake.tables import DAY
from millrace.spark.lake.writing import discard, write

NAME = "payloads"


def keep_payloads(
    place: LakePlace, spark: SparkSession, feed: StoreFeed, tasks: Collection[str], on_progress: Callable[[str], None]
) -> int:
    """Copy payloads and results of the jobs that completed or died in the takes which the table does not include, and
    return their number. `tasks` are the tasks to copy; none means all. Jobs that the store does not have any more are
    left out.
    """
    lake = place.latest()
    if lake is None:
        return 0
    began = time.monotonic()
    create(place.location, NAME)
    table = snapshot(place.location, NAME)
    assert table is not None
    if table.take >= lake.state.take:
        return 0
    new = [file for file in lake.of("events") if file.takes is None or file.takes[1] > table.take]
    with settings(spark):
        events = read(spark, place.location, "events", new).where(F.col("take") > table.take)
        ended = events.where(is_of(Kind.COMPLETED, Kind.BURIED))
        if tasks:
            ended = ended.where(F.col("task").isin(*tasks))
        gone = events.where(is_of(*REMOVES)).select("seq").distinct()
        ids = ended.join(gone, "seq", "left_anti").select("job").distinct()
        files = write(ids, place.location, NAME, DAY, feed.records())
    try:
        commit(place.location, table, lake.state.take, files)
    except CommitConflict:  # another run has copied them
        discard(place.location, NAME, files)
        return 0
    rows = sum(file.rows for file in files)
    on_progress(f"take {lake.state.take}: {rows:,} rows of payloads in {time.monotonic() - began:.1f} s")
    return rows
