"""Workers and schedules. Workers are few, so their rows are read and written immediately and never cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """The schedules that a step has read or changed. A call reads all of them in one statement."""

    def __init__(self, statements: Statements, locks: Locks, effects: Effects) -> None:
        self._db = statements
        self._locks = locks
        self._effects = effects
        self.forget()

    def forget(self) -> None:
        self._known: dict[str, Schedule | None] = {}
        self.changed: dict[str, Schedule | None] = {}

    def prefetch(self, names: Sequence[str]) -> None:
        missing = [name for name in dict.fromkeys(names) if name not in self._known]
        if missing:
            self._locks.lock(f"schedule {name}" for name in missing)
            self._known.update(dict.fromkeys(missing))
            self._known.update({row[0]: _schedule(row[1]) for row in self._db.rows("schedules_named", missing)})

    def schedule(self, name: str) -> Schedule | None:
        if name not in self._known:
            self.prefetch([name])
        return self._known[name]

    def put(self, schedule: Schedule) -> None:
        self._change(schedule.name, schedule)

    def drop(self, name: str) -> None:
        self._change(name, None)

    def _change(self, name: str, schedule: Schedule | None) -> None:
        self._effects.touched = True
        self._known[name] = self.changed[name] = schedule

    def flush(self) -> None:
        changed, self.changed = self.changed, {}
        gone = [name for name, schedule in changed.items() if schedule is None]
        kept = [
            (name, _encode(schedule), schedule.due_at) for name, schedule in changed.items() if schedule is not None
        ]
        if gone:
            self._db.rows("drop_schedules", gone)
        if kept:
            self._db.write("put_schedules", kept)

    def schedules(self, after: str, limit: int) -> list[Schedule]:
        return [_schedule(row[0]) for row in self._db.rows("schedules", after, limit)]

    def due(self, until: int, limit: int, skip: int) -> list[Schedule]:
        return [_schedule(row[0]) for row in self._db.rows("due_schedules", until, limit, skip)]

    def next(self, after: int) -> int | None:
        found: int | None = self._db.value("next_schedule", after)
        return found
