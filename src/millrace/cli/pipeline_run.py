"""`millrace pipeline run`: take what is new in the history into a lake."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.pipeline_lake import LakePath, Master, Memory, options_for, require_url, spark_for, teller
from millrace.cli.session import Session
from millrace.cli.text import duration, moment, plural
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.spark.lake.retention import Retained
    from millrace.spark.lake.taking import Taken

EXAMPLES = {
    "run": (
        "Examples:\n"
        "  millrace pipeline run --url sqlite:///jobs.db --lake lake\n"
        "  millrace pipeline run --lake lake --since 7d                 begin with the last week\n"
        "  millrace pipeline run --lake lake --keep-events 90d          and drop what is older",
        "Run it as often as you like, from cron or by hand: each run takes what is new. It may be killed at any time;\n"
        "the next one goes on from what was finished.",
    )
}


@dataclass
class Keep:
    """How long tables are kept; whole days are dropped."""

    keep_events: Annotated[
        str | None, typer.Option("--keep-events", metavar="DURATION", help="Drop events of days older than this.")
    ] = None
    keep_attempts: Annotated[
        str | None, typer.Option("--keep-attempts", metavar="DURATION", help="Drop attempts of days older than this.")
    ] = None
    keep_series: Annotated[
        str | None, typer.Option("--keep-series", metavar="DURATION", help="Drop time series of days older than this.")
    ] = None


async def run(
    session: Session,
    keep: Keep,
    lake: LakePath,
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="Begin a new lake here: 7d (ago), or 2026-01-31.")
    ] = None,
    max_events: Annotated[
        int | None, typer.Option("--max-events", min=1, metavar="N", help="Take at most about so many.")
    ] = None,
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Go on, though the store's retention removed events not taken yet.")
    ] = False,
    moved: Annotated[bool, typer.Option("--moved", help="The store of this lake has a new address.")] = False,
    groups: Annotated[
        bool | None,
        typer.Option("--groups/--no-groups", help="Look up the groups of jobs; by default where the store is small."),
    ] = None,
    master: Master = None,
    memory: Memory = None,
) -> int:
    """Take what is new in the store's history into a lake of Parquet files."""
    url = require_url(session)
    lengths = _lengths(keep)
    begin = None if since is None else moment("--since", since, int(time() * 1000))
    where = options_for(url)
    began = monotonic()
    with spark_for(master, memory) as spark:
        from millrace.spark.lake import Asked, Place, StoreFeed, take
        from millrace.spark.lake.retention import retain

        place = Place(lake)
        asked = Asked(max_events, begin, accept_gap, moved, groups)
        taken = take(place, spark, StoreFeed(spark, **where), asked, teller(session))
        retained = retain(place, lengths, int(time() * 1000)) if lengths else None
    _report(session, str(lake), taken, retained, monotonic() - began)
    return exits.OK


def _lengths(keep: Keep) -> dict[str, int]:
    """Milliseconds by table."""
    from millrace.cli.pipeline_lake import SERIES

    asked: dict[str, tuple[str | None, tuple[str, ...]]] = {
        "--keep-events": (keep.keep_events, ("events",)),
        "--keep-attempts": (keep.keep_attempts, ("attempts",)),
        "--keep-series": (keep.keep_series, SERIES),
    }
    found: dict[str, int] = {}
    for flag, (text, tables) in asked.items():
        if text is not None:
            length = duration(flag, text)
            if length < 86_400_000:
                raise InvalidInput(f"{flag} {text} is less than a day, and whole days are dropped. Say 1d or more")
            found |= dict.fromkeys(tables, length)
    return found


def _report(session: Session, lake: str, taken: Taken, retained: Retained | None, seconds: float) -> None:
    manifest = taken.manifest if retained is None else retained.manifest
    document: dict[str, Any] = {
        "lake": lake,
        "run": None if manifest is None else manifest.run,
        "taken": taken.events,
        "events": 0 if manifest is None else manifest.taken,
        "lost": sum(gap.lost for gap in taken.gaps),
        "cursor": None if manifest is None else manifest.cursor,
        "dropped_rows": 0 if retained is None else retained.rows,
        "files": 0 if manifest is None else len(manifest.paths),
        "bytes": 0 if manifest is None else sum(file.bytes for files in manifest.files.values() for file in files),
        "seconds": round(seconds, 1),
    }
    if session.output.json:
        session.output.document(document)
        return
    rows: list[tuple[str, Cell]] = list(document.items())
    session.output.record(rows)
    for gap in taken.gaps:
        session.output.say(f"a gap was accepted: {plural(gap.lost, 'event')} were trimmed before they were taken")
    if not taken.events:
        session.output.hint("Nothing new has happened since the last run.")
    session.output.hint(f"See what came of it: millrace pipeline report --lake {lake} --out report.html")
