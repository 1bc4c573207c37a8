"""`millrace pipeline drain`: runs a backlog of jobs on Spark's executors."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from millrace.app.format import plural
from millrace.cli import exits
from millrace.cli.output import Cell, Word
from millrace.cli.pipeline.options import SparkOptions, keywords_for, require_url
from millrace.cli.session import CommandSession
from millrace.domain.errors import InvalidInput
from millrace.worker.signals import on_stop_signal

if TYPE_CHECKING:
    from millrace.app.app import App
    from millrace.app.spark_drain import Drain, DrainKeywords, DrainOutcome, DrainProgress

EXAMPLES = {
    "drain": (
        "Examples:\n"
        "  millrace pipeline drain shop.tasks:app --url sqlite:///jobs.db\n"
        "  millrace pipeline drain shop.tasks:app --queues mail,default --partitions 8 --slots 20\n"
        "  millrace pipeline drain shop.tasks:app --for 10m --max-jobs 100000\n"
        "  millrace pipeline drain shop.tasks:app --master spark://head:7077 --until stopped",
        "Signals:\n"
        "  SIGTERM, Ctrl-C   claim no more jobs, wait --grace for running jobs, release the rest\n"
        "  a second one      release them at once\n"
        "It ends when no job is left to claim, including jobs that a lost executor held.",
    )
}
BETWEEN_LINES = 10.0
LOOK = 0.5
LOOK_SHARE = 10  # polling may take a tenth of the time: counting is slow in stores without counters


@dataclass
class Bounds:
    """Options that determine when a Spark drain ends."""

    max_jobs: Annotated[
        int | None,
        typer.Option("--max-jobs", min=1, metavar="N", help="Maximum number of jobs to run, over all partitions."),
    ] = None
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="Stop after this long: 10m, 2h.", show_default=False)
    ] = None
    until: Annotated[
        str,
        typer.Option(
            "--until", metavar="empty|stopped", help="empty: no job left to claim; stopped: run until stopped."
        ),
    ] = "empty"
    patience: Annotated[
        str,
        typer.Option("--patience", metavar="DURATION", help="Wait for retries that are due within this time; 0: none."),
    ] = "60s"
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="How long running jobs may take to finish when it stops.")
    ] = "25s"


@dataclass
class DrainWorkers:
    """Options that select the jobs to run, and the number of workers."""

    queues: Annotated[
        str | None,
        typer.Option(
            "--queues", "--queue", "-q", metavar="A,B", help="Queues to serve (default: those of the app's tasks)."
        ),
    ] = None
    tasks: Annotated[
        str | None, typer.Option("--tasks", metavar="A,B", help="Tasks to run (default: all of the app).")
    ] = None
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, metavar="N", help="Number of workers (default: one per core of Spark)."
        ),
    ] = None
    slots: Annotated[int, typer.Option("--slots", "-s", min=1, metavar="N", help="Concurrent jobs per worker.")] = 10
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease", metavar="DURATION", help="Lease of jobs for which neither the job nor the task sets one."
        ),
    ] = None


async def drain(
    session: CommandSession,
    bounds: Bounds,
    workers: DrainWorkers,
    application: Annotated[
        str | None, typer.Argument(metavar="APP", help="Your app, as module:name; or --app.", show_default=False)
    ] = None,
    *,
    spark_options: SparkOptions,
) -> int:
    """Run the waiting jobs on Spark's executors until none is left."""
    if application is not None:
        session = session.with_flags(app=application)
    if not session.has_app:
        raise InvalidInput("a drain needs your app: millrace pipeline drain module:name, or --app, or MILLRACE_APP")
    user_app = session.app()
    options = _options(session, bounds, workers)
    _check(user_app, options)
    spark_options.master = spark_options.master or _default_master(spark_options.settings())
    with spark_options.session(spoken=True) as spark:  # show what handlers print
        made = await asyncio.to_thread(user_app.on_spark, spark, **options)
        signals = 0

        def ask() -> None:
            nonlocal signals
            signals += 1
            session.output.say(
                f"stopping: running jobs may finish within {bounds.grace}; interrupt again to release them at once"
                if signals == 1
                else "releasing all jobs at once"
            )
            made.stop(None if signals == 1 else 0)

        with on_stop_signal(ask):  # after the session has started, because it installs its own handler
            await _watch(session, made)
            outcome = await asyncio.to_thread(made.wait)
        left = made.progress()
    _report(session, made.id, outcome, left)
    return exits.OK


