"""`millrace pipeline sweep`: look at all of a bucket or directory, share by share, and put right what crashes left."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.pipeline_lake import Master, Memory, options_for, spark_for, teller
from millrace.cli.pipeline_upkeep import object_url, watched
from millrace.cli.session import Session
from millrace.cli.text import plural

if TYPE_CHECKING:
    from millrace.spark.upkeep import SweepOutcome

EXAMPLES = {
    "sweep": (
        "Examples:\n"
        "  millrace pipeline sweep --url s3://jobs/shop --dry-run       what would be repaired\n"
        "  millrace pipeline sweep --url s3://jobs/shop --shares 64 --master spark://head:7077",
        "Workers sweep what has changed, beside their jobs; this looks at everything, for stores where that is much:\n"
        "after an accident, or when a copy was restored. It is safe beside workers and other sweeps.",
    )
}
WHY = "its index is part of every transaction, so a crash leaves nothing to repair"


async def sweep(
    session: Session,
    shares: Annotated[int, typer.Option("--shares", min=1, metavar="N", help="At most so many tasks.")] = 16,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be repaired.")] = False,
    master: Master = None,
    memory: Memory = None,
) -> int:
    """Check and repair the whole index of an object store."""
    began = monotonic()
    named = options_for(object_url(session, WHY))
    with spark_for(master, memory) as spark:
        from millrace.spark import upkeep

        def work() -> SweepOutcome:
            return upkeep.sweep(
                spark,
                named.get("url"),
                shares=shares,
                dry_run=dry_run,
                url_env=named.get("urlEnv"),
                tell=teller(session),
            )

        outcome = await watched(session, spark, "sweep", work)
    _report(session, outcome, monotonic() - began)
    return exits.OK


def _report(session: Session, outcome: SweepOutcome, seconds: float) -> None:
    total = outcome.total
    if session.output.json:
        shares = [{"shards": share.shards, **_figures(swept)} for share, swept in outcome.shares]
        document = {"dry_run": outcome.dry_run, **_figures(total), "seconds": round(seconds, 1)}
        session.output.document({**document, "shares": shares, "rest": _figures(outcome.rest)})
        return
    rows: list[list[Cell]] = [[name, count] for name, count in total.repairs.items()]
    session.output.table(("repaired" if not outcome.dry_run else "to_repair", "count"), rows)
    looked = f"looked at {plural(total.looked_at, 'object')} in {plural(len(outcome.shares), 'share')}"
    found = "" if total.repairs else "; all was well"
    changed = "; nothing was changed" if outcome.dry_run and total.repairs else ""
    session.output.say(f"{looked}, {seconds:.1f} s{found}{changed}")


def _figures(swept: Any) -> dict[str, Any]:
    return {"looked_at": swept.looked_at, "repaired": swept.repairs}
