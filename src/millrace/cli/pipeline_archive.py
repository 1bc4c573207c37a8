"""`millrace pipeline compact-archive | expire-archive`: archived jobs as Parquet in their own bucket or directory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millrace.cli import exits
from millrace.cli.agreed import Agreed
from millrace.cli.output import At, Cell, Word
from millrace.cli.pipeline_lake import Master, Memory, options_for, spark_for, teller
from millrace.cli.pipeline_upkeep import object_url, watched
from millrace.cli.session import Session
from millrace.cli.text import duration, plural
from millrace.store.clock import system_clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.spark.archive import ArchiveOutcome

_LOOK = "Without --yes it only shows what it would do, and asks where there is somebody to ask."
EXAMPLES = {
    "compact-archive": (
        "Examples:\n"
        "  millrace pipeline compact-archive --url s3://jobs/shop\n"
        "  millrace pipeline compact-archive --url s3://jobs/shop --older-than 7d --yes\n"
        "  millrace pipeline compact-archive --url file:///var/jobs --limit 100000 --yes",
        _LOOK,
        "Jobs are archived first: millrace archive, or millrace pipeline archive --where …. It may be killed at any\n"
        "time; the next one goes on from what was finished.",
    ),
    "expire-archive": (
        "Examples:\n  millrace pipeline expire-archive --url s3://jobs/shop --older-than 365d --yes",
        _LOOK,
    ),
}
WHY = "retention (keep_completed, keep_dead) keeps its one file or database small"


async def compact_archive(
    session: Session,
    agreed: Agreed,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Only jobs that finished longer ago: 7d.")
    ] = "0s",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many, oldest first.")
    ] = None,
    master: Master = None,
    memory: Memory = None,
) -> int:
    """Put archived jobs into Parquet files, read as one table with the others."""
    agreed.check()
    age = duration("--older-than", older_than) / 1000
    url = object_url(session, WHY)
    from millrace.spark import upkeep

    if not agreed.yes:
        named = options_for(url)
        found = await asyncio.to_thread(upkeep.compactable, named.get("url"), age, limit, url_env=named.get("urlEnv"))
        jobs = sum(one.jobs for one in found)
        now = system_clock()
        rows: list[list[Cell]] = [
            [one.queue, Word(one.state), one.jobs, At(one.first, now), At(one.last, now)] for one in found
        ]
        document = {"found": jobs, "kinds": msgspec.to_builtins(found)}
        ended = _shown(session, agreed, ("queue", "state", "jobs", "first", "last"), rows, document, "compacted", jobs)
        if ended is not None:
            return ended

    def work(spark: SparkSession, store: dict[str, Any], tell: Callable[[str], None]) -> ArchiveOutcome:
        return upkeep.compact(spark, older_than=age, limit=limit, tell=tell, **store)

    return await _done(session, "compact-archive", url, work, master, memory)


async def expire_archive(
    session: Session,
    agreed: Agreed,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Files all of whose jobs finished longer ago.")
    ] = "365d",
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="How long files stay for those who are reading them.")
    ] = "15m",
    master: Master = None,
    memory: Memory = None,
) -> int:
    """Give up compacted jobs past their time, file by file, and merge small files."""
    agreed.check()
    age, kept = duration("--older-than", older_than) / 1000, duration("--grace", grace) / 1000
    url = object_url(session, WHY)
    from millrace.spark import upkeep

    if not agreed.yes:
        named = options_for(url)
        found = await asyncio.to_thread(upkeep.expirable, named.get("url"), age, url_env=named.get("urlEnv"))
        now = system_clock()
        rows: list[list[Cell]] = [
            [file.key, file.rows, At(file.first, now), At(file.last, now), file.size] for file in found
        ]
        jobs = sum(file.rows - len(file.void) for file in found)
        document = {"found": jobs, "files": [file.key for file in found]}
        ended = _shown(session, agreed, ("file", "jobs", "first", "last", "bytes"), rows, document, "given up", jobs)
        if ended is not None:
            return ended

    def work(spark: SparkSession, store: dict[str, Any], tell: Callable[[str], None]) -> ArchiveOutcome:
        return upkeep.expire(spark, older_than=age, grace=kept, tell=tell, **store)

    return await _done(session, "expire-archive", url, work, master, memory)


def _shown(
    session: Session,
    agreed: Agreed,
    names: tuple[str, ...],
    rows: list[list[Cell]],
    document: dict[str, Any],
    past: str,
    jobs: int,
) -> int | None:
    """Show what would be done; an exit code unless somebody agrees to it."""
    if session.output.json:
        session.output.document({"dry_run": True, **document})
        return exits.OK
    session.output.table(names, rows)
    if not rows:
        session.output.say("There is nothing to do.")
        return exits.OK
    if agreed.asks(session):
        if session.output.confirm(f"{plural(jobs, 'job')} will be {past}. Go on?"):
            return None
        session.output.say("Nothing was changed.")
        return exits.NO
    session.output.say(f"{plural(jobs, 'job')} would be {past}. Nothing was changed; --yes does it.")
    return exits.OK


async def _done(
    session: Session,
    what: str,
    url: str,
    work: Callable[[SparkSession, dict[str, Any], Callable[[str], None]], ArchiveOutcome],
    master: str | None,
    memory: str | None,
) -> int:
    began = monotonic()
    named = options_for(url)
    store = {"url": named.get("url"), "url_env": named.get("urlEnv")}
    with spark_for(master, memory) as spark:
        outcome = await watched(session, spark, what, lambda: work(spark, store, teller(session)))
    facts = {**msgspec.to_builtins(outcome), "seconds": round(monotonic() - began, 1)}
    if session.output.json:
        session.output.document({"dry_run": False, **facts})
    else:
        session.output.table(("figure", "count"), [[name, count] for name, count in facts.items() if count])
        if outcome.lived_on:
            session.output.say(f"{plural(outcome.lived_on, 'job')} changed meanwhile and stayed in the store.")
    return exits.OK