def _options(session: CommandSession, bounds: Bounds, workers: DrainWorkers) -> dict[str, Any]:
    name: str = session.settings["app"]
    return {
        **keywords_for(require_url(session)),
        **({"address": name} if ":" in name else {}),
        "queues": None if workers.queues is None else _list(workers.queues),
        "tasks": None if workers.tasks is None else _list(workers.tasks),
        "partitions": workers.partitions,
        "slots": workers.slots,
        "lease": workers.lease,
        "max_jobs": bounds.max_jobs,
        "duration": bounds.lasting,
        "until": bounds.until,
        "patience": bounds.patience,
        "grace": bounds.grace,
    }


def _check(app: App, options: dict[str, Any]) -> None:
    """Validate the options. This is done before Spark starts, because its start takes a while."""
    from millrace.spark.drain.driver import checked

    checked(app, cast("DrainKeywords", options))


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _default_master(settings: Mapping[str, str]) -> str | None:
    """Return a master for a local Spark that retries failed tasks, or None if a master is configured. Without retries,
    which is Spark's default for a local master, one lost process would end the drain.
    """
    from millrace.spark.configured import configured, master_of

    return None if master_of({**configured(), **settings}) else "local[*,4]"


async def _watch(session: CommandSession, made: Drain) -> None:
    """Show progress until the drain ends: a bar on a terminal, elsewhere a line every ten seconds."""
    first = await asyncio.to_thread(made.progress)
    say = _sayer(session)
    with session.output.progress(made.id, first.ready + first.running) as show:
        while not made.done:
            began = monotonic()
            now = await asyncio.to_thread(made.progress)
            show(now.completed + now.dead)
            say(now)
            await asyncio.sleep(max(LOOK, (monotonic() - began) * LOOK_SHARE))


def _sayer(session: CommandSession) -> Callable[[DrainProgress], None]:
    said = monotonic()

    def say(now: DrainProgress) -> None:
        nonlocal said
        if session.output.json or sys.stderr.isatty() or monotonic() - said < BETWEEN_LINES:
            return
        said = monotonic()
        session.output.say(
            f"{now.completed:,} completed, {now.dead:,} dead; {now.ready:,} ready, {now.running:,} running on "
            f"{plural(now.workers, 'worker')}"
        )

    return say


def _report(session: CommandSession, name: str, outcome: DrainOutcome, left: DrainProgress) -> None:
    totals = {what: outcome.total(what) for what in ("claimed", "completed", "retried", "dead", "released", "lost")}
    if session.output.json:
        document = {"drain": name, "seconds": round(outcome.seconds, 1), **totals}
        session.output.document(
            {**document, "left": msgspec.to_builtins(left), "workers": msgspec.to_builtins(outcome.workers)}
        )
        return
    names = ("partition", "worker", "completed", "retried", "dead", "released", "lost", "seconds", "ended")
    rows: list[list[Cell]] = [
        [
            one.partition,
            one.worker,
            one.completed,
            one.retried,
            one.dead,
            one.released,
            one.lost,
            round(one.seconds, 1),
            Word(one.ended),
        ]
        for one in outcome.workers
    ]
    session.output.table(names, rows, spare=("retried", "dead", "released", "lost"))
    for refusal in outcome.refusals:
        session.output.say(f"some executors did not run: {refusal}")
    pace = totals["completed"] / outcome.seconds if outcome.seconds else 0.0
    session.output.say(
        f"{name}: {plural(totals['completed'], 'job')} completed in {outcome.seconds:.1f} s ({pace:,.0f}/s), "
        f"{totals['dead']:,} dead, {totals['retried']:,} retried; "
        f"{left.ready:,} ready and {left.later:,} other waiting jobs are left"
    )
