"""`millrace workers`: who is there, who has gone silent, and what each has done."""

from __future__ import annotations

from typing import Annotated

import typer

from millrace.cli import exits
from millrace.cli.output import At, Cell, Word
from millrace.cli.session import Session
from millrace.cli.text import plural
from millrace.domain.request import WorkerRecord
from millrace.runtime.holding import held_by_worker
from millrace.runtime.shape import worker_plain

EXAMPLES = {"workers": ("Examples:\n  millrace workers\n  millrace workers --json | jq '.[] | select(.alive).id'",)}


async def workers(
    session: Session, alive: Annotated[bool, typer.Option("--alive", help="Leave out those that are gone.")] = False
) -> int:
    """Show workers: alive or stale, what they run, and their counters.

    A worker is stale when it has not been heard of within its time. What it runs is what the store knows it to hold.
    """
    async with session.connected() as (app, store):
        now = await store.now()
        known = [record for record in await store.workers() if record.alive or not alive]
        running = await held_by_worker(app) if known else {}
    known.sort(key=lambda record: (not record.alive, record.info.id))
    if session.output.json:
        session.output.document(
            [{**worker_plain(record), "running": running.get(record.info.id, [])} for record in known]
        )
        return exits.OK
    names = ("id", "state", "queues", "slots", "running", "completed", "failed", "started", "last_beat", "jobs")
    session.output.table(names, [_row(record, running.get(record.info.id, []), now) for record in known])
    if not known:
        session.output.hint("No worker is there. Start one: millrace worker --app module:app")
    stale = sum(not record.alive for record in known)
    if stale:
        session.output.hint(f"{plural(stale, 'worker')} stopped without a word; what they held is recovered by others.")
    return exits.OK


def _row(record: WorkerRecord, running: list[str], now: int) -> list[Cell]:
    info = record.info
    return [
        info.id,
        Word("alive" if record.alive else "stale"),
        ",".join(info.queues),
        info.slots,
        len(running),
        info.completed,
        info.failed,
        At(record.started_at, now),
        At(record.last_beat, now),
        ",".join(running),
    ]
