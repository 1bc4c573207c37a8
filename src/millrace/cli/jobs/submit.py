"""`millrace submit`: enqueues one job or many, with or without the app's code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer

from millrace.app.app import App
from millrace.app.format import plural
from millrace.app.why import why_waiting
from millrace.cli import exits
from millrace.cli.jobs.payload_args import one_of, read_bytes, read_lines, read_values
from millrace.cli.session import CommandSession
from millrace.cli.text import duration
from millrace.domain.errors import InvalidInput, ResultExpired, WaitTimeout
from millrace.domain.job import State
from millrace.domain.request import Enqueued
from millrace.views.job_input import SpecBuilder
from millrace.views.job_view import EnqueuedView, decoded, enqueued_view

EXAMPLES = {
    "submit": (
        "Examples:\n"
        '  millrace submit send_email \'{"to": "ada@example.com", "template": "hi"}\'\n'
        "  millrace submit --task report --payload @report.json --queue slow --delay 10m\n"
        "  millrace submit --task resize --id photo-7 --payload '{\"size\": 200}' --wait\n"
        "  millrace submit --task publish --after photo-7 --after photo-8\n"
        "  cat users.jsonl | millrace submit send_email - --many",
        "With --app, the payload is checked against the task's annotations before anything is stored, and the task's\n"
        "own options apply. Without it, the job is stored unchecked, and the worker that claims it checks it.",
    )
}
CHUNK = 1_000
MOST_INPUT = 64 << 20


@dataclass
class JobOptions:
    id: Annotated[
        str | None,
        typer.Option("--id", help="Its id; the same id is enqueued only once.", metavar="TEXT", show_default=False),
    ] = None
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", help="Its queue (default: the task's own, or default).", metavar="NAME"),
    ] = None
    delay: Annotated[
        str | None, typer.Option("--delay", help="Delay before the job may start: 30s, 10m, 2h.", metavar="DURATION")
    ] = None
    priority: Annotated[int | None, typer.Option("--priority", metavar="N", help="0 to 15; higher runs first.")] = None
    group: Annotated[str | None, typer.Option("--group", help="Jobs of a group run one at a time.", metavar="TEXT")] = (
        None
    )
    key: Annotated[
        str | None,
        typer.Option(
            "--key", help="Unique key: no second job with this key until the first has finished.", metavar="TEXT"
        ),
    ] = None
    window: Annotated[
        str | None, typer.Option("--window", help="Hold the key for this long instead.", metavar="DURATION")
    ] = None
    on_hit: Annotated[
        str | None,
        typer.Option("--on-hit", help="What to do if another job holds the key.", metavar="keep|replace|extend|raise"),
    ] = None
    after: Annotated[
        list[str] | None, typer.Option("--after", help="Run after this job; may be repeated.", metavar="ID")
    ] = None
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Jobs named by --after may be enqueued later.")
    ] = False
    rerun_expired: Annotated[
        bool, typer.Option("--rerun-expired", help="Run the job again if it completed and its result has expired.")
    ] = False
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", help="The job becomes dead if it has not started within this time.", metavar="DURATION"
        ),
    ] = None
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", help="Number of failures after which it is dead.", metavar="N")
    ] = None
    timeout: Annotated[str | None, typer.Option("--timeout", help="Timeout of one attempt.", metavar="DURATION")] = None
    header: Annotated[
        list[str] | None, typer.Option("--header", help="A header of the job; may be repeated.", metavar="NAME=VALUE")
    ] = None
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="A tag of the job; may be repeated.", metavar="WORD")
    ] = None


async def submit(
    session: CommandSession,
    options: JobOptions,
    name: Annotated[str | None, typer.Argument(metavar="TASK", help="The task.", show_default=False)] = None,
    data: Annotated[
        str | None, typer.Argument(metavar="PAYLOAD", help="The same as --payload.", show_default=False)
    ] = None,
    task: Annotated[str | None, typer.Option("--task", "--type", help="The task.", metavar="NAME")] = None,
    payload: Annotated[
        str | None,
        typer.Option(
            "--payload",
            "--input",
            help="Parameters of the task: a JSON object, @file, or - for stdin.",
            metavar="JSON|@FILE|-",
        ),
    ] = None,
    many: Annotated[bool, typer.Option("--many", help="The payload is JSON lines: one job for each line.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and show it.")] = False,
    wait_for: Annotated[
        str | None,
        typer.Option("--wait-for", help="How long to wait (default 30s); implies --wait.", metavar="DURATION"),
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Do not check against the app, even if one is set.")
    ] = False,
) -> int:
    """Enqueue one job or many.

    When the id is printed, the job is stored. If the job exists already, this is reported, and is not an error.

    Exit 0 if the job is enqueued (with --wait: has completed), 1 if it was refused or failed, 4 if it has not finished
    in time.
    """
    task = one_of("the task", name, task)
    if task is None:
        raise InvalidInput("which task? millrace submit TASK PAYLOAD, or --task NAME")
    text = one_of("the payload", data, payload)
    patience = duration("--wait-for", "30s" if wait_for is None else wait_for) if wait or wait_for is not None else None
    app = session.app() if session.has_app and not unchecked else None
    builder = SpecBuilder(app, task, job_keywords(options))
    if many:
        if options.id is not None or patience is not None:
            raise InvalidInput("--many generates the ids of the jobs and does not wait; remove --id and --wait")
        return await _many(session, builder, app, text)
    values = read_values(read_bytes("" if text is None else text), "the payload")
    async with session.connected(app) as (connected, _store):
        [spec] = builder.specs(connected, [values])
        [job] = await connected.enqueue([spec])
        answer = job.enqueued
        _print_existing(session, answer)
        if app is None and options.queue is None and answer.status == "queued":
            # The task's own queue is known only to its code, and a worker may serve only that one.
            session.output.hint(f"It is in queue {spec.queue}. With --app, it goes to the task's own queue.")
        if patience is not None:
            return await _result(session, connected, answer, patience)
    if session.output.json:
        session.output.document(enqueued_view(answer, EnqueuedView))
    else:
        print(answer.id)
    return exits.OK


async def _many(session: CommandSession, builder: SpecBuilder, app: App | None, text: str | None) -> int:
    """Enqueue one job per input line, in chunks of 1,000. Each chunk is stored completely or not at all. If a chunk
    fails, earlier chunks stay stored, and a note on the exception says how many jobs they had.
    """
    lines = read_lines("-" if text is None else text)
    tally: Counter[str] = Counter()
    number = 0
    async with session.connected(app) as (connected, _store):
        with session.output.progress("submitting") as progress:
            try:
                while chunk := list(islice(lines, CHUNK)):
                    values = [read_values(line, f"line {number + at}") for at, line in enumerate(chunk, start=1)]
                    jobs = await connected.enqueue(builder.specs(connected, values))
                    tally.update(job.enqueued.status for job in jobs)
                    number += len(chunk)
                    progress(number)
            except Exception as error:
                error.add_note(f"{plural(number, 'job')} of the earlier lines were enqueued and stay.")
                raise
    counts = {status: tally[status] for status in ("queued", "duplicate", "completed")}
    if session.output.json:
        session.output.document({"jobs": number, **counts})
    else:
        print(number)
        session.output.say(f"{plural(counts['queued'], 'job')} enqueued")
    return exits.OK


class EnqueuedResult(EnqueuedView):
    """The output of `millrace submit --wait --json`."""

    result: Any


async def _result(session: CommandSession, app: App, answer: Enqueued, patience: int) -> int:
    """Wait for the job, print its result and return the exit code. Raises an exception if the job failed or did not
    finish in time.
    """
    if answer.status == "completed" and not answer.result_expired:
        result = decoded(answer.result, "json") if answer.result else None
    else:
        if answer.result_expired:
            raise ResultExpired(answer.id)
        try:
            result = await app.jobs.result(answer.id, wait=patience / 1000)
        except WaitTimeout as error:
            await _explain(app, error)
            raise
    if session.output.json:
        completed = msgspec.structs.replace(answer, state=State.COMPLETED)
        session.output.document(enqueued_view(completed, EnqueuedResult, result=msgspec.to_builtins(result)))
    else:
        print(msgspec.json.encode(result).decode())
    return exits.OK


async def _explain(app: App, error: WaitTimeout) -> None:
    """Add notes to the timeout error that say why the job still waits. For example, no worker may serve its queue."""
    store = await app.connected()
    [job] = await store.get([error.job])
    if job is not None:
        for reason in await why_waiting(app, store, job, await store.now()):
            error.add_note(f"Why: {reason}")


def _print_existing(session: CommandSession, answer: Enqueued) -> None:
    if answer.status == "queued":
        return
    by = "with this key" if answer.by == "key" else "with this id"
    differs = " Its payload differs from this one." if answer.payload_differs else ""
    session.output.say(f"A job {by} already exists: {answer.id} ({answer.state}).{differs}")


def job_keywords(options: JobOptions) -> dict[str, Any]:
    """Return the options that were given on the command line, as keywords of `task.options`."""
    keywords = {name: value for name, value in vars(options).items() if not (value in (None, []) or value is False)}
    for name in ("delay", "expires", "timeout", "window"):
        if name in keywords:
            keywords[name] = duration(f"--{name}", keywords[name]) / 1000
    if "window" in keywords:
        keywords["scope"] = "window"
    if "header" in keywords:
        keywords["headers"] = dict(map(_header, keywords.pop("header")))
    if "tag" in keywords:
        keywords["tags"] = keywords.pop("tag")
    if "max_attempts" in keywords and not -(2**31) < keywords["max_attempts"] < 2**31:
        raise InvalidInput(f"--max-attempts of {keywords['max_attempts']} is too large")
    return keywords


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput(f"--header takes NAME=VALUE, not {text!r}")
    return name, value
