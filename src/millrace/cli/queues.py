"""Queues: how full they are, what bounds them, and stopping and emptying them."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

import msgspec
import typer

from millrace.cli import exits
from millrace.cli.output import Cell, Span, Word
from millrace.cli.session import Session
from millrace.cli.text import plural, span
from millrace.cli.throughput import show_throughput
from millrace.domain.errors import InvalidInput
from millrace.domain.request import LaneStatus, QueueCounts
from millrace.domain.settings import QueueSettings
from millrace.runtime.app import App
from millrace.runtime.shape import IN_MILLISECONDS, Plain, queue_plain, settings_plain

EXAMPLES = {
    "queues": (
        "Examples:\n"
        "  millrace queues\n"
        "  millrace queues mail\n"
        "  millrace queues --throughput                      the last quarter of an hour\n"
        "  millrace queues mail --set max_running=20 --set rate=100 --set max_depth=none\n"
        "  millrace queues --json | jq '.[] | {queue, ready}'",
    ),
    "pause": ("Examples:\n  millrace pause mail\n  millrace pause orders --lane 3",),
    "resume": ("Examples:\n  millrace resume mail\n  millrace resume orders --lane 3",),
    "drain": ("Examples:\n  millrace drain mail --dry-run\n  millrace drain mail --yes",),
}
STATES = ("ready", "running", "scheduled", "retrying", "blocked", "completed", "dead", "cancelled")
SPARE = ("scheduled", "retrying", "blocked", "cancelled", "oldest_ready", "limits")
Name = Annotated[str, typer.Argument(metavar="QUEUE", help="A queue or pool.", show_default=False)]
Lane = Annotated[
    int | None, typer.Option("--lane", min=0, max=1_000_000, metavar="N", help="Only this lane of a pool.")
]


async def queues(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="Only this one.", show_default=False)] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting of the queue; may be repeated."),
    ] = None,
    throughput: Annotated[
        bool, typer.Option("--throughput", help="Of all queues: completed and dead jobs by the minute, lately.")
    ] = False,
) -> int:
    """Show queues: jobs by state, ages and limits.

    With a name, its settings and lanes too. Exit 1 when the queue was never used.
    """
    if changes and name is None:
        raise InvalidInput("--set changes one queue: name it, e.g. millrace queues mail --set rate=100")
    if throughput and (changes or name is not None):
        raise InvalidInput("--throughput is of all queues together: leave the queue's name and --set out")
    async with session.connected() as (app, store):
        if throughput:
            return await show_throughput(session, store)
        if changes and name is not None:
            await app.queue(name).set(**dict(map(_change, changes)))
        if name is not None:
            app.queue(name)  # a name that cannot be one is said to be so
        counts = [one for one in await app.jobs.count() if name in (None, one.queue)]
        known = [(one, await app.queue(one.queue).settings(), await _lanes(app, one.queue)) for one in counts]
    if session.output.json:
        plain = [queue_plain(*one) for one in known]
        session.output.document(plain if name is None else next(iter(plain), None))
    else:
        _show(session, known, name)
    if name is not None and not known:
        session.output.say(f"Queue {name} was never used.")
        return exits.NO
    return exits.OK


async def _lanes(app: App, queue: str) -> list[LaneStatus]:
    return await app.queue(queue).lanes()


def _show(session: Session, known: list[tuple[QueueCounts, QueueSettings, list[LaneStatus]]], name: str | None) -> None:
    names = ("queue", *STATES, "oldest_ready", "limits")
    session.output.table(names, [_row(counts, settings) for counts, settings, _ in known], spare=SPARE)
    if not known:
        session.output.hint("No queue yet: submit a job first.")
    if name is None or not known:
        return
    _, settings, lanes = known[0]
    if session.output.terminal:
        print()
        session.output.record([(one, _told(one, value)) for one, value in settings_plain(settings).items()])
        if lanes:
            print()
            columns = ("lane", "waiting", "running", "processed", "died", "state")
            session.output.table(columns, [_lane_row(lane) for lane in lanes])


def _row(counts: QueueCounts, settings: QueueSettings) -> list[Cell]:
    limits = [
        f"{name}={value:.12g}"
        for name in ("lanes", "max_running", "rate", "max_depth")
        if (value := getattr(settings, name))
    ]
    if settings.paused_lanes:
        limits.append("paused lanes=" + ",".join(map(str, settings.paused_lanes)))
    paused: Cell = Word("paused") if settings.paused else " ".join(limits)
    if settings.paused and limits:
        paused = f"paused {' '.join(limits)}"
    return [counts.queue, *(getattr(counts, state) for state in STATES), Span(counts.oldest_ready), paused]


def _lane_row(lane: LaneStatus) -> list[Cell]:
    state = "paused" if lane.paused else "running" if lane.running else "held" if lane.holder is not None else ""
    return [lane.lane, lane.waiting, lane.running, lane.processed, lane.died, Word(state)]


def _told(name: str, value: Any) -> str:
    """A setting as a person would write it."""
    if name in IN_MILLISECONDS and value is not None:
        return span(value * 1000)
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.12g}"
        case list() | tuple():
            return ", ".join(map(str, value)) or "none"
        case _:
            return str(value)


def _change(text: str) -> tuple[str, Any]:
    """`rate=100`, `max_depth=none`, `keep_dead=7d`: JSON where it is JSON, else a word."""
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name:
        raise InvalidInput(f"--set takes NAME=VALUE, not {text!r}")
    if name in ("paused", "paused_lanes"):
        raise InvalidInput("use millrace pause and millrace resume for that")
    value = value.strip()
    if value.lower() in ("none", "null", ""):
        return name, None
    try:
        return name, msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return name, value


async def pause(session: Session, name: Name, lane: Lane = None) -> int:
    """Stop claims from a queue, or from one lane of a pool. What runs goes on; jobs are still taken in."""
    return await _switch(session, name, lane, paused=True)


async def resume(session: Session, name: Name, lane: Lane = None) -> int:
    """Let claims go on. Due times were kept: a job in backoff still waits for its time."""
    return await _switch(session, name, lane, paused=False)


async def _switch(session: Session, name: str, lane: int | None, *, paused: bool) -> int:
    async with session.connected() as (app, _store):
        queue = app.queue(name)
        known = [one.queue for one in await app.jobs.count()]
        settings = await (queue.pause(lane) if paused else queue.resume(lane))
        counts = await queue.counts()
    if session.output.json:
        session.output.document({"queue": name, "lane": lane, **_pauses(settings)})
    else:
        place = f"lane {lane} of {name}" if lane is not None else f"queue {name}"
        session.output.say(
            f"{place} is {'paused' if paused else 'open'}; {plural(counts.waiting, 'job waits', 'jobs wait')}"
        )
    if name not in known:  # it may be meant, before the first job; more often it is misspelt
        session.output.say(f"note: queue {name} was never used before{_meant(name, known)}")
    return exits.OK


def _meant(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _pauses(settings: QueueSettings) -> Plain:
    return {"paused": settings.paused, "paused_lanes": list(settings.paused_lanes)}


async def drain(
    session: Session,
    name: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how many it would be.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Cancel every job that waits in a queue. What runs goes on."""
    async with session.connected() as (app, _store):
        queue = app.queue(name)
        waiting = (await queue.counts()).waiting
        if dry_run:
            done = waiting
        else:
            if waiting and not yes and not _agreed(session, name, waiting):
                return exits.NO
            with session.output.progress("draining", waiting) as progress:
                done = await queue.drain(progress)
    if session.output.json:
        session.output.document(
            {"queue": name, "dry_run": dry_run, "cancelled": 0 if dry_run else done, "waiting": waiting}
        )
    else:
        print(done)
        session.output.say(f"{plural(done, 'job')} {'would be' if dry_run else ''} cancelled".replace("  ", " "))
    return exits.OK


def _agreed(session: Session, name: str, waiting: int) -> bool:
    answer = session.output.confirm(f"Cancel {plural(waiting, 'waiting job')} of queue {name}?")
    if answer is None:
        raise InvalidInput(f"{plural(waiting, 'job')} would be cancelled, and there is nobody to ask. Say --yes.")
    return answer
