"""The ledger's step for schedules: compare, enqueue and write, each move entirely or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace.domain.errors import QueueError
from millrace.domain.ledger import Ledger
from millrace.domain.schedule import Move, Moved


def advance(ledger: Ledger, moves: Sequence[Move], now: int) -> list[Moved]:
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
        except QueueError as error:  # a full queue, for one: the tick is carried out once there is room
            return Moved("refused", current, str(error))
    # Revisions begin at the clock, so that a schedule which is removed and made anew does not repeat one.
    rev = max(now, 1) if current is None else current.rev + 1
    written = msgspec.structs.replace(wanted, name=move.name, rev=rev, mark=mark)
    ledger.tables.put_schedule(written)
    return Moved("ok", written)
