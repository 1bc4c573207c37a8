"""`millrace pipeline report`: a lake as one page to look at."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.pipeline_lake import Comparing, LakePath, Master, Memory, options_for, spark_for, url_of
from millrace.cli.session import Session
from millrace.cli.text import moment
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.spark.report import Report

EXAMPLES = {
    "report": (
        "Examples:\n"
        "  millrace pipeline report --lake lake --out report.html\n"
        "  millrace pipeline report --lake lake --out day.html --since 1d --title 'Yesterday and today'\n"
        "  millrace pipeline report --lake lake --out report.html --url sqlite:///jobs.db    audited against the store",
        "One file that needs no network: open it, print it, send it. It exits 0 when the page was written, also where\n"
        "the audit on it is red; for an exit code, see millrace pipeline audit.",
    )
}
TITLE = "Job history"


@dataclass
class Part:
    """What of the lake the page is about."""

    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="From here: 7d (ago), or 2026-01-31. Else from the first."),
    ] = None
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="WHEN", help="Up to here: 1d (ago), or 2026-01-31. Else to the last."),
    ] = None


async def report(
    session: Session,
    part: Part,
    lake: LakePath,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write.", show_default=False)],
    title: Annotated[str, typer.Option("--title", metavar="TEXT", help="The heading of the page.")] = TITLE,
    audit: Annotated[
        bool, typer.Option("--audit/--no-audit", help="Walk every event, to show whether every job was conserved.")
    ] = True,
    store: Comparing = True,
    master: Master = None,
    memory: Memory = None,
) -> int:
    """Write a page with plots of what is in a lake: throughput, times, failures, workers, fairness, audit."""
    began, now = monotonic(), int(time() * 1000)
    _refuse_place(out)
    since = None if part.since is None else _instant("--since", part.since, now)
    until = None if part.until is None else _instant("--until", part.until, now)
    if since is not None and until is not None and since >= until:
        raise InvalidInput(f"--since {part.since} must be earlier than --until {part.until}")
    url = url_of(session) if store else None
    where = None if url is None else options_for(url)
    with spark_for(master, memory) as spark:
        from millrace.spark.lake import Lake, StoreFeed
        from millrace.spark.report import Wanted, html, report_of

        feed = None if where is None else StoreFeed(spark, **where)
        found = report_of(Lake(lake, spark), Wanted(since, until, title, audit, feed))
    size = write_whole(out, html(found))
    _tell(session, out, found, size, monotonic() - began)
    return exits.OK


def write_whole(out: Path, text: str) -> int:
    """All of it or nothing: whoever looks meanwhile sees the page as it was."""
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


def _refuse_place(out: Path) -> None:
    """Before Spark is started, which takes a while."""
    if out.is_dir():
        raise InvalidInput(f"--out {out} is a folder; name a file, such as {out / 'report.html'}")
    if not out.parent.is_dir():
        raise InvalidInput(f"--out {out}: there is no folder {out.parent}. Make it first")
    if not os.access(out.parent, os.W_OK):
        raise InvalidInput(f"--out {out}: the folder {out.parent} cannot be written to. Name another one")


def _instant(flag: str, text: str, now: int) -> datetime:
    at = moment(flag, text, now)
    try:
        return datetime.fromtimestamp(at / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        raise InvalidInput(f"{flag} {text} is out of the calendar") from None


def _tell(session: Session, out: Path, found: Report, size: int, seconds: float) -> None:
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
        session.output.say("The audit found broken promises; the page names the jobs. See: millrace pipeline audit")
    session.output.hint(f"Open it in a browser: {out.absolute().as_uri()}")
