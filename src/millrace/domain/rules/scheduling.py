"""The ledger's operation on schedules: `advance` applies moves.

A move is a conditional write of one schedule. If the stored schedule still has the revision that the scheduler has
read, the move enqueues the jobs of its ticks and stores the new schedule, or removes the schedule, in one atomic step.
Otherwise nothing is written. A move whose jobs cannot be enqueued, or whose mark is later than the store's clock,
writes nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace.domain.errors import QueueError
from millrace.domain.ledger import Ledger
from millrace.domain.schedule import Move, Moved


def advance(ledger: Ledger, moves: Sequence[Move], now: int) -> list[Moved]:
    ledger.refuse_if_closed()
    return [_advance_one(ledger, move, now) for move in moves]


def _advance_one(ledger: Ledger, move: Move, now: int) -> Moved:
    current = ledger.tables.schedule(move.name)
    wanted = move.schedule
    if move.seen != (0 if current is None else current.rev):
        return Moved("stale", current)
    if wanted is None:
        ledger.tables.drop_schedule(move.name)
        return Moved("ok", None)
    mark = now if current is None else max(wanted.mark, current.mark)
    if mark > now and current is not None and mark > current.mark:
        return Moved("early", current)
    if move.jobs:
        try:
            ledger.enqueue(move.jobs, now)
        except QueueError as error:  # for example a full queue: a later move tries this tick again
            return Moved("refused", current, str(error))
    # Revisions start at the current time, so that a schedule that is removed and created again has new ones.
    rev = max(now, 1) if current is None else current.rev + 1
    written = msgspec.structs.replace(wanted, name=move.name, rev=rev, mark=mark)
    ledger.tables.put_schedule(written)
    return Moved("ok", written)
