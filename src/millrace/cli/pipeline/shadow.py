"""`millrace pipeline shadow`: runs jobs of the past again with another version of their handler, and compares."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic, time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millrace.app.format import plural
from millrace.app.shadow_mode import VARIABLE, shadow_mode
from millrace.cli import exits
from millrace.cli.confirm import Confirmation
from millrace.cli.output import Cell, Word
from millrace.cli.pipeline.options import SparkOptions, instant, options_for, url_of
from millrace.cli.pipeline.upkeep import watched
from millrace.cli.session import CommandSession
from millrace.cli.text import cut
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from millrace.app.app import App
    from millrace.spark.lake import Lake
    from millrace.spark.shadow import ShadowRequest, ShadowResult

EXAMPLES = {
    "shadow": (
        "Examples:\n"
        "  millrace pipeline shadow --app new_shop:app --task send --url sqlite:///jobs.db\n"
        "  millrace pipeline shadow --app new_shop:app --task send --lake lake --since 2d --until 1d --yes\n"
        "  millrace pipeline shadow --app new_shop:app --task send --max-jobs 500 --out compared --yes",
        "The store is only read. Jobs that the handler enqueues stay in memory and never run.\n"
        "Other effects of the handler are real: mails are sent, payments are made. Check ctx.is_shadow, or the\n"
        "variable MILLRACE_SHADOW, where the handler must not act.\n"
        "Exit 1 if a job now fails, or has another result or another error.",
    )
}
WARNING = (
    "The handler runs for real, once for each job. Only its calls of Millrace are kept in memory: mails, payments and\n"
    f"writes to databases happen again, unless the handler checks ctx.is_shadow or {VARIABLE}=1."
)


@dataclass
class ShadowChoice(Confirmation):
    """Options that say which jobs run."""

    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="The task whose jobs run.")] = None
    since: Annotated[
        str, typer.Option("--since", metavar="WHEN", help="Jobs that finished from then on: 1d (ago), or 2026-01-31.")
    ] = "1d"
    until: Annotated[
        str | None, typer.Option("--until", metavar="WHEN", help="Jobs that finished before then (default: now).")
    ] = None
    max_jobs: Annotated[
        int | None,
        typer.Option("--max-jobs", min=1, metavar="N", help="At most so many jobs, spread over the period."),
    ] = None
    lake: Annotated[
        str | None,
        typer.Option("--lake", metavar="DIR", help="Take the jobs from this lake; what it lacks, from the store."),
    ] = None
    moved: Annotated[
        bool, typer.Option("--moved", help="The store of the lake has another URL now, for example after a move.")
    ] = False
    slots: Annotated[
        int, typer.Option("--slots", "-s", min=1, metavar="N", help="Jobs at the same time in each partition.")
    ] = 10
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, metavar="N", help="Number of workers (default: one per core)."),
    ] = None
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Write a row for each job, as the Delta table DIR/compared."),
    ] = None


async def shadow(session: CommandSession, choice: ShadowChoice, *, spark_options: SparkOptions) -> int:
    """Run jobs of the past with another version of their handler, and compare the results."""
    choice.check()
    if choice.task is None:
        raise InvalidInput("name the task whose jobs are to run: --task NAME")
    if not session.has_app:
        raise InvalidInput("a shadow replay needs the app with the new version of the handler: --app module:name")
    url = url_of_store(session)
    if url is None and choice.lake is None:
        raise InvalidInput("a shadow replay needs the jobs of the past: --lake DIR, or --url with their store, or both")
    store = None if url is None else options_for(url)
    with shadow_mode():
        app = session.app()
    app.find_task(choice.task)
    from millrace.spark import require_spark

    require_spark()
    with spark_options.session(spoken=True) as spark:  # show what handlers print
        from millrace.spark.lake import Lake

        request = _requested(session, choice, store)
        lake = None if choice.lake is None else Lake(choice.lake, spark)
        if not choice.yes and not await _agreed(session, spark, choice, request, lake):
            return exits.OK
        return await _run(session, spark, app, choice, request, lake)


def url_of_store(session: CommandSession) -> str | None:
    """Return the URL of the store with the jobs of the past; None if only a lake has them."""
    with shadow_mode():
        url = url_of(session)
    return None if url is None or url.startswith("memory:") else url


def _requested(session: CommandSession, choice: ShadowChoice, store: Mapping[str, str] | None) -> ShadowRequest:
    from millrace.spark.shadow import PastJobs, ShadowRequest

    now = int(time() * 1000)
    since = instant("--since", choice.since, now)
    # Without --until, up to a day from now, because the clock of the store may be ahead of this machine's.
    until = datetime.now(UTC) + timedelta(days=1) if choice.until is None else instant("--until", choice.until, now)
    if since >= until:
        raise InvalidInput(f"--since {choice.since} must be earlier than --until {choice.until or 'now'}")
    assert choice.task is not None
    name = session.settings["app"]
    address = name if ":" in name else None
    past = PastJobs(choice.task, since, until, store, choice.max_jobs, choice.moved)
    return ShadowRequest(past, choice.slots, choice.partitions, address)


async def _agreed(
    session: CommandSession, spark: SparkSession, choice: ShadowChoice, request: ShadowRequest, lake: Lake | None
) -> bool:
    """Show how many jobs would run, and return whether to run them."""
    from millrace.spark.shadow import candidates

    found = await watched(session, spark, "counting jobs", lambda: candidates(spark, request.past, lake))
    if session.output.json:
        session.output.document({"dry_run": True, "task": choice.task, "jobs": found})
        return False
    session.output.table(("state", "jobs"), [[Word(state), count] for state, count in sorted(found.items())])
    session.output.say(WARNING)
    many = plural(sum(found.values()), "job")
    if choice.asks(session) and session.output.confirm(f"Run {many} of {choice.task} again?"):
        return True
    session.output.say("Nothing was run." if choice.asks(session) else "Nothing was run; use --yes to do it.")
    return False


async def _run(
    session: CommandSession,
    spark: SparkSession,
    app: App,
    choice: ShadowChoice,
    request: ShadowRequest,
    lake: Lake | None,
) -> int:
    from millrace.spark.shadow import shadow as run_shadow

    began = monotonic()
    found = await watched(session, spark, "running jobs", lambda: run_shadow(spark, app, request, lake, choice.out))
    if session.output.json:
        document: dict[str, Any] = msgspec.to_builtins(found)
        session.output.document(
            {"dry_run": False, "task": choice.task, **document, "seconds": round(monotonic() - began, 1)}
        )
    else:
        _show(session, found)
        session.output.say(f"{plural(found.total.jobs, 'job')} run in {monotonic() - began:.1f} s. {_verdict(found)}")
    return exits.NO if found.differing else exits.OK


def _show(session: CommandSession, found: ShadowResult) -> None:
    names = ("outcome", "jobs", "share", "faster", "slower", "p50_before", "p50_after", "p95_before", "p95_after")
    rows: list[list[Cell]] = [
        [Word(one.outcome), one.jobs, f"{one.share:.1%}", one.faster, one.slower, *times]
        for one in (*found.outcomes, found.total)
        for times in [[one.p50_before, one.p50_after, one.p95_before, one.p95_after]]
    ]
    session.output.table(names, rows)
    if found.examples:
        examples: list[list[Cell]] = [
            [one["job"], Word(one["outcome"]), _end(one, "before"), _end(one, "after")] for one in found.examples
        ]
        session.output.table(("job", "outcome", "before", "after"), examples, title="some of those that differ")


def _end(row: dict[str, Any], when: str) -> str | None:
    text = row[f"error_{when}"] or row[f"result_{when}"]
    return None if text is None else cut(text, 120)


def _verdict(found: ShadowResult) -> str:
    if not found.total.jobs:
        return "No job of this task finished in this period."
    return f"{plural(found.differing, 'job')} differ." if found.differing else "No job differs."
