"""`millrace pipeline audit`: was every job conserved? Named are those that were not."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from millrace.cli import exits
from millrace.cli.output import Cell, Word
from millrace.cli.pipeline_lake import Comparing, LakePath, Master, Memory, options_for, spark_for, url_of
from millrace.cli.session import Session
from millrace.cli.text import plural

if TYPE_CHECKING:
    from millrace.spark.lake.verdict import Verdict

EXAMPLES = {
    "audit": (
        "Examples:\n"
        "  millrace pipeline audit --lake lake\n"
        "  millrace pipeline audit --lake lake --url sqlite:///jobs.db      compared with the store as it is now\n"
        "  millrace pipeline audit --lake lake --json | jq -r '.findings[].job'",
        "Exits 0 when all is sound, and 1 when anything is not.",
    )
}


async def audit(
    session: Session,
    lake: LakePath,
    store: Comparing = True,
    master: Master = None,
    memory: Memory = None,
) -> int:
    """Check that no accepted job vanished, none was held twice, and every step was legal."""
    url = url_of(session) if store else None
    where = None if url is None else options_for(url)
    with spark_for(master, memory) as spark:
        from millrace.spark.lake import Lake, StoreFeed
        from millrace.spark.lake.audit import audit as judge
        from millrace.spark.lake.audit_store import audit_store

        opened = Lake(lake, spark)
        verdict = judge(opened)
        if where is not None:
            audit_store(verdict, opened, StoreFeed(spark, **where))
    _show(session, verdict)
    return exits.OK if verdict.sound else exits.NO


def _show(session: Session, verdict: Verdict) -> None:
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
        session.output.say(f"gap: {plural(gap.lost, 'event')} of the history were lost before run {gap.run}")
    total = sum(verdict.broken.values())
    if total > len(verdict.findings):
        session.output.say(f"{total:,} findings in all; the first of each rule are shown")
