"""How fast jobs went lately, minute by minute, over all queues."""

from __future__ import annotations

from millrace.cli import exits
from millrace.cli.output import Cell
from millrace.cli.session import Session
from millrace.runtime.flow import STEP, Point, mark, marks_before, series
from millrace.runtime.shape import seconds, when
from millrace.store.protocol import Store

PER_MINUTE = 60_000 // STEP


async def show_throughput(session: Session, store: Store) -> int:
    now = mark(await store.count(), await store.now())
    points = series(await marks_before(store, now))
    if session.output.json:
        plain = [{"at": when(one.at), "completed": one.completed, "died": one.died} for one in points]
        session.output.document({"now": when(now.at), "step": seconds(STEP), "points": plain})
        return exits.OK
    first = len(points) % PER_MINUTE
    minutes = [points[n : n + PER_MINUTE] for n in range(first, len(points), PER_MINUTE)]
    session.output.table(("until", "completed", "dead"), [_row(minute) for minute in minutes])
    if not minutes:
        session.output.hint("Too much happened lately to count it here: see /metrics of millrace serve.")
    return exits.OK


def _row(minute: list[Point]) -> list[Cell]:
    return [
        when(minute[-1].at),
        round(sum(point.completed for point in minute)),
        round(sum(point.died for point in minute)),
    ]
