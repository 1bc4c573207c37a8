"""Schedules in a SQLite file: few rows, read and written at once, never kept at hand."""

from __future__ import annotations

import msgspec

from millrace.domain.schedule import Schedule
from millrace.store.sqlite.unit import Unit

_encode = msgspec.msgpack.Encoder().encode
_schedule = msgspec.msgpack.Decoder(Schedule).decode


class Schedules(Unit):
    def schedule(self, name: str) -> Schedule | None:
        found = self.rows("schedule", {"name": name})
        return _schedule(found[0][0]) if found else None

    def put_schedule(self, schedule: Schedule) -> None:
        self.touched = True
        self.rows("put_schedule", {"name": schedule.name, "record": _encode(schedule)})

    def drop_schedule(self, name: str) -> None:
        self.touched = True
        self.rows("drop_schedule", {"name": name})

    def schedules(self) -> list[Schedule]:
        return [_schedule(record) for (record,) in self.rows("schedules")]
