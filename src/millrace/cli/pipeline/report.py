"""`millrace pipeline report`: writes a page with charts about a lake."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.paths import path_option
from millrace.cli.pipeline.options import AsOf, Comparing, LakePath, SparkOptions, as_of, instant, options_for, url_of
from millrace.cli.pipeline.views import Objectives, objectives_of
from millrace.cli.session import CommandSession
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.spark.report import Report

EXAMPLES = {
    "report": (
        "Examples:\n"
        "  millrace pipeline report --lake lake --out report.html\n"
        "  millrace pipeline report --lake lake --out day.html --since 1d --title 'Yesterday and today'\n"
        "  millrace pipeline report --lake lake --out report.html --url sqlite:///jobs.db    audited with the store\n"
        "  millrace pipeline report --lake lake --out report.html --objective 'send_receipt start 30s 99%'",
        "One file that needs no network: open it, print it, send it. Exit 0 if the page was written, even if\n"
        "its audit failed; for an exit code, see millrace pipeline audit.",
    )
}
TITLE = "Job history"


@dataclass
class ReportPart:
    """Options for the period that the page covers."""

    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="Start: 7d (ago), or 2026-01-31 (default: the first event)."),
    ] = None
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="WHEN", help="End: 1d (ago), or 2026-01-31 (default: the last event)."),
    ] = None


async def report(
    session: CommandSession,
    part: ReportPart,
    lake: LakePath,
    out: Annotated[Path, path_option("--out", "FILE", "The file to write.")],
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="The heading of the page.")] = TITLE,
    audit: Annotated[
        bool, typer.Option("--audit/--no-audit", help="Check every event, to show whether any job was lost.")
    ] = True,
    store: Comparing = True,
    take: AsOf = None,
    objective: Objectives = None,
    *,
    spark_options: SparkOptions,
) -> int:
    """Write a page with charts about a lake: throughput, backlog, times, failures, workers, cost, audit."""
    began, now = monotonic(), int(time() * 1000)
    _check_target(out)
    past = as_of(take)
    since = None if part.since is None else instant("--since", part.since, now)
    until = None if part.until is None else instant("--until", part.until, now)
    if since is not None and until is not None and since >= until:
        raise InvalidInput(f"--since {part.since} must be earlier than --until {part.until}")
    objectives = objectives_of(objective)
    url = url_of(session) if store else None
    where = None if url is None else options_for(url)
    with spark_options.session() as spark:
        from millrace.spark.lake import Lake, StoreFeed
        from millrace.spark.report import Wanted, html, report_of

        feed = None if where is None else StoreFeed(spark, **where)
        found = report_of(Lake(lake, spark, past), Wanted(since, until, title, audit, feed, objectives))
    size = write_whole(out, html(found))
    _print_result(session, out, found, size, monotonic() - began)
    return exits.OK


def write_whole(out: Path, text: str) -> int:
    """Write the file atomically, so that readers see the old page or the new one, and return its size in bytes."""
    data = text.encode()
    descriptor, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}-")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, out)
    except BaseException:
        os.unlink(name)
        raise
    return len(data)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _check_target(out: Path) -> None:
    """Raise InvalidInput if the file cannot be written. This is called before Spark starts, because its start takes a
    while.
    """
    if out.is_dir():
        raise InvalidInput(f"--out {out} is a folder; name a file, such as {out / 'report.html'}")
    if not out.parent.is_dir():
        raise InvalidInput(f"--out {out}: there is no folder {out.parent}. Create it first")
    if not os.access(out.parent, os.W_OK):
        raise InvalidInput(f"--out {out}: the folder {out.parent} cannot be written to. Choose another folder")


def _print_result(session: CommandSession, out: Path, found: Report, size: int, seconds: float) -> None:
    totals, audit = found.totals, found.audit
    facts: list[tuple[str, Cell]] = [
        ("report", str(out)),
        ("sound", None if audit is None else audit.sound),
        ("accepted", totals.accepted),
        ("completed", totals.completed),
        ("died", totals.died),
        ("retries", totals.retries),
        ("bytes", size),
        ("seconds", round(seconds, 1)),
    ]
    if session.output.json:
        session.output.document(dict(facts))
        return
    session.output.record(facts)
    if found.period is None:
        session.output.say("There is no event in this period, so the page is empty.")
    if audit is not None and not audit.sound:
        session.output.say("The audit found violations; the page names the jobs. See: millrace pipeline audit")
    session.output.hint(f"Open it in a browser: {out.absolute().as_uri()}")
