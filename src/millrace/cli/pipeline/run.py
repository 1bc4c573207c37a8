"""`millrace pipeline run`: copies new events from the store into a lake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic, time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.app.format import moment, plural
from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.pipeline.options import SERIES, LakePath, SparkOptions, options_for, progress_printer, require_url
from millrace.cli.session import CommandSession
from millrace.cli.text import duration
from millrace.domain.errors import InvalidInput
from millrace.worker.signals import on_stop_signal

if TYPE_CHECKING:
    from millrace.spark.lake.maintenance import Retained
    from millrace.spark.lake.place import LakeGap
    from millrace.spark.lake.taking import Taken

    OneRun = Callable[[], tuple[Taken, Retained | None]]

PAUSE = "10s"

EXAMPLES = {
    "run": (
        "Examples:\n"
        "  millrace pipeline run --url sqlite:///jobs.db --lake lake\n"
        "  millrace pipeline run --lake lake --since 7d                 start with the last week\n"
        "  millrace pipeline run --lake lake --keep-events 90d          and drop older events\n"
        "  millrace pipeline run --lake s3://bucket/lake --follow       until Ctrl-C",
        "Run it as often as you like, from cron or by hand: each run copies new events. You can interrupt it at any\n"
        "time; the next run continues where it stopped.",
    )
}


@dataclass
class Keep:
    """Options that say how long the lake keeps its tables. Retention drops only whole days."""

    keep_events: Annotated[
        str | None, typer.Option("--keep-events", metavar="DURATION", help="Drop events of days older than this.")
    ] = None
    keep_attempts: Annotated[
        str | None, typer.Option("--keep-attempts", metavar="DURATION", help="Drop attempts of days older than this.")
    ] = None
    keep_series: Annotated[
        str | None, typer.Option("--keep-series", metavar="DURATION", help="Drop time series of days older than this.")
    ] = None
    keep_payloads: Annotated[
        str | None, typer.Option("--keep-payloads", metavar="DURATION", help="Drop payloads of days older than this.")
    ] = None


async def run(
    session: CommandSession,
    keep: Keep,
    lake: LakePath,
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="Where a new lake starts: 7d (ago), or 2026-01-31.")
    ] = None,
    max_events: Annotated[
        int | None,
        typer.Option("--max-events", min=1, metavar="N", help="Approximate maximum number of events to copy."),
    ] = None,
    accept_gap: Annotated[
        bool, typer.Option("--accept-gap", help="Continue, even if retention removed events that were not copied yet.")
    ] = False,
    moved: Annotated[bool, typer.Option("--moved", help="The store of this lake has a new address.")] = False,
    groups: Annotated[
        bool | None,
        typer.Option(
            "--groups/--no-groups", help="Look up the groups of jobs (default: if the store has at most 200,000 jobs)."
        ),
    ] = None,
    payloads: Annotated[
        str | None,
        typer.Option("--payloads", metavar="TASKS", help="Also copy payloads and results of these tasks, or of `all`."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Continue until interrupted (Ctrl-C).")] = False,
    pause: Annotated[
        str, typer.Option("--pause", metavar="DURATION", help="With --follow: how long to wait for new events.")
    ] = PAUSE,
    *,
    spark_options: SparkOptions,
) -> int:
    """Copy new events from the store into a lake of Delta tables."""
    url = require_url(session)
    seconds = duration("--pause", pause) / 1000
    lengths = _lengths(keep)
    tasks = None if payloads is None else _tasks(payloads)
    begin = None if since is None else moment("--since", since, int(time() * 1000))
    where = options_for(url)
    began = monotonic()
    with spark_options.session() as spark:
        from millrace.spark.lake import LakePlace, StoreFeed, TakeRequest, take
        from millrace.spark.lake.maintenance import retain
        from millrace.spark.shadow.payloads import keep_payloads

        place, feed = LakePlace(lake), StoreFeed(spark, **where)
        request = TakeRequest(max_events, begin, accept_gap, moved, groups)

        def one_run() -> tuple[Taken, Retained | None]:
            taken = take(place, spark, feed, request, progress_printer(session))
            if tasks is not None:
                keep_payloads(place, spark, feed, tasks, progress_printer(session))
            return taken, retain(place, lengths, int(time() * 1000)) if lengths else None

        if follow:
            taken, retained = await _followed(session, one_run, seconds)
        else:
            taken, retained = one_run()
    _report(session, lake, taken, retained, monotonic() - began)
    return exits.OK


async def _followed(session: CommandSession, one_run: OneRun, pause: float) -> tuple[Taken, Retained | None]:
    """Run again and again until a signal to stop. Return the sums of all runs. A run is not interrupted in the middle
    of a take, so this may last some seconds.
    """
    stop = asyncio.Event()
    events = takes = rows = 0
    gaps: list[LakeGap] = []
    with on_stop_signal(stop.set):
        while True:
            taken, retained = await asyncio.to_thread(one_run)
            events, takes, gaps = events + taken.events, takes + taken.takes, gaps + taken.gaps
            rows += 0 if retained is None else retained.rows
            if taken.takes and taken.lake is not None and not session.output.json:
                session.output.say(f"take {taken.lake.state.take}: {plural(taken.events, 'event')}")
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause)
            if stop.is_set():
                break
    taken.events, taken.takes, taken.gaps = events, takes, gaps
    return taken, None if retained is None else replace(retained, rows=rows)


def _lengths(keep: Keep) -> dict[str, int]:
    """Return the retention of each table in milliseconds, for the options that were given. Raises InvalidInput if one
    is shorter than a day.
    """
    flags: dict[str, tuple[str | None, tuple[str, ...]]] = {
        "--keep-events": (keep.keep_events, ("events",)),
        "--keep-attempts": (keep.keep_attempts, ("attempts",)),
        "--keep-series": (keep.keep_series, SERIES),
        "--keep-payloads": (keep.keep_payloads, ("payloads",)),
    }
    found: dict[str, int] = {}
    for flag, (text, tables) in flags.items():
        if text is not None:
            length = duration(flag, text)
            if length < 86_400_000:
                raise InvalidInput(f"{flag} {text} is less than a day, and whole days are dropped. Use 1d or more")
            found |= dict.fromkeys(tables, length)
    return found


def _tasks(text: str) -> frozenset[str]:
    """Return the tasks of `--payloads`; an empty set for all."""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise InvalidInput("--payloads needs the names of tasks, or `all`: --payloads send,resize")
    return frozenset() if names == {"all"} else names


def _report(session: CommandSession, lake: str, taken: Taken, retained: Retained | None, seconds: float) -> None:
    found = taken.lake if retained is None else retained.lake
    state = None if found is None else found.state
    document: dict[str, Any] = {
        "lake": lake,
        "take": None if state is None else state.take,
        "taken": taken.events,
        "events": 0 if state is None else state.taken,
        "lost": sum(gap.lost for gap in taken.gaps),
        "cursor": None if state is None else state.cursor,
        "dropped_rows": 0 if retained is None else retained.rows,
        "files": 0 if found is None else found.files,
        "bytes": 0 if found is None else found.bytes,
        "seconds": round(seconds, 1),
    }
    if session.output.json:
        session.output.document(document)
        return
    rows: list[tuple[str, Cell]] = list(document.items())
    session.output.record(rows)
    for gap in taken.gaps:
        session.output.say(
            f"a gap was accepted: {plural(gap.lost, 'event')} were removed by retention before they were copied"
        )
    if not taken.events:
        session.output.hint("There are no new events since the last run.")
    session.output.hint(f"To see the result: millrace pipeline report --lake {lake} --out report.html")
