"""`millrace pipeline drain`: run a backlog on Spark's executors."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from millrace.cli import exits
from millrace.cli.output import Cell, Word
from millrace.cli.pipeline_lake import Master, Memory, options_for, require_url, spark_for
from millrace.cli.session import Session
from millrace.cli.text import plural
from millrace.domain.errors import InvalidInput
from millrace.runtime.signals import heard_by

if TYPE_CHECKING:
    from millrace.runtime.app import App
    from millrace.runtime.on_spark import Drain, DrainKeywords, DrainOutcome, DrainProgress

EXAMPLES = {
    "drain": (
        "Examples:\n"
        "  millrace pipeline drain shop.tasks:app --url sqlite:///jobs.db\n"
        "  millrace pipeline drain shop.tasks:app --queues mail,default --partitions 8 --slots 20\n"
        "  millrace pipeline drain shop.tasks:app --for 10m --max-jobs 100000\n"
        "  millrace pipeline drain shop.tasks:app --master spark://head:7077 --until stopped",
        "Signals:\n"
        "  SIGTERM, Ctrl-C   claim no more, let running jobs end for --grace, give back the rest\n"
        "  a second one      give back at once\n"
        "It ends by itself when nothing is left to claim, and nothing that a lost executor may have left behind.",
    )
}
BETWEEN_LINES = 10.0
LOOK = 0.5
LOOK_SHARE = 10  # a look may take a tenth of the time: counting is dear where there are no counters


@dataclass
class Bounds:
    """What ends a drain."""

    max_jobs: Annotated[
        int | None, typer.Option("--max-jobs", min=1, metavar="N", help="Run at most so many, over all partitions.")
    ] = None
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="Stop after this long: 10m, 2h.", show_default=False)
    ] = None
    until: Annotated[
        str,
        typer.Option("--until", metavar="empty|stopped", help="empty: nothing left to claim; stopped: only when told."),
    ] = "empty"
    patience: Annotated[
        str, typer.Option("--patience", metavar="DURATION", help="Wait for retries that are due within this; 0: none.")
    ] = "60s"
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="How long running jobs may end when it stops.")
    ] = "25s"


@dataclass
class Crew:
    """Which jobs, and by how many."""

    queues: Annotated[
        str | None, typer.Option("--queues", "--queue", "-q", metavar="A,B", help="Queues: those of the app's tasks.")
    ] = None
    tasks: Annotated[str | None, typer.Option("--tasks", metavar="A,B", help="Tasks to take: all of the app.")] = None
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, metavar="N", help="Workers: one for each core of Spark.")
    ] = None
    slots: Annotated[int, typer.Option("--slots", "-s", min=1, metavar="N", help="Jobs at a time in each.")] = 10
    lease: Annotated[
        str | None, typer.Option("--lease", metavar="DURATION", help="Lease of every job: the task's own.")
    ] = None


async def drain(
    session: Session,
    bounds: Bounds,
    crew: Crew,
    application: Annotated[
        str | None, typer.Argument(metavar="APP", help="Your app, as module:name; or --app.", show_default=False)
    ] = None,
    master: Master = None,
    memory: Memory = None,
) -> int:
    """Run the jobs that wait, on Spark's executors, until none is left."""
    if application is not None:
        session = session.with_flags(app=application)
    if not session.has_app:
        raise InvalidInput("a drain needs your app: millrace pipeline drain module:name, or --app, or MILLRACE_APP")
    user_app = session.app()
    options = _options(session, bounds, crew)
    _check(user_app, options)
    with spark_for(master or _default_master(), memory, spoken=True) as spark:  # handlers may say something
        made = await asyncio.to_thread(user_app.on_spark, spark, **options)
        asked = 0

        def ask() -> None:
            nonlocal asked
            asked += 1
            session.output.say(
                f"asked to stop: running jobs may end within {bounds.grace}; ask again to give them back at once"
                if asked == 1
                else "giving everything back at once"
            )
            made.stop(None if asked == 1 else 0)

        with heard_by(ask):  # after the session has started, which sets a handler of its own
            await _watch(session, made)
            outcome = await asyncio.to_thread(made.wait)
        left = made.progress()
    _report(session, made.id, outcome, left)
    return exits.OK


def _options(session: Session, bounds: Bounds, crew: Crew) -> dict[str, Any]:
    name: str = session.settings["app"]
    store = options_for(require_url(session))
    return {
        "url": store.get("url"),
        "url_env": store.get("urlEnv"),
        **({"address": name} if ":" in name else {}),
        "queues": None if crew.queues is None else _list(crew.queues),
        "tasks": None if crew.tasks is None else _list(crew.tasks),
        "partitions": crew.partitions,
        "slots": crew.slots,
        "lease": crew.lease,
        "max_jobs": bounds.max_jobs,
        "duration": bounds.lasting,
        "until": bounds.until,
        "patience": bounds.patience,
        "grace": bounds.grace,
    }


def _check(app: App, options: dict[str, Any]) -> None:
    """What is wrong shows before Spark starts, which takes a while."""
    from millrace.spark.drain import checked

    checked(app, cast("DrainKeywords", options))


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _default_master() -> str | None:
    """On one machine Spark gives a task one try only, unless told otherwise; a lost process must not end a drain."""
    named = os.environ.get("SPARK_REMOTE") or os.environ.get("MASTER")
    return None if named else "local[*,4]"


async def _watch(session: Session, made: Drain) -> None:
    """A bar on a terminal, a line now and then elsewhere."""
    first = await asyncio.to_thread(made.progress)
    say = _sayer(session)
    with session.output.progress(made.id, first.ready + first.running) as tell:
        while not made.done:
            began = monotonic()
            now = await asyncio.to_thread(made.progress)
            tell(now.completed + now.dead)
            say(now)
            await asyncio.sleep(max(LOOK, (monotonic() - began) * LOOK_SHARE))


def _sayer(session: Session) -> Callable[[DrainProgress], None]:
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


def _report(session: Session, name: str, outcome: DrainOutcome, left: DrainProgress) -> None:
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
        session.output.say(f"some executors took no part: {refusal}")
    pace = totals["completed"] / outcome.seconds if outcome.seconds else 0.0
    session.output.say(
        f"{name}: {plural(totals['completed'], 'job')} completed in {outcome.seconds:.1f} s ({pace:,.0f}/s), "
        f"{totals['dead']:,} dead, {totals['retried']:,} retried; {left.ready:,} ready, {left.later:,} for later left"
    )
