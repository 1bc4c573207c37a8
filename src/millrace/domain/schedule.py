"""Schedules as a store keeps them: a definition, how far it was carried out, and a revision to compare.

No scheduler leads. Any number of them look at the same record, decide the same, and try to write it; the one that
wins puts the jobs of the ticks in and moves the mark in one atomic step, so a tick is carried out exactly once
whoever crashes where. The mark never moves back, so a tick is remembered for ever in the room of one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from millrace.domain.check import check_name, check_spec
from millrace.domain.cron import Missed, Timetable, due, tick_job
from millrace.domain.job import MINUTE, Spec

TAKEOVER = 2 * MINUTE  # so long overdue, a schedule has been left by those who had defined it


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """One schedule. Instants are those of the store's clock."""

    name: str
    expression: str  # "0 3 * * *", or "every 30s"
    tz: str
    task: str
    queue: str
    missed: Missed
    grace: int
    digest: str  # of the whole definition, the job's payload and options too
    mark: int  # every tick up to here has been dealt with
    rev: int = 0
    last_tick: int | None = None  # the newest that put a job in
    next_tick: int | None = None
    paused: bool = False


class Move(msgspec.Struct, frozen=True):
    """Write a schedule if it is still at revision `seen` (0: not there), and put jobs in with it. None removes it."""

    name: str
    seen: int
    schedule: Schedule | None
    jobs: tuple[Spec, ...] = ()


class Moved(msgspec.Struct, frozen=True):
    """`schedule` as it now stands.

    stale: somebody else wrote first. early: the mark would pass the store's clock. refused: the jobs cannot be put in
    now, for the reason in `problem`. Nothing was written then.
    """

    status: Literal["ok", "stale", "early", "refused"]
    schedule: Schedule | None
    problem: str = ""


def check_moves(moves: Sequence[Move]) -> None:
    """Before any I/O, the same on every store."""
    for move in moves:
        check_name("schedule", move.name)
        for spec in move.jobs:
            check_spec(spec)


class Plan(msgspec.Struct, frozen=True):
    """A schedule as an app declares it: the record it begins with, the job of a tick but for its id, and the ticks."""

    schedule: Schedule
    template: Spec
    timetable: Timetable


def next_move(plan: Plan, seen: Schedule | None, now: int, decides: bool) -> Move | None:
    """What a scheduler that holds this plan wants written, given the record as it stands.

    `decides`: its definition goes before another one that is there. Else it lets that schedule be.
    """
    mine, timetable = plan.schedule, plan.timetable
    if seen is None:
        return Move(mine.name, 0, _at(plan, now))
    if seen.digest != mine.digest:
        return Move(mine.name, seen.rev, _redefined(plan, seen, now)) if decides else None
    if seen.paused:
        return None
    todo = due(timetable, seen.mark, now, mine.missed, mine.grace)
    if todo.mark == seen.mark:
        return None
    after = msgspec.structs.replace(
        seen,
        mark=todo.mark,
        last_tick=todo.run[-1] if todo.run else seen.last_tick,
        next_tick=timetable.next(todo.mark),
    )
    return Move(mine.name, seen.rev, after, tuple(tick_job(plan.template, mine.name, tick) for tick in todo.run))


def overdue(plan: Plan, seen: Schedule, now: int) -> bool:
    """Has the schedule been left by those who defined it otherwise than this plan?"""
    expected = plan.timetable.next(seen.mark) if seen.next_tick is None else seen.next_tick
    return not seen.paused and expected is not None and expected + TAKEOVER < now


def _at(plan: Plan, mark: int) -> Schedule:
    return msgspec.structs.replace(plan.schedule, mark=mark, next_tick=plan.timetable.next(mark))


def _redefined(plan: Plan, seen: Schedule, now: int) -> Schedule:
    """Other times begin now: what they would have meant for the past is not made up for. Other options of the job,
    at the same times, leave every tick as it is, also one that is due while a release goes out."""
    same_times = (seen.expression, seen.tz) == (plan.schedule.expression, plan.schedule.tz)
    made = _at(plan, seen.mark if same_times else max(seen.mark, now))
    return msgspec.structs.replace(made, paused=seen.paused, last_tick=seen.last_tick)


def with_pause(schedule: Schedule, paused: bool, now: int) -> Schedule:
    """A paused schedule has no ticks: resumed, it goes on from now."""
    if schedule.paused == paused:
        return schedule
    mark = schedule.mark if paused else max(schedule.mark, now)
    return msgspec.structs.replace(schedule, paused=paused, mark=mark, next_tick=None)
