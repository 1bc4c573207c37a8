"""The conservation audit: no accepted job was lost, no job was held by two workers at once, every transition was legal.

The audit does not trust counters. It checks every event, and compares the result with the tables' logs and their
files. `audit_store` also compares it with the current records of a store. The rules about jobs are those of
`millrace.domain.audit`; `lives.py` describes how a test keeps both implementations equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millrace.domain.job import LIVE
from millrace.spark.lake.instants import day_of, millis
from millrace.spark.lake.lake import Lake
from millrace.spark.lake.lives import broken_steps
from millrace.spark.lake.reading import read, settings
from millrace.spark.lake.verdict import SHOWN, AuditCheck, AuditFinding, AuditResult


def audit(lake: Lake) -> AuditResult:
    """Check the lake and return the result. This does not read the store; `audit_store` compares the lake with the
    store.
    """
    verdict = AuditResult(gaps=lake.state.gaps)
    _judge(verdict, "files", "every file is there", _wrong_files(lake), f"{lake.snapshot.files:,} files")
    with settings(lake.spark):
        events, known = present(lake, "events"), present(lake, "jobs").persist()
        try:
            _conservation(verdict, known)
            _numbering(verdict, lake, known)
            add_rows(verdict, "every event that was taken is still there", _missing_rows(lake, events, known))
            add_rows(verdict, "every step was legal, under one lease at a time", broken_steps(events))
        finally:
            known.unpersist()
    return verdict


def present(lake: Lake, table: str) -> DataFrame:
    """Return the rows of a table. Files that are missing are skipped."""
    there = lake.place.sizes(table)
    files = [file for file in lake.snapshot.of(table) if file.path in there]
    return read(lake.spark, lake.place.location, table, files)


def _wrong_files(lake: Lake) -> list[str]:
    """Return a message for each file of the lake that is missing or has another length."""
    wrong: list[str] = []
    for name, table in lake.snapshot.tables.items():
        there = lake.place.sizes(name)
        for file in table.files:
            size = there.get(file.path)
            if size is None:
                wrong.append(f"{name}/{file.path} is gone, and {file.rows:,} rows with it")
            elif size != file.bytes:
                wrong.append(f"{name}/{file.path} has {size:,} bytes, not {file.bytes:,}")
    return wrong


def _conservation(verdict: AuditResult, known: DataFrame) -> None:
    """Check that every job is live, finished or removed, and that no job was removed while it was live."""
    live = F.col("state").isin([state.value for state in LIVE])
    gone = F.col("pruned_at").isNotNull()
    row = known.agg(
        F.count("*").alias("known"),
        F.count("enqueued_at").alias("accepted"),
        F.count(F.when(gone, 1)).alias("removed"),
        F.count(F.when(~gone & live, 1)).alias("live"),
        F.count(F.when(~gone & ~live, 1)).alias("finished"),
        F.count(F.when(gone & live, 1)).alias("removed_alive"),
    ).collect()[0]
    verdict.figures |= row.asDict()
    sums = "{known:,} jobs = {live:,} live + {finished:,} finished + {removed:,} removed".format(**row.asDict())
    alive = known.where(gone & live).select(
        F.lit("removed_alive").alias("rule"),
        "job",
        "seq",
        F.lit(None).cast("int").alias("n"),
        formatted("was removed while %s", "state"),
    )
    add_rows(verdict, "every job is live, finished or was removed", alive, sums)


def _numbering(verdict: AuditResult, lake: Lake, known: DataFrame) -> None:
    """Check that the events of each job are numbered 1, 2, 3 … without a break. Missing numbers are accepted if the
    recorded gaps of the lake lost at least as many events.
    """
    state = lake.state
    first = F.lit(1) if state.whole else F.col("first_n")
    missing = F.col("last_n") - first + 1 - F.col("events")
    counted = known.withColumn("missing", missing.cast("bigint"))
    row = counted.agg(
        F.coalesce(F.sum(F.when(F.col("missing") > 0, F.col("missing"))), F.lit(0)).alias("missing"),
        F.count(F.when(F.col("first_n") > 1, 1)).alias("begun_before"),
    ).collect()[0]
    verdict.figures |= row.asDict()
    lost = sum(gap.lost for gap in state.gaps)
    explained = 0 < row["missing"] <= lost
    broken = counted.where(F.col("missing") < 0 if explained else F.col("missing") != 0).select(
        F.lit("numbering").alias("rule"),
        "job",
        "seq",
        F.col("last_n").alias("n"),
        formatted("%s of its %s events were taken", "events", "last_n"),
    )
    sums = f"{verdict.figures['known']:,} jobs, {row['missing']:,} numbers missing"
    sums += f"; gaps of the history lost {lost:,}" if lost else ""
    sums += "" if state.whole else f"; {row['begun_before']:,} jobs began before the lake"
    add_rows(verdict, "every job's events are numbered without a break", broken, sums)


def _missing_rows(lake: Lake, events: DataFrame, known: DataFrame) -> DataFrame:
    """Return the jobs whose number of rows in the table `events` differs from the number of copied events. Jobs whose
    events retention may have dropped are left out.
    """
    there = events.groupBy("seq").agg(F.max("job").alias("name"), F.count("*").alias("there"))
    dropped = lake.snapshot.dropped.get("events")
    both = known.select("seq", "job", "events", "oldest_at").join(there, "seq", "full_outer")
    if dropped is not None:
        both = both.where(day_of(millis("oldest_at")).cast("string") >= dropped)
    differ = F.coalesce("events", F.lit(0)) != F.coalesce("there", F.lit(0))
    return both.where(differ).select(
        F.lit("rows").alias("rule"),
        F.coalesce("job", "name").alias("job"),
        "seq",
        F.lit(None).cast("int").alias("n"),
        formatted("%s events were taken, and %s are in the lake", "events", "there"),
    )


def formatted(words: str, *values: str) -> Column:
    said = [F.coalesce(F.col(value).cast("string"), F.lit("0")) for value in values]
    return F.format_string(words, *said).alias("text")


def add_rows(verdict: AuditResult, promise: str, found: DataFrame, figures: str = "") -> None:
    """Add a check to the audit result. `found` has one row for each violation, with the columns of `lives.FINDINGS`.
    All violations are counted, and the first ones of each rule are listed.
    """
    found = found.persist()
    try:
        counts = {row["rule"]: row["times"] for row in found.groupBy("rule").agg(F.count("*").alias("times")).collect()}
        first = Window.partitionBy("rule").orderBy("seq", "n", "text")
        some = found.withColumn("place", F.row_number().over(first)).where(F.col("place") <= SHOWN) if counts else None
        rows = [] if some is None else some.orderBy("rule", "place").collect()
    finally:
        found.unpersist()
    verdict.broken |= counts
    for row in rows:
        at = "" if row["n"] is None else f"event {row['n']}: "
        verdict.findings.append(AuditFinding(row["rule"], row["job"], at + row["text"]))
    times = sum(counts.values())
    verdict.checks.append(AuditCheck(promise, not times, f"broken {times:,} times" if times else figures))


def _judge(verdict: AuditResult, rule: str, promise: str, wrong: Sequence[str], figures: str) -> None:
    verdict.findings += [AuditFinding(rule, "", text) for text in wrong[:SHOWN]]
    if wrong:
        verdict.broken[rule] = len(wrong)
    verdict.checks.append(AuditCheck(promise, not wrong, f"{len(wrong):,} are not" if wrong else figures))
