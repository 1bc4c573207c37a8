"""`millrace pipeline sweep`: checks a whole bucket or directory with Spark, and repairs what crashes left behind."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.app.format import plural
from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.pipeline.options import SparkOptions, keywords_for, progress_printer
from millrace.cli.pipeline.upkeep import object_url, watched
from millrace.cli.session import CommandSession

if TYPE_CHECKING:
    from millrace.spark.upkeep import SweepOutcome

EXAMPLES = {
    "sweep": (
        "Examples:\n"
        "  millrace pipeline sweep --url s3://jobs/shop --dry-run       what would be repaired\n"
        "  millrace pipeline sweep --url s3://jobs/shop --shares 8 --master spark://head:7077",
        "Workers sweep recent changes in the background. This command checks everything, for large stores:\n"
        "after an incident or a restore. You can run it while workers and other sweeps run.",
    )
}
WHY = "its index is part of every transaction, so a crash leaves nothing to repair"


async def sweep(
    session: CommandSession,
    shares: Annotated[
        int,
        typer.Option("--shares", min=1, metavar="N", help="Number of Spark tasks; at most one for each of 16 shards."),
    ] = 16,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be repaired.")] = False,
    *,
    spark_options: SparkOptions,
) -> int:
    """Check the whole index of an object store, and repair it."""
    began = monotonic()
    store = keywords_for(object_url(session, WHY))
    with spark_options.session() as spark:
        from millrace.spark import upkeep

        def work() -> SweepOutcome:
            return upkeep.sweep(spark, shares=shares, dry_run=dry_run, on_progress=progress_printer(session), **store)

        outcome = await watched(session, spark, "sweep", work)
    _report(session, outcome, monotonic() - began)
    if len(outcome.shares) < shares and not session.output.json:
        session.output.say(f"this store has {plural(_shards(outcome), 'shard')}, which limits the number of shares")
    return exits.OK


def _report(session: CommandSession, outcome: SweepOutcome, seconds: float) -> None:
    total = outcome.total
    if session.output.json:
        shares = [{"shards": share.shards, **_figures(swept)} for share, swept in outcome.shares]
        document = {"dry_run": outcome.dry_run, **_figures(total), "seconds": round(seconds, 1)}
        session.output.document({**document, "shares": shares, "rest": _figures(outcome.rest)})
        return
    rows: list[list[Cell]] = [[name, count] for name, count in total.repairs.items()]
    session.output.table(("repaired" if not outcome.dry_run else "to_repair", "count"), rows)
    looked = f"checked {plural(total.looked_at, 'object')} in {plural(len(outcome.shares), 'share')}"
    found = "" if total.repairs else "; nothing to repair"
    changed = "; nothing was changed" if outcome.dry_run and total.repairs else ""
    session.output.say(f"{looked}, {seconds:.1f} s{found}{changed}")


def _shards(outcome: SweepOutcome) -> int:
    return sum(len(share.shards) for share, _ in outcome.shares)


def _figures(swept: Any) -> dict[str, Any]:
    return {"looked_at": swept.looked_at, "repaired": swept.repairs}
