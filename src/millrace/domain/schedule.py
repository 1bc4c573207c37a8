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

EVERY_SCHEDULE = 2**31 - 1  # as a limit
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
    template: Spec | None = None  # of the jobs, if the store runs the schedule; None: an app declares it in code

    @property
    def source(self) -> Literal["code", "store"]:
        """Whether an app declares the schedule in code, or it was stored at run time and every worker runs it."""
        return "code" if self.template is None else "store"

    @property
    def due_at(self) -> int | None:
        """When any scheduler has to look at this schedule: the key of the index of due schedules.

        None for a schedule that is paused, has no further tick, or is run only by the schedulers of an app's code.
        """
        return None if self.template is None or self.paused else self.next_tick


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


class DueSchedules(msgspec.Struct, frozen=True):
    """What a scheduler reads at once, at the instant `now` of the store's clock.

    `named` has the schedules that were asked for by name, in order. `due` has schedules whose `due_at` has come, oldest
    first. `next_at` is when to look again: now if more schedules may be due, otherwise when the next one is due. It is
    None if none will be, and for a limit of 0, with which only `named` is read.
    """

    now: int
    named: list[Schedule | None]
    due: list[Schedule]
    next_at: int | None


def check_moves(moves: Sequence[Move]) -> None:
    """Raise an error for an invalid name or job. Called before any I/O, so that every store raises the same errors."""
    for move in moves:
        check_name("schedule", move.name)
        if move.schedule is not None and move.schedule.template is not None:
            check_spec(move.schedule.template)
        for spec in move.jobs:
            check_spec(spec)


class Plan(msgspec.Struct, frozen=True):
    """A definition that was read: the initial record, the spec of the jobs to enqueue, and the timetable."""

    schedule: Schedule
    template: Spec
    timetable: Timetable


def next_move(plan: Plan, seen: Schedule | None, now: int, decides: bool) -> Move | None:
    """Return the next write for this plan, or None if nothing is to be written. `seen` is the stored record.

    If the stored definition differs from the plan's, it is replaced only if `decides` is True, that is, if this
    scheduler may change definitions.
    """
    if seen is None or seen.digest != plan.schedule.digest:
        return defining_move(plan, seen, now) if seen is None or decides else None
    return ticking_move(seen, plan.template, plan.timetable, now)


def defining_move(plan: Plan, seen: Schedule | None, now: int) -> Move:
    """Return the write that stores a new or changed definition.

    If the expression or the time zone changed, only ticks after `now` are enqueued. If only the job's options changed,
    the mark stays, so that a tick that becomes due meanwhile is not lost.
    """
    name = plan.schedule.name
    if seen is None:
        return Move(name, 0, _at(plan, now))
    same_times = (seen.expression, seen.tz) == (plan.schedule.expression, plan.schedule.tz)
    made = _at(plan, seen.mark if same_times else max(seen.mark, now))
    return Move(name, seen.rev, msgspec.structs.replace(made, paused=seen.paused, last_tick=seen.last_tick))


def ticking_move(seen: Schedule, template: Spec, timetable: Timetable, now: int) -> Move | None:
    """Return the write that enqueues the jobs of the due ticks, or None if nothing is to be written."""
    if seen.paused:
        return None
    todo = due(timetable, seen.mark, now, seen.missed, seen.grace)
    if todo.mark == seen.mark and seen.due_at is None:
        return None
    next_tick = timetable.next(todo.mark)
    if todo.mark == seen.mark and next_tick == seen.next_tick:
        return None
    last_tick = todo.run[-1] if todo.run else seen.last_tick
    after = msgspec.structs.replace(seen, mark=todo.mark, last_tick=last_tick, next_tick=next_tick)
    return Move(seen.name, seen.rev, after, tuple(tick_job(template, seen.name, tick) for tick in todo.run))


def postponing_move(seen: Schedule, until: int) -> Move:
    """Return the write after which a refused tick is tried again at `until`.

    The mark stays, so the tick is not lost. The refused schedule no longer precedes others in the index of due
    schedules.
    """
    return Move(seen.name, seen.rev, msgspec.structs.replace(seen, next_tick=until))


def overdue(plan: Plan, seen: Schedule, now: int) -> bool:
    """Return whether the next tick is long overdue: probably no running scheduler has the stored definition."""
    expected = plan.timetable.next(seen.mark) if seen.next_tick is None else seen.next_tick
    return not seen.paused and expected is not None and expected + TAKEOVER < now


def _at(plan: Plan, mark: int) -> Schedule:
    return msgspec.structs.replace(plan.schedule, mark=mark, next_tick=plan.timetable.next(mark))


def with_pause(schedule: Schedule, paused: bool, now: int, timetable: Timetable | None = None) -> Schedule:
    """Return the schedule, paused or resumed. A resumed schedule skips the ticks that passed during the pause.

    To resume a schedule that the store runs, pass its timetable: the next tick is in the index of due schedules.
    """
    if schedule.paused == paused:
        return schedule
    mark = schedule.mark if paused else max(schedule.mark, now)
    next_tick = None if paused or timetable is None else timetable.next(mark)
    return msgspec.structs.replace(schedule, paused=paused, mark=mark, next_tick=next_tick)
