"""`millrace pipeline audit`: checks that no job was lost and that every transition was valid, and names the affected
jobs.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from millrace.app.format import plural
from millrace.cli import exits
from millrace.cli.output import Cell, Word
from millrace.cli.pipeline.options import AsOf, Comparing, LakePath, SparkOptions, as_of, options_for, url_of
from millrace.cli.session import CommandSession

if TYPE_CHECKING:
    from millrace.spark.lake.verdict import AuditResult

EXAMPLES = {
    "audit": (
        "Examples:\n"
        "  millrace pipeline audit --lake lake\n"
        "  millrace pipeline audit --lake lake --url sqlite:///jobs.db      compared with the store as it is now\n"
        "  millrace pipeline audit --lake lake --json | jq -r '.findings[].job'",
        "Exit 0 if all checks pass, else 1.",
    )
}


async def audit(
    session: CommandSession,
    lake: LakePath,
    store: Comparing = True,
    take: AsOf = None,
    *,
    spark_options: SparkOptions,
) -> int:
    """Check that no job was lost, that no job had two leases at once, and that every transition was valid."""
    past = as_of(take)
    url = url_of(session) if store else None
    where = None if url is None else options_for(url)
    with spark_options.session() as spark:
        from millrace.spark.lake import Lake, StoreFeed
        from millrace.spark.lake.audit import audit as judge
        from millrace.spark.lake.audit_store import audit_store

        opened = Lake(lake, spark, past)
        verdict = judge(opened)
        if where is not None:
            audit_store(verdict, opened, StoreFeed(spark, **where))
    _show(session, verdict)
    return exits.OK if verdict.sound else exits.NO


def _show(session: CommandSession, verdict: AuditResult) -> None:
    if session.output.json:
        document: dict[str, Any] = {
            "sound": verdict.sound,
            "checks": [asdict(check) for check in verdict.checks],
            "findings": [asdict(finding) for finding in verdict.findings],
            "broken": verdict.broken,
            "figures": verdict.figures,
            "gaps": [{"after": gap.after, "until": gap.until, "lost": gap.lost} for gap in verdict.gaps],
        }
        session.output.document(document)
        return
    rows: list[list[Cell]] = [
        [check.name, Word("ok" if check.sound else "fail"), check.text] for check in verdict.checks
    ]
    session.output.table(("check", "status", "details"), rows)
    if verdict.findings:
        found: list[list[Cell]] = [[one.rule, one.job, one.text] for one in verdict.findings]
        session.output.table(("rule", "job", "details"), found)
    for gap in verdict.gaps:
        session.output.say(f"gap: {plural(gap.lost, 'event')} of the history were lost before take {gap.take}")
    total = sum(verdict.broken.values())
    if total > len(verdict.findings):
        session.output.say(f"{total:,} findings in all; the first of each rule are shown")
