"""`millrace pipeline compact`: merges the small files of a lake."""

from __future__ import annotations

from time import monotonic

from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.pipeline.options import LakePath, SparkOptions, progress_printer
from millrace.cli.session import CommandSession

EXAMPLES = {
    "compact": (
        "Examples:\n  millrace pipeline compact --lake lake",
        "Every pipeline run merges some small files; this command is for lakes that were filled in very many runs.\n"
        "Replaced files stay on disk for 15 minutes, for current readers.",
    )
}


async def compact(session: CommandSession, lake: LakePath, spark_options: SparkOptions) -> int:
    """Merge the small files of a lake. The contents of its tables do not change."""
    began = monotonic()
    with spark_options.session() as spark:
        from millrace.spark.lake import LakePlace
        from millrace.spark.lake.compaction import compact as fold

        place = LakePlace(lake)
        place.require()
        done = fold(place, spark, on_progress=progress_printer(session))
    assert done is not None
    facts: list[tuple[str, Cell]] = [
        ("run", done.manifest.run),
        ("files_before", done.before),
        ("files_after", done.after),
        ("files", len(done.manifest.paths)),
        ("seconds", round(monotonic() - began, 1)),
    ]
    if session.output.json:
        session.output.document(dict(facts))
        return exits.OK
    session.output.record(facts)
    if not done.before:
        session.output.hint("There were no small files to merge.")
    return exits.OK
