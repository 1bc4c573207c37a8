"""`millrace schedules`: lists schedules, and pauses, resumes or forgets one."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.app.app import App
from millrace.cli import exits
from millrace.cli.output import At, Cell, Word
from millrace.cli.session import CommandSession
from millrace.domain.errors import InvalidInput
from millrace.domain.schedule import Schedule
from millrace.views.worker_view import schedule_view

EXAMPLES = {
    "schedules": (
        "Examples:\n"
        "  millrace schedules\n"
        "  millrace schedules cleanup --pause\n"
        "  millrace schedules cleanup --resume          ticks during the pause are skipped\n"
        "  millrace schedules old-report --forget --yes",
    )
}


async def schedules(
    session: CommandSession,
    name: Annotated[
        str | None, typer.Argument(metavar="[SCHEDULE]", help="Only this schedule.", show_default=False)
    ] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Stop enqueueing jobs.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Enqueue jobs again, from the next tick on.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the schedule from the store.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Show schedules and their ticks; pause, resume or forget one."""
    if pause + resume + forget > 1:
        raise InvalidInput("--pause, --resume and --forget cannot be used together")
    if name is None and (pause or resume or forget):
        raise InvalidInput("which schedule? Name it, e.g. millrace schedules cleanup --pause")
    async with session.connected() as (app, store):
        now = await store.now()
        if name is None:
            return _show(session, await app.schedules(), now, name)
        if name not in {schedule.name for schedule in await app.schedules()}:
            session.output.say(f"There is no schedule {name} in the store.")
            if session.output.json:
                session.output.document(None)
            return exits.NO
        if forget:
            return await _forget(session, app, name, yes)
        control = app.schedule(name)
        schedule = await (control.pause() if pause else control.resume() if resume else control.status())
    return _show(session, [schedule], now, name)


async def _forget(session: CommandSession, app: App, name: str, yes: bool) -> int:
    agreed = yes or session.output.confirm(f"Forget schedule {name}?")
    if agreed is None:
        raise InvalidInput("there is no terminal to confirm on; use --yes")
    if not agreed:
        return exits.NO
    await app.schedule(name).forget()
    if session.output.json:
        session.output.document({"name": name, "forgotten": True})
    else:
        session.output.say(f"Schedule {name} is removed. A running scheduler whose app declares it creates it again.")
    return exits.OK


def _show(session: CommandSession, known: list[Schedule], now: int, name: str | None) -> int:
    if session.output.json:
        shown = [schedule_view(schedule) for schedule in known]
        session.output.document(shown if name is None else shown[0])
        return exits.OK
    columns = ("schedule", "state", "times", "tz", "task", "queue", "next", "last", "missed")
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
    ]
