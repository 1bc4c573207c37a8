"""Checks the events of each job for illegal transitions. Each result is a row with rule, job, seq, n and text.

The rules are those of `millrace.domain.audit.steps`, under the same names. They are written as DataFrame expressions,
because a lake may be too large for one process. tests/spark/lake/test_audit_rules.py checks histories with both
implementations and compares the results. Violations of the rules `finished_runs` and `cancelled_starts` are reported as
`transition` here.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from millrace.domain.event import Kind
from millrace.domain.job import State
from millrace.domain.rules.legal import GRANTS, LAST, LEGAL, MAY_FAIL, UNDER_A_LEASE
from millrace.spark.lake.steps import is_of

FINDINGS = "rule string, job string, seq bigint, n int, text string"


def broken_steps(events: DataFrame) -> DataFrame:
    """Return every transition that the state machine does not allow, and every write without the current lease.

    An event is compared with the event before it only if that event is in the lake. Another check counts missing
    events.
    """
    order = Window.partitionBy("seq").orderBy("n")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    facts = F.struct("n", "kind", "state", "attempt", "failures")
    walked = events.select(
        *("job", "seq", "n", "kind", "state", "attempt", "failures", "lease", "reason"),
        F.lag(facts).over(order).alias("prev"),
        F.last(F.when(is_of(*GRANTS), F.struct("lease")), ignorenulls=True).over(before).lease.alias("holder"),
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
    begins = is_of(Kind.ENQUEUED) & (F.col("state") == State.WAITING.value)
    begins = begins & (F.col("attempt") == 0) & (F.col("failures") == 0)
    claimed_while_held = is_of(Kind.CLAIMED) & (prev.state == State.RUNNING.value)
    after_the_end = prev.kind.isin([kind.value for kind in LAST])
    return [
        _found("numbering", prev.n == F.col("n"), "two events have this number"),
        _found("beginning", first & ~begins, "the first event is %s, which leaves it %s", "kind", "state"),
        _found("two_leases", follows & claimed_while_held, "claimed while lease %s held it", "holder"),
        _found("after_the_end", follows & after_the_end, "%s, though it was removed before", "kind"),
        _found("lease", is_of(*GRANTS) & F.col("lease").isNull(), "%s without a lease", "kind"),
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
    shown_values = [F.coalesce(F.col(value).cast("string"), F.lit("none")) for value in values]
    words = F.format_string(text, *shown_values) if shown_values else F.lit(text)
    return F.when(F.coalesce(when, F.lit(False)), F.struct(F.lit(rule).alias("rule"), words.alias("text")))


def _legal(before: Column) -> Column:
    after = F.col("state")
    known: Column = F.lit(False)
    for kind, (froms, to) in LEGAL.items():
        leads = after == (before if to is None else F.lit(to.value))
        known = known | (is_of(kind) & before.isin([state.value for state in froms]) & leads)
    return known


def _unfenced(before: Column) -> Column:
    """Return a boolean column: whether the event ended a run without the current lease. Obliterating a queue needs no
    lease.
    """
    obliterated = is_of(Kind.CANCELLED) & F.col("lease").isNull() & F.col("reason").eqNullSafe("obliterated")
    other = F.col("lease").isNull() | ~F.col("lease").eqNullSafe(F.col("holder"))
    return (before == State.RUNNING.value) & is_of(*UNDER_A_LEASE, Kind.CANCELLED) & other & ~obliterated


def _counted(before: Column) -> Column:
    grown = F.col("failures") - before
    counted = F.when(is_of(Kind.REPLAYED), F.col("failures") == 0)
    for kind, steps in MAY_FAIL.items():
        counted = counted.when(is_of(kind), grown.isin(list(steps)))
    return counted.otherwise(grown == 0)
