"""Schedules in memory: a dictionary."""

from __future__ import annotations

from millrace.domain.schedule import Schedule


class ScheduleTable:
    def __init__(self) -> None:
        self._schedules: dict[str, Schedule] = {}

    def schedule(self, name: str) -> Schedule | None:
        return self._schedules.get(name)

    def put_schedule(self, schedule: Schedule) -> None:
        self._schedules[schedule.name] = schedule

    def drop_schedule(self, name: str) -> None:
        self._schedules.pop(name, None)

    def schedules(self) -> list[Schedule]:
        return [self._schedules[name] for name in sorted(self._schedules)]
