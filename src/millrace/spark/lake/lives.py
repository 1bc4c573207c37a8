"""The life of each job, step by step: what must never follow what. Answers are rows: rule, job, seq, n, text."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millrace.domain.event import Kind
from millrace.domain.job import State
from millrace.domain.legal import GRANTS, LAST, LEGAL, MAY_FAIL, UNDER_A_LEASE
from millrace.spark.lake.steps import is_of

FINDINGS = "rule string, job string, seq bigint, n int, text string"


def broken_steps(events: DataFrame) -> DataFrame:
    """Every step that the state machine does not know, and every write by somebody who did not hold the job.

    A step whose predecessor is not there is not judged: what is missing is counted elsewhere.
    """
    order = Window.partitionBy("seq").orderBy("n")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    facts = F.struct("n", "kind", "state", "attempt", "failures")
    walked = events.select(
        *("job", "seq", "n", "kind", "state", "attempt", "failures", "lease"),
        F.lag(facts).over(order).alias("prev"),
        F.last(F.when(is_of(*GRANTS), F.col("lease")), ignorenulls=True).over(before).alias("holder"),
    )
    judged = walked.withColumn("found", F.array_compact(F.array(*_rules())))
    return (
        judged.where(F.size("found") > 0)
        .select(F.explode("found").alias("found"), "job", "seq", "n")
        .select("found.rule", "job", "seq", "n", "found.text")
    )


def _rules() -> list[Column]:
    prev = F.col("prev")
    follows = prev.isNotNull() & (prev.n == F.col("n") - 1)
    first = prev.isNull() & (F.col("n") == 1)
    begins = is_of(Kind.ENQUEUED) & (F.col("state") == State.WAITING.value) & (F.col("attempt") == 0)
    claimed_while_held = is_of(Kind.CLAIMED) & (prev.state == State.RUNNING.value)
    after_the_end = prev.kind.isin([kind.value for kind in LAST])
    return [
        _found("numbering", prev.n == F.col("n"), "two events have this number"),
        _found("beginning", first & ~begins, "the first event is %s, which leaves it %s", "kind", "state"),
        _found("two_leases", follows & claimed_while_held, "claimed while lease %s held it", "holder"),
        _found("after_the_end", follows & after_the_end, "%s, though it was removed before", "kind"),
        _found(
            "transition",
            follows & ~claimed_while_held & ~after_the_end & ~_legal(prev.state),
            "%s led from %s to %s",
            "kind",
            "prev.state",
            "state",
        ),
        _found("fence", follows & _unfenced(prev.state), "%s under lease %s; %s held it", "kind", "lease", "holder"),
        _found(
            "attempt",
            follows & (F.col("attempt") != prev.attempt + is_of(Kind.CLAIMED).cast("int")),
            "attempt %s follows attempt %s by %s",
            "attempt",
            "prev.attempt",
            "kind",
        ),
        _found(
            "failures",
            follows & ~_counted(prev.failures),
            "%s failures follow %s by %s",
            "failures",
            "prev.failures",
            "kind",
        ),
    ]


def _found(rule: str, when: Column, text: str, *values: str) -> Column:
    told = [F.coalesce(F.col(value).cast("string"), F.lit("none")) for value in values]
    words = F.format_string(text, *told) if told else F.lit(text)
    return F.when(F.coalesce(when, F.lit(False)), F.struct(F.lit(rule).alias("rule"), words.alias("text")))


def _legal(before: Column) -> Column:
    after = F.col("state")
    known: Column = F.lit(False)
    for kind, (froms, to) in LEGAL.items():
        leads = after == (before if to is None else F.lit(to.value))
        known = known | (is_of(kind) & before.isin([state.value for state in froms]) & leads)
    return known


def _unfenced(before: Column) -> Column:
    """Only the holder ends a run; but for being cut off, which nobody has to hold a lease for."""
    ran = before == State.RUNNING.value
    strange = F.col("lease").isNotNull() & (F.col("lease") != F.col("holder"))
    bare = F.col("lease").isNull() & ~is_of(Kind.CANCELLED)
    return ran & is_of(*UNDER_A_LEASE, Kind.CANCELLED) & (strange | bare)


def _counted(before: Column) -> Column:
    grown = F.col("failures") - before
    counted = F.when(is_of(Kind.REPLAYED), F.col("failures") == 0)
    for kind, steps in MAY_FAIL.items():
        counted = counted.when(is_of(kind), grown.isin(list(steps)))
    return counted.otherwise(grown == 0)
