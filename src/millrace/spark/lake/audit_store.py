"""Compares the lake with the store: with its current records, and with the events that were not copied yet."""

from __future__ import annotations

import time
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.domain.errors import CursorExpired, CursorUnknown
from millrace.spark.lake.audit import add_rows, present
from millrace.spark.lake.errors import HistoryLost, HistoryReplaced
from millrace.spark.lake.feed import EventFeed
from millrace.spark.lake.jobs import job_parts, jobs, parts_of
from millrace.spark.lake.lake import Lake
from millrace.spark.lake.reading import settings
from millrace.spark.lake.steps import by_run, gathered
from millrace.spark.lake.verdict import AuditResult

PATIENCE = 15.0  # seconds; the feed of an object store lags behind its records
STEP = 1.0


class FeedWithRecords(EventFeed, Protocol):
    def jobs(self) -> DataFrame: ...


def audit_store(verdict: AuditResult, lake: Lake, feed: FeedWithRecords, patience: float = PATIENCE) -> AuditResult:
    """Check that the records of the store agree with its history. Add this check to the audit result, and return the
    result. The records are read before the events.
    """
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
            add_rows(verdict, "the records of the store agree with its history", found, figures)
        finally:
            records.unpersist()
    return verdict


def _differences(lake: Lake, feed: EventFeed, records: DataFrame) -> DataFrame:
    try:
        rest = feed.events(feed.ahead(lake.state.cursor, None))
    except CursorExpired as expired:
        raise HistoryLost(expired) from None
    except CursorUnknown as unknown:
        raise HistoryReplaced(unknown) from None
    news = job_parts(gathered(by_run(rest), 2))
    known = jobs(parts_of(present(lake, "jobs")).unionByName(news))
    seen = news.select("seq", F.lit(True).alias("moved")).distinct()
    return differences(known.join(seen, "seq", "left"), records, lake.state.whole and not lake.state.gaps)


def differences(known: DataFrame, records: DataFrame, whole: bool) -> DataFrame:
    """Return the jobs whose record and history disagree. If the column `moved` is true, the job has changed since the
    records were read, and its history may be ahead of its record.
    """
    theirs = records.select("seq", F.col("id"), F.col("events").alias("has"), F.col("state").alias("is"))
    both = known.join(theirs, "seq", "full_outer").withColumn("job", F.coalesce("job", "id"))
    moved = F.coalesce("moved", F.lit(False))
    gone = F.col("pruned_at").isNotNull()
    has_history, there = F.col("last_n").isNotNull(), F.col("has").isNotNull()
    rule = (
        F.when(~has_history & F.lit(whole), "without_history")
        .when(has_history & ~gone & ~there & ~moved, "vanished")
        .when(gone & there & ~moved, "came_back")
        .when(there & (F.col("last_n") < F.col("has")), "behind")
        .when(there & (F.col("last_n") > F.col("has")) & ~moved, "ahead")
        .when(there & (F.col("last_n") == F.col("has")) & (F.col("state") != F.col("is")), "differs")
    )
    words = (
        F.when(rule == "without_history", F.lit("the store has it, but no event mentions it"))
        .when(rule == "vanished", F.format_string("it is %s by its history, and the store does not have it", "state"))
        .when(rule == "came_back", F.lit("it was removed by its history, and the store has it"))
        .when(rule == "differs", F.format_string("it is %s by its history, and %s in the store", "state", "is"))
        .otherwise(F.format_string("its history ends at event %s, its record at event %s", "last_n", "has"))
    )
    none = F.lit(None).cast("int").alias("n")
    return (
        both.withColumn("rule", rule).where("rule IS NOT NULL").select("rule", "job", "seq", none, words.alias("text"))
    )
