"""Schedules: few rows, each under a lock of its name."""

from __future__ import annotations

import msgspec

from millrace.domain.schedule import Schedule
from millrace.store.postgres.unit import Unit

_encode = msgspec.msgpack.Encoder().encode
_schedule = msgspec.msgpack.Decoder(Schedule).decode


class Schedules(Unit):
    def schedule(self, name: str) -> Schedule | None:
        self.lock([f"schedule {name}"])
        found = self.rows("schedule", name)
        return _schedule(found[0][0]) if found else None

    def put_schedule(self, schedule: Schedule) -> None:
        self.rows("put_schedule", schedule.name, _encode(schedule))

    def drop_schedule(self, name: str) -> None:
        self.rows("drop_schedule", name)

    def schedules(self) -> list[Schedule]:
        return [_schedule(row[0]) for row in self.rows("schedules")]
