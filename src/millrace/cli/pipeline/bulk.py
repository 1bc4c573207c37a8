"""`millrace pipeline replay | cancel | archive | unarchive | delete`: acts on all jobs that match a predicate."""

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

from millrace.app.format import instant, plural
from millrace.app.settings import masked
from millrace.cli import exits
from millrace.cli.confirm import Confirmation
from millrace.cli.output import Cell, Word
from millrace.cli.paths import path_option
from millrace.cli.pipeline.options import SparkOptions, keywords_for, require_url
from millrace.cli.session import CommandSession
from millrace.cli.text import cut
from millrace.domain.errors import InvalidInput
from millrace.store.clock import system_clock
from millrace.views.bulk import BulkAction
from millrace.worker.signals import on_stop_signal

if TYPE_CHECKING:
    from millrace.spark.bulk import BulkOutcome
    from millrace.spark.bulk_manifest import BulkManifest, BulkRequest, ManifestTally

_CONFIRMATION = "Without --yes it shows what it would do; on a terminal it then asks for confirmation."
EXAMPLES = {
    "replay": (
        "Examples:\n"
        "  millrace pipeline replay --where \"task = 'send' and error like '%timeout%'\"\n"
        '  millrace pipeline replay --where "died_at > now() - interval 1 day" --rate 50/s --yes\n'
        "  millrace pipeline replay --where \"state = 'completed' and payload_text like '%42%'\" --limit 100\n"
        "  millrace pipeline replay --table dead --where \"fingerprint = '3f2a9c1b44'\" --manifest back.jsonl\n"
        "  millrace pipeline replay --manifest back.jsonl --yes         do what was shown, or continue after a crash",
        _CONFIRMATION,
    ),
    "cancel": (
        "Examples:\n"
        "  millrace pipeline cancel --where \"queue = 'mail' and headers['tenant'] = 'acme'\"\n"
        "  millrace pipeline cancel --where \"task = 'resize'\" --also-running --yes",
        _CONFIRMATION,
    ),
    "archive": (
        "Examples:\n"
        "  millrace pipeline archive --where \"state = 'dead' and finished_at < now() - interval 30 days\" --yes",
        _CONFIRMATION,
    ),
    "unarchive": ("Examples:\n  millrace pipeline unarchive --where \"queue = 'mail'\" --yes", _CONFIRMATION),
    "delete": (
        "Examples:\n"
        "  millrace pipeline delete --table dead --where \"fingerprint = '3f2a9c1b44'\"\n"
        "  millrace pipeline delete --where \"state = 'dead' and died_at < now() - interval 30 days\" --yes",
        _CONFIRMATION,
    ),
}


@dataclass
class PredicateChoice(Confirmation):
    """Options that select jobs, limit their number and rate, and confirm the action."""

    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Which jobs: a predicate in Spark SQL.")
    ] = None
    table: Annotated[
        str,
        typer.Option("--table", metavar="jobs|dead", help="Table to select from; dead has fingerprint and attempts."),
    ] = "jobs"
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, metavar="N", help="Maximum number of jobs to change, oldest first."),
    ] = None
    rate: Annotated[str | None, typer.Option("--rate", metavar="N/s", help="Maximum rate: 100/s, 30/m.")] = None
    manifest: Annotated[
        Path | None,
        path_option("--manifest", "FILE", "File that records the selected jobs; an existing one is continued."),
    ] = None


async def replay(session: CommandSession, choice: PredicateChoice, spark_options: SparkOptions) -> int:
    """Run all finished jobs that match a predicate again.

    Only dead jobs are replayed, unless the predicate uses `state`. Exit 1 if a job was not replayed.
    """
    return await _do(session, choice, _action("replay"), spark_options)


async def cancel(
    session: CommandSession,
    choice: PredicateChoice,
    also_running: Annotated[
        bool, typer.Option("--also-running", help="Also cancel running jobs; their handlers are aborted.")
    ] = False,
    *,
    spark_options: SparkOptions,
) -> int:
    """Cancel all waiting jobs that match a predicate."""
    return await _do(session, choice, _action("cancel", also_running), spark_options)


async def archive(session: CommandSession, choice: PredicateChoice, spark_options: SparkOptions) -> int:
    """Hide all finished jobs that match a predicate from lists."""
    return await _do(session, choice, _action("archive"), spark_options)


async def unarchive(session: CommandSession, choice: PredicateChoice, spark_options: SparkOptions) -> int:
    """Make all archived jobs that match a predicate visible again."""
    return await _do(session, choice, _action("unarchive"), spark_options)


async def delete(session: CommandSession, choice: PredicateChoice, spark_options: SparkOptions) -> int:
    """Permanently delete all finished jobs that match a predicate. This cannot be undone."""
    return await _do(session, choice, _action("delete"), spark_options)


def _action(verb: str, also_running: bool = False) -> BulkAction:
    from millrace.spark import require_spark

    require_spark()
    from millrace.spark.bulk import action_named

    return action_named(verb, also_running)


async def _do(session: CommandSession, choice: PredicateChoice, action: BulkAction, spark_options: SparkOptions) -> int:
    from millrace.spark.bulk import act, outcome_of, store_options
    from millrace.spark.bulk_manifest import opened_manifest
    from millrace.spark.bulk_run import Pace, read_rate
    from millrace.spark.open import url_from

    choice.check()
    url = url_from(store_options(require_url(session)))
    stop = threading.Event()
    pace = Pace(read_rate(choice.rate), stop.wait)
    with _path(session, choice, action) as path, opened_manifest(path) as manifest:
        tally = _selected(session, choice, action, url, manifest, spark_options)
        if not tally.jobs:
            manifest.discard()
        if not tally.jobs or not (tally.ended or _confirmed(session, choice, action, manifest)):
            return _not_done(session, choice, action, tally)
        with session.output.progress(action.verb, tally.jobs) as show, on_stop_signal(stop.set):
            await asyncio.to_thread(act, manifest, action, url, pace, show)
        return _report(session, action, tally, outcome_of(tally, action, path))


