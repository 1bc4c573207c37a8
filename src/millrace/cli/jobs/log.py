"""`millrace log`: prints the lines that the handler of a job has written with `ctx.log`."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer

from millrace.app.app import App
from millrace.app.format import instant
from millrace.app.handler.job_log import LogLine, read_log
from millrace.app.job_handle import existing
from millrace.cli import exits
from millrace.cli.output import Cell, Word
from millrace.cli.session import CommandSession
from millrace.cli.text import clock
from millrace.domain.job import FINISHED, Job
from millrace.views.job_view import log_view

EXAMPLES = {
    "log": (
        "Examples:\n"
        "  millrace log mail-7\n"
        "  millrace log mail-7 --follow                 until the job has finished\n"
        "  millrace log mail-7 --json | jq -r '.[].text'",
        "Lines are kept for tasks with keep_log=True: up to 200 lines and 64 KiB of each job.",
    )
}
LOOK_EVERY = 1.0  # seconds; a worker writes new lines about as often


async def log(
    session: CommandSession,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a job.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the job has finished.")] = False,
) -> int:
    """Show the log lines of a job, of all its attempts, oldest first.

    With --follow --json, print one JSON document per line.
    """
    async with session.connected() as (app, _):
        job = await _read(app, job_id)
        if session.output.json and not follow:
            session.output.document(log_view(job))
            return exits.OK
        printed = _print(session, job, 0)
        while follow and job.state not in FINISHED:
            await asyncio.sleep(LOOK_EVERY)
            job = await _read(app, job_id)
            printed = _print(session, job, printed)
        if not printed and not follow:
            session.output.say("No lines. They are kept for tasks with keep_log=True.")
    return exits.OK


async def _read(app: App, job_id: str) -> Job:
    return existing(job_id, await app.jobs.get(job_id)).record


def _print(session: CommandSession, job: Job, printed: int) -> int:
    """Print the lines after the first `printed` ones. Return how many lines were ever written, with dropped ones."""
    lines = read_log(job.log)
    total = sum(line.dropped or 1 for line in lines)
    number = 0
    for line, view in zip(lines, log_view(job), strict=True):
        number += line.dropped or 1
        if number <= printed:
            continue
        if session.output.json:
            session.output.line(view)
        else:
            session.output.row(log_row(line, session.output.terminal))
    return total


def log_row(line: LogLine, terminal: bool) -> list[Cell]:
    return [
        clock(line.instant) if terminal else instant(line.instant),
        f"attempt {line.attempt}",
        Word(f"{line.level:<8}"),
        log_text(line),
    ]


def log_text(line: LogLine) -> str:
    """Return the text of a line with its fields."""
    fields = (f"{name}={msgspec.json.encode(value).decode()}" for name, value in line.fields.items())
    return " ".join([line.text, *fields])
