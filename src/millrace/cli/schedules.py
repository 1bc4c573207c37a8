"""`millrace schedules` lists, pauses, resumes and removes schedules; `millrace schedule` stores one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from millrace.app.app import App
from millrace.cli import exits
from millrace.cli.jobs.payload_args import read_bytes, read_values
from millrace.cli.jobs.submit import JobOptions, job_keywords
from millrace.cli.output import At, Cell, Word
from millrace.cli.session import CommandSession
from millrace.domain.errors import InvalidInput
from millrace.domain.schedule import Schedule
from millrace.views.job_input import SpecBuilder
from millrace.views.worker_view import schedule_view

EXAMPLES = {
    "schedules": (
        "Examples:\n"
        "  millrace schedules\n"
        "  millrace schedules --after report.acme --limit 100\n"
        "  millrace schedules cleanup --pause\n"
        "  millrace schedules cleanup --resume          ticks during the pause are skipped\n"
        "  millrace schedules old-report --remove --yes",
    ),
    "schedule": (
        "Examples:\n"
        "  millrace schedule report.acme report '{\"customer\": \"acme\"}' --cron '0 8 * * *' --tz Europe/Berlin\n"
        "  millrace schedule ping ping --every 30s\n"
        "  millrace schedule cleanup cleanup @days.json --cron @daily --missed skip --queue upkeep",
        "Any worker of the store runs the schedule. With --app, the payload is checked against the task's\n"
        "annotations, and the task's own options apply.",
    ),
}


async def schedules(
    session: CommandSession,
    name: Annotated[
        str | None, typer.Argument(metavar="[SCHEDULE]", help="Only this schedule.", show_default=False)
    ] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Stop enqueueing jobs.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Enqueue jobs again, from the next tick on.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the schedule from the store.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    after: Annotated[str, typer.Option("--after", help="Only schedules after this name.", metavar="NAME")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many to show.", metavar="N", min=1)] = 1_000,
) -> int:
    """Show schedules and their ticks; pause, resume or remove one."""
    if pause + resume + remove > 1:
        raise InvalidInput("--pause, --resume and --remove cannot be used together")
    if name is None and (pause or resume or remove):
        raise InvalidInput("which schedule? Name it, e.g. millrace schedules cleanup --pause")
    async with session.connected() as (app, store):
        now = await store.now()
        if name is None:
            found = await app.schedules.page(after=after, limit=limit + 1)
            code = _show(session, found[:limit], now, name)
            if len(found) > limit:
                session.output.hint(f"There are more: millrace schedules --after {found[limit - 1].name}")
            return code
        schedule = await app.schedules.get(name)
        if schedule is None:
            session.output.say(f"There is no schedule {name} in the store.")
            if session.output.json:
                session.output.document(None)
            return exits.NO
        if remove:
            return await _remove(session, app, name, yes)
        if pause or resume:
            schedule = await (app.schedules.pause(name) if pause else app.schedules.resume(name))
    return _show(session, [schedule], now, name)


async def schedule(
    session: CommandSession,
    options: JobOptions,
    name: Annotated[str, typer.Argument(metavar="SCHEDULE", help="Its name.", show_default=False)],
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task.", show_default=False)],
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="PAYLOAD", help="Parameters of the task: a JSON object, @file, or - for stdin.", show_default=False
        ),
    ] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", help="When: a cron expression such as '0 8 * * *'.", metavar="TEXT")
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", help="Instead of --cron: an interval.", metavar="DURATION")
    ] = None,
    tz: Annotated[str, typer.Option("--tz", help="The time zone.", metavar="NAME")] = "UTC",
    missed: Annotated[
        str, typer.Option("--missed", help="What becomes of missed ticks.", metavar="once|skip|all")
    ] = "once",
    grace: Annotated[
        str, typer.Option("--grace", help="How late a tick may be without being missed.", metavar="DURATION")
    ] = "1m",
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Do not check against the app, even if one is set.")
    ] = False,
) -> int:
    """Store a schedule that enqueues a job at each tick, or change the one with this name."""
    keywords = job_keywords(options)
    for option in ("id", "after"):
        if option in keywords:
            raise InvalidInput(f"--{option} is for one job; the jobs of a schedule cannot have it")
    app = session.app() if session.has_app and not unchecked else None
    builder = SpecBuilder(app, task, keywords)
    values = read_values(read_bytes("" if payload is None else payload), "the payload")
    times: Any = {"cron": cron, "every": every, "tz": tz, "missed": missed, "grace": grace}
    async with session.connected(app) as (connected, store):
        [spec] = builder.specs(connected, [values])
        stored = await connected.schedules.put(name, spec, **times)
        return _show(session, [stored], await store.now(), name)


async def _remove(session: CommandSession, app: App, name: str, yes: bool) -> int:
    agreed = yes or session.output.confirm(f"Remove schedule {name}?")
    if agreed is None:
        raise InvalidInput("there is no terminal to confirm on; use --yes")
    if not agreed:
        return exits.NO
    removed = await app.schedules.remove(name)
    if session.output.json:
        session.output.document({"name": name, "removed": removed > 0})
    else:
        text = f"Schedule {name} is removed. A running worker whose app declares it in code stores it again."
        session.output.say(text)
    return exits.OK


def _show(session: CommandSession, known: list[Schedule], now: int, name: str | None) -> int:
    if session.output.json:
        shown = [schedule_view(schedule) for schedule in known]
        session.output.document(shown if name is None else shown[0])
        return exits.OK
    columns = ("schedule", "state", "times", "tz", "task", "queue", "next", "last", "missed", "source")
    session.output.table(columns, [_row(schedule, now) for schedule in known])
    if not known:
        session.output.hint("No schedule yet: declare one with app.cron(…) and start a worker.")
    return exits.OK


def _row(schedule: Schedule, now: int) -> list[Cell]:
    return [
        schedule.name,
        Word("paused" if schedule.paused else "active"),
        schedule.expression,
        schedule.tz,
        schedule.task,
        schedule.queue,
        At(schedule.next_tick, now),
        At(schedule.last_tick, now),
        schedule.missed,
        schedule.source,
    ]
