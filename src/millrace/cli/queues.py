"""Commands for queues: list, settings, throughput, pause, resume, drain."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

import msgspec
import typer

from millrace.app.app import App
from millrace.app.format import plural, span
from millrace.app.queue import Queue
from millrace.cli import exits
from millrace.cli.output import Cell, StyledSpan, Word
from millrace.cli.session import CommandSession
from millrace.domain.errors import InvalidInput
from millrace.domain.request import LaneStatus, QueueCounts
from millrace.domain.settings import QueueSettings
from millrace.store.protocol import Store
from millrace.views.job_view import seconds, when
from millrace.views.queue_view import DURATIONS, queue_view, settings_view
from millrace.views.throughput import STEP, Point, mark, marks_before, point_view, series

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
    "drain": (
        "Examples:\n  millrace drain mail --dry-run\n  millrace drain mail --yes\n  millrace drain orders --lane 3",
    ),
}
STATES = ("ready", "running", "scheduled", "retrying", "blocked", "completed", "dead", "cancelled")
PER_MINUTE = 60_000 // STEP
SPARE = ("scheduled", "retrying", "blocked", "cancelled", "oldest_ready", "limits")
Name = Annotated[str, typer.Argument(metavar="QUEUE", help="A queue or pool.", show_default=False)]
Lane = Annotated[
    int | None, typer.Option("--lane", min=0, max=1_000_000, metavar="N", help="Only this lane of a pool.")
]


async def queues(
    session: CommandSession,
    name: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="Only this queue.", show_default=False)] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting of the queue; may be repeated."),
    ] = None,
    throughput: Annotated[
        bool, typer.Option("--throughput", help="Completed and dead jobs per minute, over all queues.")
    ] = False,
) -> int:
    """Show queues: jobs by state, ages and limits.

    With a name, also show the settings and lanes of this queue. Exit 1 if the queue was never used.
    """
    if changes and name is None:
        raise InvalidInput("--set changes one queue: name it, e.g. millrace queues mail --set rate=100")
    if throughput and (changes or name is not None):
        raise InvalidInput("--throughput covers all queues; remove the queue's name and --set")
    async with session.connected() as (app, store):
        if throughput:
            return await _throughput(session, store)
        if changes and name is not None:
            await app.queue(name).set(**dict(map(_change, changes)))
        if name is not None:
            app.queue(name)  # raises on an invalid name
        counts = [one for one in await app.jobs.count() if name in (None, one.queue)]
        known = [(one, await app.queue(one.queue).settings(), await _lanes(app, one.queue)) for one in counts]
    if session.output.json:
        shown = [queue_view(*one) for one in known]
        session.output.document(shown if name is None else next(iter(shown), None))
    else:
        _show(session, known, name)
    if name is not None and not known:
        session.output.say(f"Queue {name} was never used.")
        return exits.NO
    return exits.OK


async def _lanes(app: App, queue: str) -> list[LaneStatus]:
    return await app.queue(queue).lanes()


def _show(
    session: CommandSession, known: list[tuple[QueueCounts, QueueSettings, list[LaneStatus]]], name: str | None
) -> None:
    names = ("queue", *STATES, "oldest_ready", "limits")
    session.output.table(names, [_row(counts, settings) for counts, settings, _ in known], spare=SPARE)
    if not known:
        session.output.hint("No queue yet: submit a job first.")
    if name is None or not known:
        return
    _, settings, lanes = known[0]
    if session.output.terminal:
        print()
        values = msgspec.structs.asdict(settings_view(settings))
        session.output.record([(one, _setting_text(one, value)) for one, value in values.items()])
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
    return [counts.queue, *(getattr(counts, state) for state in STATES), StyledSpan(counts.oldest_ready), paused]


def _lane_row(lane: LaneStatus) -> list[Cell]:
    state = "paused" if lane.paused else "running" if lane.running else "held" if lane.holder is not None else ""
    return [lane.lane, lane.waiting, lane.running, lane.processed, lane.died, Word(state)]


def _setting_text(name: str, value: Any) -> str:
    """Return the value of a setting as text for people."""
    if name in DURATIONS and value is not None:
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
    """Parse a change such as `rate=100`, `max_depth=none` or `keep_dead=7d`, and return the name and the value. The
    value is decoded as JSON if possible, and is text otherwise.
    """
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


async def _throughput(session: CommandSession, store: Store) -> int:
    now = mark(await store.count(), await store.now())
    points = series(await marks_before(store, now))
    if session.output.json:
        shown = [point_view(point) for point in points]
        session.output.document({"now": when(now.at), "step": seconds(STEP), "points": shown})
        return exits.OK
    first = len(points) % PER_MINUTE
    minutes = [points[n : n + PER_MINUTE] for n in range(first, len(points), PER_MINUTE)]
    session.output.table(("until", "completed", "dead"), [_minute_row(minute) for minute in minutes])
    if not minutes:
        session.output.hint("There are too many recent events to count here; see /metrics of millrace serve.")
    return exits.OK


def _minute_row(minute: list[Point]) -> list[Cell]:
    return [
        when(minute[-1].at),
        round(sum(point.completed for point in minute)),
        round(sum(point.died for point in minute)),
    ]


async def pause(session: CommandSession, name: Name, lane: Lane = None) -> int:
    """Stop claims from a queue, or from one lane of a pool. Running jobs continue, and new jobs are accepted."""
    return await _switch(session, name, lane, paused=True)


async def resume(session: CommandSession, name: Name, lane: Lane = None) -> int:
    """Allow claims from a paused queue or lane again. Due times do not change: a job in backoff still waits."""
    return await _switch(session, name, lane, paused=False)


async def _switch(session: CommandSession, name: str, lane: int | None, *, paused: bool) -> int:
    async with session.connected() as (app, _store):
        queue = app.queue(name)
        known = [one.queue for one in await app.jobs.count()]
        settings = await (queue.pause(lane) if paused else queue.resume(lane))
        waiting = await _waiting(queue, lane)
    if session.output.json:
        session.output.document({"queue": name, "lane": lane, **_pauses(settings)})
    else:
        session.output.say(
            f"{_place(name, lane)} is {'paused' if paused else 'resumed'}; {plural(waiting, 'job waits', 'jobs wait')}"
        )
    if name not in known:  # allowed before the first job, but more often a typo
        session.output.say(f"note: queue {name} was never used before{_meant(name, known)}")
    return exits.OK


async def _waiting(queue: Queue, lane: int | None) -> int:
    if lane is None:
        return (await queue.counts()).waiting
    lanes = await queue.lanes()
    if lane >= len(lanes):
        known = f"has lanes 0 to {len(lanes) - 1}" if lanes else "has no lanes"
        raise InvalidInput(f"{queue.name} {known}; there is no lane {lane}. See: millrace queues {queue.name}")
    return lanes[lane].waiting


def _place(name: str, lane: int | None) -> str:
    return f"queue {name}" if lane is None else f"lane {lane} of {name}"


def _meant(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _pauses(settings: QueueSettings) -> dict[str, Any]:
    return {"paused": settings.paused, "paused_lanes": list(settings.paused_lanes)}


async def drain(
    session: CommandSession,
    name: Name,
    lane: Lane = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how many jobs would be cancelled.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Cancel every waiting job of a queue, or of one lane of a pool. Running jobs continue."""
    async with session.connected() as (app, _store):
        queue = app.queue(name)
        waiting = await _waiting(queue, lane)
        if dry_run:
            done = waiting
        else:
            if waiting and not yes and not _confirmed(session, _place(name, lane), waiting):
                return exits.NO
            with session.output.progress("draining", waiting) as progress:
                done = await queue.drain(progress, lane=lane)
    if session.output.json:
        session.output.document(
            {"queue": name, "lane": lane, "dry_run": dry_run, "cancelled": 0 if dry_run else done, "waiting": waiting}
        )
    else:
        print(done)
        session.output.say(f"{plural(done, 'job')} {'would be' if dry_run else ''} cancelled".replace("  ", " "))
    return exits.OK


def _confirmed(session: CommandSession, place: str, waiting: int) -> bool:
    answer = session.output.confirm(f"Cancel {plural(waiting, 'waiting job')} of {place}?")
    if answer is None:
        raise InvalidInput(
            f"{plural(waiting, 'job')} would be cancelled, and there is no terminal to confirm on. Use --yes."
        )
    return answer
