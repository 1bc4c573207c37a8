"""Workers and schedules. They are few, so their rows are read and written immediately and never cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millrace.domain.request import WorkerRecord
from millrace.domain.schedule import Schedule
from millrace.store.sql.ports import Effects, Locks, Statements

_encode = msgspec.msgpack.Encoder().encode
_worker = msgspec.msgpack.Decoder(WorkerRecord).decode
_schedule = msgspec.msgpack.Decoder(Schedule).decode


class Workers:
    """The rows of workers. `columns` returns the values of further columns, besides the worker's id and its record."""

    def __init__(
        self,
        statements: Statements,
        effects: Effects,
        columns: Callable[[WorkerRecord], tuple[Any, ...]] = lambda record: (),
    ) -> None:
        self._db = statements
        self._effects = effects
        self._columns = columns

    def worker(self, worker_id: str) -> WorkerRecord | None:
        found = self._db.rows("worker", worker_id)
        return _worker(found[0][0]) if found else None

    def put(self, record: WorkerRecord) -> None:
        self._effects.touched = True
        self._db.rows("put_worker", record.info.id, _encode(record), *self._columns(record))

    def drop(self, worker_id: str) -> None:
        self._effects.touched = True
        self._db.rows("drop_worker", worker_id)

    def workers(self) -> list[WorkerRecord]:
        return [_worker(row[0]) for row in self._db.rows("workers")]


class Schedules:
    def __init__(self, statements: Statements, locks: Locks, effects: Effects) -> None:
        self._db = statements
        self._locks = locks
        self._effects = effects

    def schedule(self, name: str) -> Schedule | None:
        self._locks.lock([f"schedule {name}"])
        found = self._db.rows("schedule", name)
        return _schedule(found[0][0]) if found else None

    def put(self, schedule: Schedule) -> None:
        self._effects.touched = True
        self._db.rows("put_schedule", schedule.name, _encode(schedule))

    def drop(self, name: str) -> None:
        self._effects.touched = True
        self._db.rows("drop_schedule", name)

    def schedules(self) -> list[Schedule]:
        return [_schedule(row[0]) for row in self._db.rows("schedules")]
