"""Schedules as a store keeps them: a definition, a mark, and a revision number for conditional writes.

The mark is the instant up to which all ticks are done. It never moves back, so one number records all earlier ticks.

There is no leader. Any number of schedulers read the same record, make the same decision and try to write it. The
scheduler that succeeds enqueues the jobs of the ticks and advances the mark in one atomic step, so each tick is
enqueued exactly once, even if schedulers crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from millrace.domain.job import MINUTE, Spec
from millrace.domain.rules.check import check_name, check_spec
from millrace.domain.rules.cron import Missed, Timetable, due, tick_job

TAKEOVER = 2 * MINUTE  # a schedule this long overdue has no scheduler with its definition any more


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of one schedule. Instants are milliseconds of the store's clock."""

    name: str
    expression: str  # "0 3 * * *", or "every 30s"
    tz: str
    task: str
    queue: str
    missed: Missed
    grace: int
    digest: str  # of the whole definition, including the job's payload and options
    mark: int  # every tick up to this instant is done
    rev: int = 0
    last_tick: int | None = None  # the latest tick that enqueued a job
    next_tick: int | None = None
    paused: bool = False


class Move(msgspec.Struct, frozen=True):
    """A conditional write: if the stored schedule has revision `seen`, store `schedule` and enqueue `jobs`.

    `seen=0` means that no schedule of this name is stored. `schedule=None` removes the stored schedule.
    """

    name: str
    seen: int
    schedule: Schedule | None
    jobs: tuple[Spec, ...] = ()


class Moved(msgspec.Struct, frozen=True):
    """The answer to a move, with the schedule that is stored now.

    - `ok`: the move was written. With any other status, nothing was written.
    - `stale`: another scheduler wrote first.
    - `early`: the mark is later than the store's clock.
    - `refused`: the jobs cannot be enqueued now; `problem` has the reason.
    """

    status: Literal["ok", "stale", "early", "refused"]
    schedule: Schedule | None
    problem: str = ""


def check_moves(moves: Sequence[Move]) -> None:
    """Raise an error for an invalid name or job. Called before any I/O, so that every store raises the same errors."""
    for move in moves:
        check_name("schedule", move.name)
        for spec in move.jobs:
            check_spec(spec)


class Plan(msgspec.Struct, frozen=True):
    """A schedule as an app declares it: its initial record, the spec of the jobs to enqueue, and its timetable."""

    schedule: Schedule
    template: Spec
    timetable: Timetable


def next_move(plan: Plan, seen: Schedule | None, now: int, decides: bool) -> Move | None:
    """Return the next write for this plan, or None if nothing is to be written. `seen` is the stored record.

    If the stored definition differs from the plan's, it is replaced only if `decides` is True, that is, if this
    scheduler may change definitions.
    """
    declared, timetable = plan.schedule, plan.timetable
    if seen is None:
        return Move(declared.name, 0, _at(plan, now))
    if seen.digest != declared.digest:
        return Move(declared.name, seen.rev, _redefined(plan, seen, now)) if decides else None
    if seen.paused:
        return None
    todo = due(timetable, seen.mark, now, declared.missed, declared.grace)
    if todo.mark == seen.mark:
        return None
    after = msgspec.structs.replace(
        seen,
        mark=todo.mark,
        last_tick=todo.run[-1] if todo.run else seen.last_tick,
        next_tick=timetable.next(todo.mark),
    )
    jobs = tuple(tick_job(plan.template, declared.name, tick) for tick in todo.run)
    return Move(declared.name, seen.rev, after, jobs)


def overdue(plan: Plan, seen: Schedule, now: int) -> bool:
    """Return whether the next tick is long overdue: probably no running scheduler has the stored definition."""
    expected = plan.timetable.next(seen.mark) if seen.next_tick is None else seen.next_tick
    return not seen.paused and expected is not None and expected + TAKEOVER < now


def _at(plan: Plan, mark: int) -> Schedule:
    return msgspec.structs.replace(plan.schedule, mark=mark, next_tick=plan.timetable.next(mark))


def _redefined(plan: Plan, seen: Schedule, now: int) -> Schedule:
    """Return the record for a changed definition.

    If the expression or the time zone changed, only ticks after `now` are enqueued. If only the job's options changed,
    the mark stays, so that a tick that becomes due during a deployment is not lost.
    """
    same_times = (seen.expression, seen.tz) == (plan.schedule.expression, plan.schedule.tz)
    made = _at(plan, seen.mark if same_times else max(seen.mark, now))
    return msgspec.structs.replace(made, paused=seen.paused, last_tick=seen.last_tick)


def with_pause(schedule: Schedule, paused: bool, now: int) -> Schedule:
    """Return the schedule, paused or resumed. A resumed schedule skips the ticks that passed during the pause."""
    if schedule.paused == paused:
        return schedule
    mark = schedule.mark if paused else max(schedule.mark, now)
    return msgspec.structs.replace(schedule, paused=paused, mark=mark, next_tick=None)
