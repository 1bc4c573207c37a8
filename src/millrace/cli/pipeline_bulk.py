"""`millrace pipeline replay | cancel | archive | unarchive`: act on all jobs that a predicate in Spark SQL means."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import gmtime, strftime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millrace.cli import exits
from millrace.cli.agreed import Agreed
from millrace.cli.output import Cell, Word
from millrace.cli.pipeline_lake import Master, Memory, options_for, require_url, spark_for
from millrace.cli.session import Session
from millrace.cli.text import cut, plural
from millrace.domain.errors import InvalidInput
from millrace.runtime.settings import masked
from millrace.runtime.signals import heard_by

if TYPE_CHECKING:
    from millrace.spark.bulk import BulkOutcome
    from millrace.spark.bulk_deeds import Deed
    from millrace.spark.bulk_manifest import Asked, Manifest, Tally

_LOOK = "Without --yes it only shows what it would do, and asks where there is somebody to ask."
EXAMPLES = {
    "replay": (
        "Examples:\n"
        "  millrace pipeline replay --where \"task = 'send' and error like '%timeout%'\"\n"
        '  millrace pipeline replay --where "died_at > now() - interval 1 day" --rate 50/s --yes\n'
        "  millrace pipeline replay --where \"state = 'completed' and payload_text like '%42%'\" --limit 100\n"
        "  millrace pipeline replay --table dead --where \"fingerprint = '3f2a9c1b44'\" --manifest back.jsonl\n"
        "  millrace pipeline replay --manifest back.jsonl --yes         do what was shown, or go on after a kill",
        _LOOK,
    ),
    "cancel": (
        "Examples:\n"
        "  millrace pipeline cancel --where \"queue = 'mail' and headers['tenant'] = 'acme'\"\n"
        "  millrace pipeline cancel --where \"task = 'resize'\" --also-running --yes",
        _LOOK,
    ),
    "archive": (
        "Examples:\n"
        "  millrace pipeline archive --where \"state = 'dead' and finished_at < now() - interval 30 days\" --yes",
        _LOOK,
    ),
    "unarchive": ("Examples:\n  millrace pipeline unarchive --where \"queue = 'mail'\" --yes", _LOOK),
}


@dataclass
class Choice(Agreed):
    """Which jobs, how many, how fast, and whether at all."""

    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Which jobs: a predicate in Spark SQL.")
    ] = None
    table: Annotated[str, typer.Option("--table", metavar="jobs|dead", help="dead knows fingerprint and attempts.")] = (
        "jobs"
    )
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many, oldest first.")
    ] = None
    rate: Annotated[str | None, typer.Option("--rate", metavar="N/s", help="At most so many: 100/s, 30/m.")] = None
    manifest: Annotated[
        Path | None,
        typer.Option("--manifest", metavar="FILE", help="What is done to which jobs; with one that exists, go on."),
    ] = None


async def replay(session: Session, choice: Choice, master: Master = None, memory: Memory = None) -> int:
    """Bring back all finished jobs that a predicate means.

    Those that died, unless the predicate speaks of `state`. Exit 1 when any was not replayed.
    """
    return await _do(session, choice, _deed("replay"), master, memory)


async def cancel(
    session: Session,
    choice: Choice,
    also_running: Annotated[
        bool, typer.Option("--also-running", help="Ask running jobs to end, too; their handlers are aborted.")
    ] = False,
    master: Master = None,
    memory: Memory = None,
) -> int:
    """Cancel all waiting jobs that a predicate means."""
    return await _do(session, choice, _deed("cancel", also_running), master, memory)


async def archive(session: Session, choice: Choice, master: Master = None, memory: Memory = None) -> int:
    """Put all finished jobs that a predicate means out of sight."""
    return await _do(session, choice, _deed("archive"), master, memory)


async def unarchive(session: Session, choice: Choice, master: Master = None, memory: Memory = None) -> int:
    """Show all archived jobs that a predicate means again."""
    return await _do(session, choice, _deed("unarchive"), master, memory)


def _deed(operation: str, also_running: bool = False) -> Deed:
    from millrace.spark import require_spark

    require_spark()
    from millrace.spark.bulk_deeds import deed_named

    return deed_named(operation, also_running)


async def _do(session: Session, choice: Choice, deed: Deed, master: str | None, memory: str | None) -> int:
    from millrace.spark.bulk import act, outcome_of, store_options
    from millrace.spark.bulk_manifest import opened_manifest
    from millrace.spark.bulk_rate import Pace, read_rate
    from millrace.spark.open import url_from

    choice.check()
    url = url_from(store_options(require_url(session)))
    stop = threading.Event()
    pace = Pace(read_rate(choice.rate), stop.wait)
    with _path(session, choice, deed) as path, opened_manifest(path) as manifest:
        tally = _selected(session, choice, deed, url, manifest, master, memory)
        if not tally.jobs:
            manifest.discard()
        if not tally.jobs or not (tally.ended or _agreed(session, choice, deed, manifest)):
            return _not_done(session, choice, deed, tally)
        with session.output.progress(deed.name, tally.jobs) as tell, heard_by(stop.set):
            await asyncio.to_thread(act, manifest, deed, url, pace, tell)
        return _report(session, deed, tally, outcome_of(tally, deed, path))


@contextmanager
def _path(session: Session, choice: Choice, deed: Deed) -> Iterator[Path]:
    """Where the manifest is: what is only looked at needs none that lasts."""
    if choice.manifest is not None:
        yield choice.manifest
    elif choice.yes or choice.asks(session):
        yield Path(strftime(f"millrace-{deed.name}-%Y%m%dT%H%M%SZ.jsonl", gmtime()))
    else:
        with TemporaryDirectory(prefix="millrace-bulk-") as scratch:
            yield Path(scratch) / "manifest.jsonl"


def _selected(
    session: Session, choice: Choice, deed: Deed, url: str, manifest: Manifest, master: str | None, memory: str | None
) -> Tally:
    """What is to be done, as the manifest has it; if it is new, Spark is asked."""
    from millrace.spark.bulk import planned, resumed, select

    asked = _asked(choice, deed, url, manifest.tally.asked)
    try:
        if asked is None:
            raise InvalidInput(f"which jobs? Say --where \"task = 'x'\"; see: millrace pipeline {deed.name} --help")
        if not resumed(manifest, asked):
            named = options_for(url)
            with spark_for(master, memory) as spark:
                jobs = select(
                    spark,
                    named.get("url"),
                    asked.where,
                    deed.name,
                    table=asked.table,
                    also_running=deed.also_running,
                    url_env=named.get("urlEnv"),
                    push_filters=True,
                )
                manifest.select(asked, planned(jobs, asked.limit))
    finally:
        if not manifest.tally.selected:
            manifest.discard()
    return manifest.tally


def _asked(choice: Choice, deed: Deed, url: str, before: Asked | None) -> Asked | None:
    """With a manifest alone, the same as before is meant."""
    from millrace.spark.bulk_manifest import Asked
    from millrace.spark.bulk_run import instant

    asked = Asked(deed.name, masked(url), choice.where or "", instant(), choice.table, choice.limit, deed.also_running)
    if choice.where is not None:
        return asked
    if before is None:
        return None
    return msgspec.structs.replace(asked, where=before.where, table=before.table, limit=before.limit)


def _agreed(session: Session, choice: Choice, deed: Deed, manifest: Manifest) -> bool:
    if choice.yes:
        return True
    if not choice.asks(session):
        return False
    _show(session, manifest.tally)
    agreed = bool(session.output.confirm(f"{deed.name.capitalize()} {plural(manifest.tally.left, 'job')}?"))
    if not agreed and choice.manifest is None:
        manifest.discard()
    return agreed


def _not_done(session: Session, choice: Choice, deed: Deed, tally: Tally) -> int:
    kept = choice.manifest if tally.jobs else None
    if session.output.json:
        session.output.document(
            {
                **_document(deed, tally, None if kept is None else str(kept)),
                "dry_run": True,
                "sample": [{"id": one.id, "state": one.state, "error": one.error} for one in tally.sample],
            }
        )
        return exits.OK
    if choice.asks(session) and tally.jobs:
        session.output.say("Nothing was changed.")
        return exits.NO
    _show(session, tally)
    if not tally.jobs:
        session.output.say("No job matches.")
        return exits.OK
    session.output.say(f"{plural(tally.left, 'job')} would be {deed.past}. Nothing was changed; --yes does it.")
    if kept is not None:
        session.output.say(f"Exactly these: millrace pipeline {deed.name} --manifest {kept} --yes")
    return exits.OK


def _show(session: Session, tally: Tally) -> None:
    """How many of what; for people also some of them."""
    kinds: list[list[Cell]] = [
        [queue, task, Word(state), count] for (queue, task, state), count in tally.kinds.most_common()
    ]
    session.output.table(("queue", "task", "state", "jobs"), kinds)
    if session.output.terminal and tally.jobs:
        sample: list[list[Cell]] = [
            [one.id, one.task, Word(one.state), None if one.error is None else cut(one.error, 120)]
            for one in tally.sample
        ]
        session.output.table(("id", "task", "state", "error"), sample, title="the oldest of them", spare=("error",))
    if tally.answered:
        session.output.say(f"{tally.answered:,} of {plural(tally.jobs, 'job')} have their answer already.")


def _document(deed: Deed, tally: Tally, manifest: str | None) -> dict[str, Any]:
    return {
        "operation": deed.name,
        "where": None if tally.asked is None else tally.asked.where,
        "matched": tally.jobs,
        "kinds": [
            {"queue": queue, "task": task, "state": state, "jobs": count}
            for (queue, task, state), count in tally.kinds.most_common()
        ],
        "manifest": manifest,
    }


def _report(session: Session, deed: Deed, tally: Tally, outcome: BulkOutcome) -> int:
    if session.output.json:
        told = {"answers": outcome.answers, "done": outcome.done, "refused": outcome.refused, "left": outcome.left}
        session.output.document({**_document(deed, tally, outcome.manifest), "dry_run": False, **told})
    else:
        answers: list[list[Cell]] = [[Word(answer), count] for answer, count in outcome.answers.items()]
        session.output.table(("answer", "jobs"), answers)
        refused = f", {outcome.refused:,} not" if outcome.refused else ""
        session.output.say(f"{plural(outcome.done, 'job')} {deed.past}{refused}; each is in {outcome.manifest}")
    if outcome.stopped:
        session.output.say(
            f"Stopped with {plural(outcome.left, 'job')} left. To go on: millrace pipeline {deed.name} "
            f"--manifest {outcome.manifest} --yes"
        )
        return exits.INTERRUPTED
    return exits.NO if outcome.refused else exits.OK
