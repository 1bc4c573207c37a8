"""The audit against the store itself: its records as they stand now, and the events that were not taken yet."""

from __future__ import annotations

import time
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.domain.errors import CursorExpired
from millrace.spark.lake.audit import add_rows, present
from millrace.spark.lake.errors import HistoryLost
from millrace.spark.lake.feed import Feed
from millrace.spark.lake.files import settings
from millrace.spark.lake.jobs import job_parts, jobs
from millrace.spark.lake.lake import Lake
from millrace.spark.lake.steps import gathered, sayings
from millrace.spark.lake.verdict import Verdict

PATIENCE = 15.0  # seconds: the feed of an object store stays a little behind its records
STEP = 1.0


class FeedWithRecords(Feed, Protocol):
    def jobs(self) -> DataFrame: ...


def audit_store(verdict: Verdict, lake: Lake, feed: FeedWithRecords, patience: float = PATIENCE) -> Verdict:
    """Adds to a verdict: what the store has is what its history tells. Records are read first, events afterwards."""
    with settings(lake.spark):
        records = feed.jobs().persist()
        try:
            records.count()
            until = time.monotonic() + patience
            found = _differences(lake, feed, records)
            while time.monotonic() < until and found.limit(1).count():
                time.sleep(STEP)
                found = _differences(lake, feed, records)
            figures = f"{records.count():,} records"
            add_rows(verdict, "the store has what its history tells, and nothing else", found, figures)
        finally:
            records.unpersist()
    return verdict


def _differences(lake: Lake, feed: Feed, records: DataFrame) -> DataFrame:
    try:
        rest = feed.events(feed.ahead(lake.manifest.cursor, None))
    except CursorExpired as expired:
        raise HistoryLost(expired) from None
    news = job_parts(gathered(sayings(rest), 2))
    known = jobs(present(lake, "jobs").unionByName(news))
    seen = news.select("seq", F.lit(True).alias("moved")).distinct()
    return differences(known.join(seen, "seq", "left"), records, lake.manifest.whole and not lake.manifest.gaps)


def differences(known: DataFrame, records: DataFrame, whole: bool) -> DataFrame:
    """Where records and history disagree. A job that has `moved` since the records were read may be ahead of them."""
    theirs = records.select("seq", F.col("id"), F.col("events").alias("has"), F.col("state").alias("is"))
    both = known.join(theirs, "seq", "full_outer").withColumn("job", F.coalesce("job", "id"))
    moved = F.coalesce("moved", F.lit(False))
    gone = F.col("pruned_at").isNotNull()
    told, there = F.col("last_n").isNotNull(), F.col("has").isNotNull()
    rule = (
        F.when(~told & F.lit(whole), "without_history")
        .when(told & ~gone & ~there & ~moved, "vanished")
        .when(gone & there & ~moved, "came_back")
        .when(there & (F.col("last_n") < F.col("has")), "behind")
        .when(there & (F.col("last_n") > F.col("has")) & ~moved, "ahead")
        .when(there & (F.col("last_n") == F.col("has")) & (F.col("state") != F.col("is")), "differs")
    )
    words = (
        F.when(rule == "without_history", F.lit("the store has it, and no event tells of it"))
        .when(rule == "vanished", F.format_string("it is %s by its history, and the store does not have it", "state"))
        .when(rule == "came_back", F.lit("it was removed by its history, and the store has it"))
        .when(rule == "differs", F.format_string("it is %s by its history, and %s in the store", "state", "is"))
        .otherwise(F.format_string("its history ends at event %s, its record at event %s", "last_n", "has"))
    )
    none = F.lit(None).cast("int").alias("n")
    return (
        both.withColumn("rule", rule).where("rule IS NOT NULL").select("rule", "job", "seq", none, words.alias("text"))
    )
