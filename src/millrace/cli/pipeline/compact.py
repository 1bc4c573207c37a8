"""`millrace pipeline compact`: merges the small files of a lake."""

from __future__ import annotations

from time import monotonic

from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.pipeline.options import LakePath, progress_printer
from millrace.cli.session import CommandSession

EXAMPLES = {
    "compact": (
        "Examples:\n  millrace pipeline compact --lake lake",
        "Every pipeline run merges some small files; this command is for lakes that were filled in very many runs.\n"
        "Replaced files are kept for seven days, for current readers and for --as-of. It needs no Spark.",
    )
}


async def compact(session: CommandSession, lake: LakePath) -> int:
    """Merge the small files of a lake. The contents of its tables do not change."""
    from millrace.spark import require_spark

    began = monotonic()
    require_spark()
    from millrace.spark.lake import LakePlace
    from millrace.spark.lake.maintenance import compact as merge

    done = merge(LakePlace(lake), progress_printer(session))
    facts: list[tuple[str, Cell]] = [
        ("take", done.lake.state.take),
        ("files_before", done.before),
        ("files_after", done.after),
        ("files", done.lake.files),
        ("deleted", done.deleted),
        ("seconds", round(monotonic() - began, 1)),
    ]
    if session.output.json:
        session.output.document(dict(facts))
        return exits.OK
    session.output.record(facts)
    if not done.before:
        session.output.hint("There were no small files to merge.")
    return exits.OK
