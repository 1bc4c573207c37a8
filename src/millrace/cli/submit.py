"""`millrace submit`: put jobs in, one or many, with the app's code at hand or without it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer

from millrace.cli import exits
from millrace.cli.session import Session
from millrace.cli.text import duration, plural
from millrace.cli.typed import one_of, read_bytes, read_lines, read_values
from millrace.domain.errors import InvalidInput, ResultExpired, WaitTimeout
from millrace.domain.request import Enqueued
from millrace.runtime.app import App
from millrace.runtime.intake import Maker
from millrace.runtime.shape import decoded
from millrace.runtime.why import why_waiting

EXAMPLES = {
    "submit": (
        "Examples:\n"
        '  millrace submit send_email \'{"to": "ada@example.com", "template": "hi"}\'\n'
        "  millrace submit --task report --payload @report.json --queue slow --delay 10m\n"
        "  millrace submit --task resize --id photo-7 --payload '{\"size\": 200}' --wait\n"
        "  millrace submit --task publish --after photo-7 --after photo-8\n"
        "  cat users.jsonl | millrace submit send_email - --many",
        "With --app, the payload is checked against the task's annotations before anything is stored, and the task's\n"
        "own options apply. Without it, the job is stored as it is, and the worker that takes it checks it.",
    )
}
CHUNK = 1_000
MOST_INPUT = 64 << 20


@dataclass
class JobOptions:
    id: Annotated[
        str | None, typer.Option("--id", help="Its id: the same id is put in once.", metavar="TEXT", show_default=False)
    ] = None
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="The queue; the task's own, or default.", metavar="NAME")
    ] = None
    delay: Annotated[str | None, typer.Option("--delay", help="Not before: 30s, 10m, 2h.", metavar="DURATION")] = None
    priority: Annotated[int | None, typer.Option("--priority", metavar="N", help="0 to 15; higher runs first.")] = None
    group: Annotated[str | None, typer.Option("--group", help="Jobs of a group run one at a time.", metavar="TEXT")] = (
        None
    )
    key: Annotated[
        str | None, typer.Option("--key", help="One job under this key until it has finished.", metavar="TEXT")
    ] = None
    on_hit: Annotated[
        str | None, typer.Option("--on-hit", help="When the key is taken.", metavar="keep|replace|extend|raise")
    ] = None
    after: Annotated[
        list[str] | None, typer.Option("--after", help="Run after this job; may be repeated.", metavar="ID")
    ] = None
    allow_missing: Annotated[bool, typer.Option("--allow-missing", help="Jobs named by --after may come later.")] = (
        False
    )
    expires: Annotated[
        str | None, typer.Option("--expires", help="Dead if it has not started by then.", metavar="DURATION")
    ] = None
    max_attempts: Annotated[int | None, typer.Option("--max-attempts", help="Runs before it is dead.", metavar="N")] = (
        None
    )
    timeout: Annotated[str | None, typer.Option("--timeout", help="Of one attempt.", metavar="DURATION")] = None
    header: Annotated[
        list[str] | None, typer.Option("--header", help="Travels with the job; may be repeated.", metavar="NAME=VALUE")
    ] = None


async def submit(
    session: Session,
    options: JobOptions,
    name: Annotated[str | None, typer.Argument(metavar="TASK", help="The task.", show_default=False)] = None,
    data: Annotated[
        str | None, typer.Argument(metavar="PAYLOAD", help="As --payload takes it.", show_default=False)
    ] = None,
    task: Annotated[str | None, typer.Option("--task", "--type", help="The task.", metavar="NAME")] = None,
    payload: Annotated[
        str | None,
        typer.Option(
            "--payload", "--input", help="Its parameters: a JSON object, @file, or - for stdin.", metavar="JSON|@FILE|-"
        ),
    ] = None,
    many: Annotated[bool, typer.Option("--many", help="The payload is JSON lines: one job for each line.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and show it.")] = False,
    wait_for: Annotated[
        str | None, typer.Option("--wait-for", help="How long to wait (30s); implies --wait.", metavar="DURATION")
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Do not check against the app, even if one is set.")
    ] = False,
) -> int:
    """Put a job in, or many.

    Once its id is printed, it is kept. A job that is there already is an answer, not an error.

    Exit 0 when it is in (with --wait: when it completed), 1 when it was refused or failed, 4 when it still runs.
    """
    task = one_of("the task", name, task)
    if task is None:
        raise InvalidInput("which task? millrace submit TASK PAYLOAD, or --task NAME")
    text = one_of("the payload", data, payload)
    patience = duration("--wait-for", "30s" if wait_for is None else wait_for) if wait or wait_for is not None else None
    app = session.app() if session.has_app and not unchecked else None
    maker = Maker(app, task, _keywords(options))
    if many:
        if options.id is not None or patience is not None:
            raise InvalidInput("--many makes jobs with ids of their own and waits for none: leave out --id and --wait")
        return await _many(session, maker, app, text)
    values = read_values(read_bytes("" if text is None else text), "the payload")
    async with session.connected(app) as (connected, _store):
        [spec] = maker.specs(connected, [values])
        [answer] = await connected.enqueue([spec])
        _told(session, answer)
        if app is None and options.queue is None and answer.status == "queued":
            # The task's own queue is in its code: a worker may well serve that one only.
            session.output.hint(f"It is in queue {spec.queue}. With --app, it goes to the task's own queue.")
        if patience is not None:
            return await _result(session, connected, answer, patience)
    if session.output.json:
        session.output.document(_plain(answer))
    else:
        print(answer.id)
    return exits.OK


async def _many(session: Session, maker: Maker, app: App | None, text: str | None) -> int:
    """Chunks of a thousand, each all or nothing; what went in before a bad line stays in, and is told."""
    lines = read_lines("-" if text is None else text)
    tally: Counter[str] = Counter()
    number = 0
    async with session.connected(app) as (connected, _store):
        with session.output.progress("submitting") as progress:
            try:
                while chunk := list(islice(lines, CHUNK)):
                    values = [read_values(line, f"line {number + at}") for at, line in enumerate(chunk, start=1)]
                    tally.update(answer.status for answer in await connected.enqueue(maker.specs(connected, values)))
                    number += len(chunk)
                    progress(number)
            except Exception as error:
                error.add_note(f"{plural(number, 'job')} of the lines before were put in and stay.")
                raise
    counts = {status: tally[status] for status in ("queued", "duplicate", "completed")}
    if session.output.json:
        session.output.document({"jobs": number, **counts})
    else:
        print(number)
        session.output.say(f"{plural(counts['queued'], 'job')} put in")
    return exits.OK


async def _result(session: Session, app: App, answer: Enqueued, patience: int) -> int:
    """Wait on the job; a failure raises, and its words and its code are those of the error."""
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
        session.output.document({**_plain(answer), "state": "completed", "result": msgspec.to_builtins(result)})
    else:
        print(msgspec.json.encode(result).decode())
    return exits.OK


async def _explain(app: App, error: WaitTimeout) -> None:
    """Most often nobody is there to run it; then more patience would not help."""
    store = await app.connected()
    job = await app.jobs.get(error.job)
    if job is not None:
        for reason in await why_waiting(app, store, job, await store.now()):
            error.add_note(f"Why: {reason}")


def _told(session: Session, answer: Enqueued) -> None:
    if answer.status == "queued":
        return
    by = "under this key" if answer.by == "key" else "of this id"
    differs = " Its payload differs from this one." if answer.payload_differs else ""
    session.output.say(f"There is a job {by} already, {answer.id}; it is {answer.state}.{differs}")


def _plain(answer: Enqueued) -> dict[str, Any]:
    names = ("status", "id", "seq", "generation", "by", "payload_differs", "lane", "position", "depth")
    return {**{name: getattr(answer, name) for name in names}, "state": answer.state.value}


def _keywords(options: JobOptions) -> dict[str, Any]:
    given = {name: value for name, value in vars(options).items() if not (value in (None, []) or value is False)}
    for name in ("delay", "expires", "timeout"):
        if name in given:
            given[name] = duration(f"--{name}", given[name]) / 1000
    if "header" in given:
        given["headers"] = dict(map(_header, given.pop("header")))
    if "max_attempts" in given and not -(2**31) < given["max_attempts"] < 2**31:
        raise InvalidInput(f"--max-attempts of {given['max_attempts']} is out of reach")
    return given


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput(f"--header takes NAME=VALUE, not {text!r}")
    return name, value
