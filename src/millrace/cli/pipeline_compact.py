"""`millrace pipeline compact`: few large files instead of many small ones."""

from __future__ import annotations

from time import monotonic

from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.pipeline_lake import LakePath, Master, Memory, spark_for, teller
from millrace.cli.session import Session

EXAMPLES = {
    "compact": (
        "Examples:\n  millrace pipeline compact --lake lake",
        "Runs of the pipeline fold small files by the way, so this is for lakes that were filled in very many runs.\n"
        "What it replaces stays on the disk for a quarter of an hour, for those who are reading it.",
    )
}


async def compact(session: Session, lake: LakePath, master: Master = None, memory: Memory = None) -> int:
    """Fold a lake's small files into few. Its tables say the same afterwards."""
    began = monotonic()
    with spark_for(master, memory) as spark:
        from millrace.spark.lake import Place
        from millrace.spark.lake.compaction import compact as fold

        place = Place(lake)
        place.require()
        done = fold(place, spark, tell=teller(session))
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
        session.output.hint("There was nothing small enough to fold.")
    return exits.OK