@contextmanager
def _path(session: CommandSession, choice: PredicateChoice, action: BulkAction) -> Iterator[Path]:
    """Yield the path of the manifest. If --manifest is not given, this is a new file in the current directory, or a
    temporary file for a dry run.
    """
    if choice.manifest is not None:
        yield choice.manifest
    elif choice.yes or choice.asks(session):
        yield Path(strftime(f"millrace-{action.verb}-%Y%m%dT%H%M%SZ.jsonl", gmtime()))
    else:
        with TemporaryDirectory(prefix="millrace-bulk-") as scratch:
            yield Path(scratch) / "manifest.jsonl"


def _selected(
    session: CommandSession,
    choice: PredicateChoice,
    action: BulkAction,
    url: str,
    manifest: BulkManifest,
    spark_options: SparkOptions,
) -> ManifestTally:
    """Return the counts of the jobs in the manifest. If the manifest is new, Spark selects the jobs first."""
    from millrace.spark.bulk import planned, resumed, select

    request = _requested(choice, action, url, manifest.tally.request)
    try:
        if request is None:
            raise InvalidInput(f"which jobs? Use --where \"task = 'x'\"; see: millrace pipeline {action.verb} --help")
        if not resumed(manifest, request):
            store = keywords_for(url)
            with spark_options.session() as spark:
                jobs = select(
                    spark,
                    where=request.where,
                    operation=action.verb,
                    table=request.table,
                    also_running=action.also_running,
                    push_filters=True,
                    **store,
                )
                manifest.select(request, planned(jobs, request.limit))
    finally:
        if not manifest.tally.selected:
            manifest.discard()
    return manifest.tally


def _requested(choice: PredicateChoice, action: BulkAction, url: str, before: BulkRequest | None) -> BulkRequest | None:
    """Return the request that the options describe. Without --where, it has the predicate, table and limit of `before`,
    the request in the existing manifest. Return None if there is neither.
    """
    from millrace.spark.bulk_manifest import BulkRequest

    request = BulkRequest(
        action.verb,
        masked(url),
        choice.where or "",
        instant(system_clock()),
        choice.table,
        choice.limit,
        action.also_running,
    )
    if choice.where is not None:
        return request
    if before is None:
        return None
    return msgspec.structs.replace(request, where=before.where, table=before.table, limit=before.limit)


def _confirmed(session: CommandSession, choice: PredicateChoice, action: BulkAction, manifest: BulkManifest) -> bool:
    if choice.yes:
        return True
    if not choice.asks(session):
        return False
    _show(session, manifest.tally)
    agreed = bool(session.output.confirm(f"{action.verb.capitalize()} {plural(manifest.tally.left, 'job')}?"))
    if not agreed and choice.manifest is None:
        manifest.discard()
    return agreed


def _not_done(session: CommandSession, choice: PredicateChoice, action: BulkAction, tally: ManifestTally) -> int:
    kept = choice.manifest if tally.jobs else None
    if session.output.json:
        session.output.document(
            {
                **_document(action, tally, None if kept is None else str(kept)),
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
    session.output.say(f"{plural(tally.left, 'job')} would be {action.past}. Nothing was changed; use --yes to do it.")
    if kept is not None:
        session.output.say(f"To do exactly this: millrace pipeline {action.verb} --manifest {kept} --yes")
    return exits.OK


def _show(session: CommandSession, tally: ManifestTally) -> None:
    """Print the number of jobs by queue, task and state, and on a terminal also some of the jobs."""
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
        session.output.say(f"{tally.answered:,} of {plural(tally.jobs, 'job')} are done already.")


def _document(action: BulkAction, tally: ManifestTally, manifest: str | None) -> dict[str, Any]:
    return {
        "operation": action.verb,
        "where": None if tally.request is None else tally.request.where,
        "matched": tally.jobs,
        "kinds": [
            {"queue": queue, "task": task, "state": state, "jobs": count}
            for (queue, task, state), count in tally.kinds.most_common()
        ],
        "manifest": manifest,
    }


def _report(session: CommandSession, action: BulkAction, tally: ManifestTally, outcome: BulkOutcome) -> int:
    if session.output.json:
        figures = {"answers": outcome.answers, "done": outcome.done, "refused": outcome.refused, "left": outcome.left}
        session.output.document({**_document(action, tally, outcome.manifest), "dry_run": False, **figures})
    else:
        answers: list[list[Cell]] = [[Word(answer), count] for answer, count in outcome.answers.items()]
        session.output.table(("answer", "jobs"), answers)
        refused = f", {outcome.refused:,} refused" if outcome.refused else ""
        done = f"{plural(outcome.done, 'job')} {action.past}{refused}"
        session.output.say(f"{done}; the manifest {outcome.manifest} lists each job")
    if outcome.stopped:
        session.output.say(
            f"Stopped with {plural(outcome.left, 'job')} left. To continue: millrace pipeline {action.verb} "
            f"--manifest {outcome.manifest} --yes"
        )
        return exits.INTERRUPTED
    return exits.NO if outcome.refused else exits.OK
