"""The ledger's operations on schedules: `advance` applies moves, and `due_schedules` is what a scheduler reads.

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
from millrace.domain.schedule import DueSchedules, Move, Moved


def due_schedules(ledger: Ledger, names: Sequence[str], limit: int, skip: int, now: int) -> DueSchedules:
    ledger.tables.prefetch_schedules(names)
    named = [ledger.tables.schedule(name) for name in names]
    if not limit:
        return DueSchedules(now, named, [], None)
    due = ledger.tables.due_schedules(now, limit, skip)
    return DueSchedules(now, named, due, now if len(due) == limit else ledger.tables.next_schedule(now))


def advance(ledger: Ledger, moves: Sequence[Move], now: int) -> list[Moved]:
    ledger.refuse_if_closed()
    ledger.tables.prefetch_schedules([move.name for move in moves])
    enqueued = _enqueue_together(ledger, moves, now)
    return [_advance_one(ledger, move, now, enqueued) for move in moves]


def _enqueue_together(ledger: Ledger, moves: Sequence[Move], now: int) -> bool:
    """Enqueue the jobs of all moves in one call, so that a store reads what they need together.

    Return False if nothing was enqueued, because a job is refused or because moves depend on each other. Then each move
    enqueues its own jobs.
    """
    if len({move.name for move in moves}) < len(moves):
        return False
    written = [move for move in moves if move.schedule is not None and _obstacle(ledger, move, now) is None]
    jobs = [spec for move in written for spec in move.jobs]
    if any(spec.after for spec in jobs):
        return False
    try:
        if jobs:
            ledger.enqueue(jobs, now)
    except QueueError:
        return False
    return True


def _obstacle(ledger: Ledger, move: Move, now: int) -> Moved | None:
    """Return the answer to a move that does not apply to the stored schedule; None if it applies."""
    current = ledger.tables.schedule(move.name)
    if move.seen != (0 if current is None else current.rev):
        return Moved("stale", current)
    if move.schedule is not None and current is not None and move.schedule.mark > max(now, current.mark):
        return Moved("early", current)
    return None


def _advance_one(ledger: Ledger, move: Move, now: int, enqueued: bool) -> Moved:
    obstacle = _obstacle(ledger, move, now)
    if obstacle is not None:
        return obstacle
    current, wanted = ledger.tables.schedule(move.name), move.schedule
    if wanted is None:
        ledger.tables.drop_schedule(move.name)
        return Moved("ok", None)
    if move.jobs and not enqueued:
        try:
            ledger.enqueue(move.jobs, now)
        except QueueError as error:  # for example a full queue: a later move tries this tick again
            return Moved("refused", current, str(error))
    mark = now if current is None else max(wanted.mark, current.mark)
    # Revisions start at the current time, so that a schedule that is removed and created again has new ones.
    rev = max(now, 1) if current is None else current.rev + 1
    written = msgspec.structs.replace(wanted, name=move.name, rev=rev, mark=mark)
    ledger.tables.put_schedule(written)
    return Moved("ok", written)
