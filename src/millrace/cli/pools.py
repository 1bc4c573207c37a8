"""`millrace pools`: shows pools and the state of their lanes."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.app.pools.status import LaneState, PoolStatus
from millrace.cli import exits
from millrace.cli.output import Cell, Word
from millrace.cli.session import CommandSession
from millrace.domain.settings import QueueSettings
from millrace.views.queue_view import all_pools, pool_view

EXAMPLES = {
    "pools": (
        "Examples:\n"
        "  millrace pools\n"
        "  millrace pools orders                        its lanes\n"
        "  millrace pause orders --lane 3               pause one of them (see: millrace pause --help)",
    )
}


async def pools(
    session: CommandSession,
    name: Annotated[str | None, typer.Argument(metavar="[POOL]", help="Only this pool.", show_default=False)] = None,
) -> int:
    """Show all pools, or the lanes of one pool. Exit 1 if there is no such pool."""
    async with session.connected() as (app, _store):
        if name is not None:
            app.queue(name)  # raises on an invalid name
        known = [pool for pool in await all_pools(app) if name in (None, pool[0].pool)]
    if session.output.json:
        shown = [pool_view(*pool) for pool in known]
        session.output.document(shown if name is None else next(iter(shown), None))
    elif name is None:
        columns = ("pool", "state", "lanes", "waiting", "running", "processed", "dead", "max_depth")
        session.output.table(columns, [_row(*pool) for pool in known])
        if not known:
            session.output.hint("No pool yet: declare one with app.pool(…) and start a worker.")
    elif known:
        columns = ("lane", "state", "waiting", "running", "processed", "dead", "current", "retrying")
        session.output.table(columns, [_lane(lane) for lane in known[0][0].lanes])
    if name is not None and not known:
        session.output.say(f"There is no pool {name}.")
        return exits.NO
    return exits.OK


def _row(status: PoolStatus, settings: QueueSettings) -> list[Cell]:
    return [
        status.pool,
        Word(status.state),
        settings.lanes,
        status.waiting,
        status.running,
        status.processed,
        status.dead,
        settings.max_depth,
    ]


def _lane(lane: LaneState) -> list[Cell]:
    return [
        lane.lane,
        Word(lane.state),
        lane.waiting,
        lane.running,
        lane.processed,
        lane.dead,
        lane.current,
        lane.retrying,
    ]
