"""Moves of schedules that are stored at run time: put, pause, resume, remove, and tick, each as a conditional write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from millrace.app.schedules.plan import ScheduleDefinition, stored_plan
from millrace.app.schedules.timetable import timetable
from millrace.domain.job import HOUR, SECOND
from millrace.domain.schedule import (
    EVERY_SCHEDULE,
    DueSchedules,
    Move,
    Moved,
    Schedule,
    defining_move,
    postponing_move,
    ticking_move,
    with_pause,
)
from millrace.store.protocol import Store
from proof.model import draw
from proof.model.machine import Machine
from proof.model.moods import move
from proof.model.pair import Refusal

NAMES = ("s", "t", "u")
_names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
_times: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    (
        {"every": "30s", "missed": "once"},
        {"every": "1h", "missed": "skip", "grace": "10m"},
        {"every": "6h", "missed": "all"},
        {"cron": "0 3 * * *", "tz": "Europe/Berlin", "missed": "all"},
    )
)


class Schedules(Machine):
    def schedules(self) -> list[Schedule]:
        """The reference's schedules, in the order of their names."""
        found: list[Schedule] = self.tables.schedules("", EVERY_SCHEDULE)
        return found

    @move(names=_names, wish=st.one_of(draw.plain, draw.in_line, draw.with_key), times=_times)
    def put_schedules(self, names: list[str], wish: draw.Wish, times: dict[str, Any]) -> None:
        spec = self.spec(wish)
        if spec.on_hit == "raise":
            spec = msgspec.structs.replace(spec, on_hit="keep")
        stored = {schedule.name: schedule for schedule in self.schedules()}
        plans = {name: stored_plan(ScheduleDefinition(name, spec, **times)) for name in names}
        moves = [defining_move(plan, stored.get(name), self.clock()) for name, plan in plans.items()]
        self.advance("put_schedules", moves)

    @move(
        what=st.sampled_from(("pause", "resume", "resume", "remove", "ahead", "stale", "not there")),
        name=st.sampled_from(NAMES),
    )
    def change_schedule(self, what: str, name: str) -> None:
        seen = {schedule.name: schedule for schedule in self.schedules()}.get(name)
        now = self.clock()
        if seen is None or what == "not there":
            self.advance("change_schedule", [Move(name, 7, None)])
        elif what == "remove":
            self.advance("change_schedule", [Move(name, seen.rev, None)])
        elif what == "stale":
            self.advance("change_schedule", [Move(name, seen.rev - 1, seen)])
        elif what == "ahead":
            ahead = msgspec.structs.replace(seen, mark=max(now, seen.mark) + HOUR)
            self.advance("change_schedule", [Move(name, seen.rev, ahead)])
        else:
            changed = with_pause(seen, what == "pause", now, timetable(seen.expression, seen.tz))
            self.advance("change_schedule", [Move(name, seen.rev, changed)])

    @move(names=_names, limit=st.sampled_from((100, 100, 1, 0)), skip=st.sampled_from((0, 0, 1)), twice=st.booleans())
    def tick(self, names: list[str], limit: int, skip: int, twice: bool) -> None:
        """Do what a scheduler does: read what is due, enqueue its ticks, and postpone those that are refused."""
        now = self.clock()
        answers: list[DueSchedules] = []

        async def question(store: Store, side: int) -> Any:
            seen = await store.due_schedules(names, limit, skip)
            answers.append(seen)
            return seen.now, seen.named

        self.step("due_schedules", question)
        for seen in answers:
            self.check_due(seen, limit, skip, now)
        moves = [
            wanted
            for schedule in answers[1].due
            if schedule.template is not None
            and (wanted := ticking_move(schedule, schedule.template, timetable(schedule.expression, schedule.tz), now))
        ]
        moved_to = self.advance("tick", moves)
        refused = [moved.schedule for moved in moved_to if moved.status == "refused" and moved.schedule is not None]
        self.advance("tick", [postponing_move(schedule, now + 30 * SECOND) for schedule in refused])
        if twice:  # a lost reply
            assert all(moved.status != "ok" for moved in self.advance("tick", moves)), "a tick was carried out twice"

    def check_due(self, seen: DueSchedules, limit: int, skip: int, now: int) -> None:
        """Stores differ in the order of schedules that are due at the same instant, and may look again too early."""
        times = {schedule: at for schedule in self.schedules() if (at := schedule.due_at) is not None}
        due = [schedule for schedule, at in times.items() if at <= now]
        assert all(schedule in due for schedule in seen.due), f"due are {due}, not {seen.due}"
        assert [times[one] for one in seen.due] == sorted(times[one] for one in seen.due), f"oldest first: {seen.due}"
        assert limit < 100 or skip or len(seen.due) == len(due), f"due are {due}, not only {seen.due}"
        rest = [at for schedule, at in times.items() if schedule not in seen.due]
        if limit and not skip and rest:
            assert seen.next_at is not None and seen.next_at <= max(now, min(rest)), f"{seen} sleeps through {rest}"

    def advance(self, what: str, moves: Sequence[Move]) -> list[Moved]:
        before = {schedule.name: schedule for schedule in self.schedules()}
        ids = [spec.id for wanted in moves for spec in wanted.jobs]
        _, answers = self.step(what, lambda store, _: store.advance(moves), *ids)
        if isinstance(answers, Refusal):
            self.coverage.note(f"schedule: {answers.error}")
            return []
        for wanted, moved in zip(moves, answers, strict=True):
            self.coverage.note(f"schedule: {moved.status}")
            self.check_moved(before.get(wanted.name), wanted, moved)
        return list(answers)

    def check_moved(self, before: Schedule | None, wanted: Move, moved: Moved) -> None:
        """A move applies to the revision that it has seen, and the mark never goes back."""
        is_seen = wanted.seen == (0 if before is None else before.rev)
        assert (moved.status == "stale") == (not is_seen), f"{wanted} of {before}: {moved}"
        if moved.status != "ok":
            assert moved.schedule == before, f"{moved.status}, but {before} is {moved.schedule}"
        elif before is not None and moved.schedule is not None:
            assert moved.schedule.mark >= before.mark and moved.schedule.rev > before.rev, f"{before}: {moved}"
