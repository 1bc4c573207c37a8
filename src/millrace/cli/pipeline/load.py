"""`millrace pipeline load`: makes jobs out of files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.app.format import plural
from millrace.cli import exits
from millrace.cli.confirm import Confirmation
from millrace.cli.output import Cell
from millrace.cli.pipeline.options import SparkOptions, options_for, require_url
from millrace.cli.pipeline.upkeep import watched
from millrace.cli.session import CommandSession
from millrace.cli.text import cut
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.spark.load import LoadCheck, LoadRequest
    from millrace.spark.sink.writer import Written

EXAMPLES = {
    "load": (
        "Examples:\n"
        "  millrace pipeline load --from parquet:orders.parquet --task send --id-columns order\n"
        "  millrace pipeline load --from csv:users.csv --task greet --id-columns id \\\n"
        "      --map to=email --map 'age=cast(age as int)' --yes\n"
        "  millrace pipeline load --from jsonl:s3://bucket/in/ --task resize --id-columns photo \\\n"
        "      --option priorityColumn=level --rejects /shared/rejects --yes",
        "Without --yes it checks all rows and shows what it would do; on a terminal it then asks for confirmation.\n"
        "Rows whose job exists already are skipped, so you can repeat a load. With --app, payloads are checked\n"
        "against the task's annotations.",
    )
}


@dataclass
class LoadChoice(Confirmation):
    """Options that say which files become which jobs."""

    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="FORMAT:PATH", help="The files: parquet:, csv:, jsonl: or delta:, and the path."
        ),
    ] = None
    task: Annotated[str | None, typer.Option("--task", "--type", metavar="NAME", help="The task of the jobs.")] = None
    id_columns: Annotated[
        str | None,
        typer.Option("--id-columns", metavar="A,B", help="Columns that identify a row: equal ones become one job."),
    ] = None
    mapped: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="FIELD=SQL", help="A field of the payload; repeatable (default: all columns)."),
    ] = None
    queue: Annotated[str | None, typer.Option("--queue", "-q", metavar="NAME", help="The queue of the jobs.")] = None
    rejects: Annotated[
        str | None,
        typer.Option("--rejects", metavar="DIR|URL", help="Write invalid rows there, and load the others."),
    ] = None
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="Another option of the Spark sink; can be repeated."),
    ] = None


async def load(session: CommandSession, choice: LoadChoice, *, spark_options: SparkOptions) -> int:
    """Make a job out of each row of files: Parquet, CSV, JSON lines or Delta.

    Exit 1 if rows are invalid.
    """
    choice.check()
    url = require_url(session)
    from millrace.spark import require_spark

    require_spark()
    from millrace.spark.load import check
    from millrace.spark.load import load as load_rows
    from millrace.spark.open import url_from
    from millrace.spark.options import read_options

    request = _requested(session, choice, options_for(url))
    url_from(read_options(request.options, "write"))  # fail before Spark starts
    with spark_options.session() as spark:
        if not choice.yes:
            found = await watched(session, spark, "checking rows", lambda: check(spark, request))
            _show(session, choice, found)
            if not _agreed(session, choice, found):
                return exits.NO if found.invalid else exits.OK
        return await _loaded(session, spark, lambda: load_rows(spark, request))


def _requested(session: CommandSession, choice: LoadChoice, store: dict[str, str]) -> LoadRequest:
    from millrace.spark.load import LoadRequest

    if choice.source is None or choice.task is None:
        raise InvalidInput("a load needs files and a task: --from FORMAT:PATH --task NAME")
    more = _pairs("--option", choice.option)
    if choice.id_columns is None and not {"idColumns", "writeId"} & more.keys():
        raise InvalidInput(
            "name the columns that identify a row by --id-columns, so that a repeated load enqueues nothing twice; or "
            "name the load by --option writeId=NAME"
        )
    fields = _pairs("--map", choice.mapped)
    given = {
        "app": session.settings["app"] if session.has_app else None,
        "task": choice.task,
        "idColumns": choice.id_columns,
        "payloadColumns": ",".join(fields) or None,
        "queue": choice.queue,
        "onInvalid": None if choice.rejects is None else "reject",
        "rejectPath": None if choice.rejects is None else _absolute(choice.rejects),
    }
    options = {name: value for name, value in given.items() if value is not None}
    return LoadRequest(choice.source, {**store, **options, **more}, fields)


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _pairs(flag: str, texts: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InvalidInput(f"{flag} {text!r} needs a name and a value: {flag} name=value")
        found[name.strip()] = value.strip()
    return found


def _show(session: CommandSession, choice: LoadChoice, found: LoadCheck) -> None:
    if session.output.json:
        session.output.document(
            {
                "dry_run": True,
                "rows": found.rows,
                "valid": found.valid,
                "invalid": found.invalid,
                "jobs": found.jobs,
                "reasons": found.reasons,
            }
        )
        return
    kinds: list[list[Cell]] = [
        [queue, task, count] for queue, tasks in found.jobs.items() for task, count in tasks.items()
    ]
    session.output.table(("queue", "task", "jobs"), kinds)
    if session.output.terminal and found.sample:
        sample: list[list[Cell]] = [
            [spec.id, cut(spec.payload.decode("utf-8", "replace"), 160)] for spec in found.sample
        ]
        session.output.table(("id", "payload"), sample, title="some of them")
    for why in found.reasons:
        session.output.say(f"invalid: {why}")
    invalid = f", {found.invalid:,} are invalid" if found.invalid else ""
    session.output.say(
        f"{plural(found.valid, 'row')} can become jobs{invalid}. Rows that have a job already are skipped."
    )


def _agreed(session: CommandSession, choice: LoadChoice, found: LoadCheck) -> bool:
    """Return whether to load. Invalid rows end it here, unless they go to a reject table."""
    if session.output.json:
        return False
    if found.invalid and choice.rejects is None:
        session.output.say("Nothing was enqueued. Correct these rows, or write them elsewhere with --rejects DIR.")
        return False
    if not found.valid:
        return False
    if choice.asks(session) and session.output.confirm(f"Enqueue {plural(found.valid, 'job')}?"):
        return True
    session.output.say("Nothing was enqueued." if choice.asks(session) else "Nothing was enqueued; use --yes to do it.")
    return False


async def _loaded(session: CommandSession, spark: SparkSession, work: Any) -> int:
    began = monotonic()
    done: Written = await watched(session, spark, "loading", work)
    figures = {name: getattr(done, name) for name in ("rows", "queued", "duplicates", "differing", "rejected")}
    if session.output.json:
        session.output.document({"dry_run": False, **figures, "seconds": round(monotonic() - began, 1)})
    else:
        session.output.table(("figure", "rows"), [[name, count] for name, count in figures.items() if count])
        session.output.say(f"{plural(done.queued, 'job')} enqueued in {monotonic() - began:.1f} s")
        if done.differing:
            session.output.say(
                f"{plural(done.differing, 'row')} had a job already, with another payload; it stays as it was."
            )
    return exits.NO if done.rejected else exits.OK
