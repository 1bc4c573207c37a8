"""`millrace workers`: shows live and stale workers, and their counters."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.app.format import plural
from millrace.cli import exits
from millrace.cli.output import At, Cell, Word
from millrace.cli.session import CommandSession
from millrace.domain.request import WorkerRecord
from millrace.store.variables import shards_text
from millrace.views.worker_view import running_by_worker, worker_view

EXAMPLES = {"workers": ("Examples:\n  millrace workers\n  millrace workers --json | jq '.[] | select(.alive).id'",)}


async def workers(
    session: CommandSession,
    alive: Annotated[bool, typer.Option("--alive", help="Show only live workers.")] = False,
) -> int:
    """Show workers: alive or stale, what they run, and their counters.

    A worker is stale if its heartbeat is overdue. Running jobs are shown as the store has recorded them. Shards are the
    parts of an object store from which a worker claims.
    """
    async with session.connected() as (app, store):
        now = await store.now()
        known = [record for record in await store.workers() if record.alive or not alive]
        running = await running_by_worker(app) if known else {}
    known.sort(key=lambda record: (not record.alive, record.info.id))
    if session.output.json:
        session.output.document([worker_view(record, running.get(record.info.id, [])) for record in known])
        return exits.OK
    names = (
        "id",
        "state",
        "queues",
        "shards",
        "slots",
        "running",
        "completed",
        "failed",
        "started",
        "last_beat",
        "jobs",
    )
    session.output.table(names, [_row(record, running.get(record.info.id, []), now) for record in known])
    if not known:
        session.output.hint("There is no worker. Start one: millrace worker --app module:app")
    stale = sum(not record.alive for record in known)
    if stale:
        session.output.hint(f"{plural(stale, 'worker')} stopped unexpectedly; other workers recover their jobs.")
    return exits.OK


def _row(record: WorkerRecord, running: list[str], now: int) -> list[Cell]:
    info = record.info
    return [
        info.id,
        Word("alive" if record.alive else "stale"),
        ",".join(info.queues),
        shards_text(info.shards) or "all",
        info.slots,
        len(running),
        info.completed,
        info.failed,
        At(record.started_at, now),
        At(record.last_beat, now),
        ",".join(running),
    ]
