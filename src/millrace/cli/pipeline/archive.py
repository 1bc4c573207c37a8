"""`millrace pipeline compact-archive | expire-archive`: moves archived jobs of a bucket or directory into Parquet
files, and deletes old files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millrace.app.format import instant, plural
from millrace.cli import exits
from millrace.cli.confirm import Confirmation
from millrace.cli.output import At, Cell, Word
from millrace.cli.pipeline.options import SparkOptions, keywords_for, progress_printer
from millrace.cli.pipeline.upkeep import object_url, watched
from millrace.cli.session import CommandSession
from millrace.cli.text import duration
from millrace.store.clock import system_clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.spark.archive.operations import ArchiveOutcome

_CONFIRMATION = "Without --yes it shows what it would do; on a terminal it then asks for confirmation."
EXAMPLES = {
    "compact-archive": (
        "Examples:\n"
        "  millrace pipeline compact-archive --url s3://jobs/shop\n"
        "  millrace pipeline compact-archive --url s3://jobs/shop --older-than 7d --yes\n"
        "  millrace pipeline compact-archive --url file:///var/jobs --limit 100000 --yes",
        _CONFIRMATION,
        "Archive jobs first: millrace archive, or millrace pipeline archive --where …. You can interrupt the command\n"
        "at any time; the next run continues where it stopped.",
    ),
    "expire-archive": (
        "Examples:\n  millrace pipeline expire-archive --url s3://jobs/shop --older-than 365d --yes",
        _CONFIRMATION,
    ),
}
WHY = "retention (keep_completed, keep_dead) keeps its one file or database small"


async def compact_archive(
    session: CommandSession,
    agreed: Confirmation,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Only jobs that finished longer ago than this: 7d.")
    ] = "0s",
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, metavar="N", help="Maximum number of jobs to compact, oldest first."),
    ] = None,
    *,
    spark_options: SparkOptions,
) -> int:
    """Move archived jobs into Parquet files. Spark still reads them in the same table as other jobs."""
    agreed.check()
    age = duration("--older-than", older_than) / 1000
    url = object_url(session, WHY)
    from millrace.spark import upkeep

    if not agreed.yes:
        found = await asyncio.to_thread(upkeep.compactable, older_than=age, limit=limit, **keywords_for(url))
        jobs, not_yet = sum(one.jobs for one in found), sum(one.not_yet for one in found)
        until = max((one.until for one in found if one.until is not None), default=None)
        now = system_clock()
        rows: list[list[Cell]] = [
            [one.queue, Word(one.state), one.jobs, At(one.first, now), At(one.last, now), one.not_yet or None]
            for one in found
        ]
        document = {"found": jobs, "not_yet": not_yet, "until": until, "kinds": msgspec.to_builtins(found)}
        names = ("queue", "state", "jobs", "first", "last", "not yet")
        stay = _not_yet(not_yet, until) or ("" if jobs else _no_jobs(older_than))
        ended = _shown(session, agreed, names, rows, document, "compacted", jobs, stay)
        if ended is not None:
            return ended

    def work(spark: SparkSession, store: dict[str, Any], on_progress: Callable[[str], None]) -> ArchiveOutcome:
        return upkeep.compact(spark, older_than=age, limit=limit, on_progress=on_progress, **store)

    return await _done(session, "compact-archive", url, work, spark_options, _no_jobs(older_than))


async def expire_archive(
    session: CommandSession,
    agreed: Confirmation,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="DURATION", help="Delete files whose jobs all finished longer ago than this."
        ),
    ] = "365d",
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="How long replaced files stay for current readers.")
    ] = "15m",
    *,
    spark_options: SparkOptions,
) -> int:
    """Delete archive files in which all jobs are too old, and merge small files."""
    agreed.check()
    age, kept = duration("--older-than", older_than) / 1000, duration("--grace", grace) / 1000
    url = object_url(session, WHY)
    from millrace.spark import upkeep

    if not agreed.yes:
        found = await asyncio.to_thread(upkeep.expirable, older_than=age, **keywords_for(url))
        now = system_clock()
        rows: list[list[Cell]] = [
            [file.key, file.rows, At(file.first, now), At(file.last, now), file.size] for file in found
        ]
        jobs = sum(file.rows - len(file.void) for file in found)
        document = {"found": jobs, "files": [file.key for file in found]}
        why = "" if jobs else f"In every file, some jobs finished less than {older_than} ago, or there are no files."
        names = ("file", "jobs", "first", "last", "bytes")
        ended = _shown(session, agreed, names, rows, document, "deleted", jobs, why)
        if ended is not None:
            return ended

    def work(spark: SparkSession, store: dict[str, Any], on_progress: Callable[[str], None]) -> ArchiveOutcome:
        return upkeep.expire(spark, older_than=age, grace=kept, on_progress=on_progress, **store)

    return await _done(session, "expire-archive", url, work, spark_options)


def _shown(
    session: CommandSession,
    agreed: Confirmation,
    names: tuple[str, ...],
    rows: list[list[Cell]],
    document: dict[str, Any],
    past: str,
    jobs: int,
    why: str,
) -> int | None:
    """Show what would be done, and on a terminal ask for confirmation. `why` says why there is less to do, or nothing.
    Return None to continue, or an exit code to end.
    """
    if session.output.json:
        session.output.document({"dry_run": True, **document})
        return exits.OK
    session.output.table(names, rows)
    if why:
        session.output.say(why)
    if not jobs:
        session.output.say("There is nothing to do now.")
        return exits.OK
    if agreed.asks(session):
        if session.output.confirm(f"{plural(jobs, 'job')} will be {past}. Continue?"):
            return None
        session.output.say("Nothing was changed.")
        return exits.NO
    session.output.say(f"{plural(jobs, 'job')} would be {past}. Nothing was changed; use --yes to do it.")
    return exits.OK


def _no_jobs(older_than: str) -> str:
    return (
        f"No archived job finished more than {older_than} ago. Archive jobs first, with millrace archive or millrace "
        "pipeline archive, or use a smaller --older-than."
    )


def _not_yet(jobs: int, until: int | None) -> str:
    """Return a message that says why jobs cannot be compacted yet, and from when on they can. Return an empty string if
    `jobs` is 0.
    """
    if not jobs:
        return ""
    if until is None:
        return (
            f"{plural(jobs, 'job')} cannot be compacted: they have changed, or a crash left only their index "
            "keys, which millrace pipeline sweep removes."
        )
    return (
        f"{plural(jobs, 'job')} cannot be compacted yet: their result is still kept (keep_result), or an automatic "
        f"retry is planned. From {instant(until)} on, all of them can be compacted; run the command again then."
    )


async def _done(
    session: CommandSession,
    what: str,
    url: str,
    work: Callable[[SparkSession, dict[str, Any], Callable[[str], None]], ArchiveOutcome],
    spark_options: SparkOptions,
    if_none: str = "",
) -> int:
    began = monotonic()
    store = keywords_for(url)
    with spark_options.session() as spark:
        outcome = await watched(session, spark, what, lambda: work(spark, store, progress_printer(session)))
    facts = {**msgspec.to_builtins(outcome), "seconds": round(monotonic() - began, 1)}
    if session.output.json:
        session.output.document({"dry_run": False, **facts})
    else:
        shown = [[name, count] for name, count in facts.items() if count and name != "until"]
        session.output.table(("figure", "count"), shown)
        if if_none and not outcome.found:
            session.output.say(if_none)
        if stay := _not_yet(outcome.not_yet, outcome.until):
            session.output.say(stay)
        if outcome.lived_on:
            session.output.say(f"{plural(outcome.lived_on, 'job')} changed during the run and stayed in the store.")
    return exits.OK
