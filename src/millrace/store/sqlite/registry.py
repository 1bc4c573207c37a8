"""Queues, tasks, combinations and the store's own row. They are few and small, and are cached between transactions.

A combination is a (queue, task, priority) that a job has used. It has an id, which indexes contain instead of the three
values.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace.domain.settings import StoreSettings
from millrace.domain.tables import QueueRow, TaskRow
from millrace.store.sql.ports import Effects, Statements
from millrace.store.sql.unit import Combo

_encode = msgspec.msgpack.Encoder().encode
_queue_row = msgspec.msgpack.Decoder(QueueRow).decode
_task_row = msgspec.msgpack.Decoder(TaskRow).decode
_settings = msgspec.msgpack.Decoder(StoreSettings).decode


class Registry:
    def __init__(self, statements: Statements, effects: Effects) -> None:
        self._db = statements
        self._effects = effects
        self.forget()

    def forget(self) -> None:
        self._queue_rows: dict[str, QueueRow] = {}
        self._queue_ids: dict[str, int | None] = {}
        self._changed_queues: dict[str, QueueRow] = {}
        self._combos: dict[str, list[tuple[str, int, int]]] = {}  # by queue: (task, priority, id)
        self._combo_ids: dict[Combo, tuple[int, int]] = {}  # (id, id of the queue)
        self._tasks: dict[str, TaskRow] | None = None
        self._changed_tasks: dict[str, TaskRow] = {}
        self._store: list[int] | None = None  # last seq, last event, trimmed
        self._store_settings = StoreSettings()
        self._store_changed = False

    def outdated(self) -> None:
        """Drop cached rows that another connection may have changed. Ids of combinations never change and are kept."""
        numbers = self._combo_ids  # a combination keeps its number for good
        self.forget()
        self._combo_ids = numbers

    def flush(self) -> None:
        for name, row in self._changed_queues.items():
            self._write_queue(name, row)
        self._changed_queues.clear()
        for name, task in self._changed_tasks.items():
            self._db.rows("put_task", name, _encode(task))
        self._changed_tasks.clear()
        if self._store_changed and self._store is not None:
            last_seq, last_event, trimmed = self._store
            settings = None if self._store_settings == StoreSettings() else _encode(self._store_settings)
            self._db.rows("put_store_row", last_seq, last_event, trimmed, settings)
            self._store_changed = False

    # ── the store's row ───────────────────────────────────────────────────────────────────────

    def _counters(self) -> list[int]:
        if self._store is None:
            last_seq, last_event, trimmed, settings = self._db.rows("store_row")[0]
            self._store = [last_seq, last_event, trimmed]
            self._store_settings = StoreSettings() if settings is None else _settings(settings)
        return self._store

    def next_seqs(self, count: int) -> range:
        counters = self._store or self._counters()
        first = counters[0] + 1
        counters[0] += count
        self._store_changed = True
        return range(first, first + count)

    def next_events(self, count: int) -> int:
        """Reserve cursors for `count` events, and return the first cursor."""
        counters = self._store or self._counters()
        first = counters[1] + 1
        counters[1] += count
        self._store_changed = True
        return first

    def last_event(self) -> int:
        return self._counters()[1]

    def trimmed(self) -> int:
        return self._counters()[2]

    def trim(self, count: int) -> None:
        self._counters()[2] += count
        self._effects.touched = self._store_changed = True

    def settings(self) -> StoreSettings:
        self._counters()
        return self._store_settings

    def put_settings(self, settings: StoreSettings) -> None:
        self._counters()
        self._effects.touched = self._store_changed = True
        self._store_settings = settings

    # ── queues ────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> QueueRow:
        row = self._queue_rows.get(name)
        if row is None:
            found = self._db.rows("queue", name)
            row = _queue_row(found[0][1]) if found else QueueRow(name)
            self._queue_ids[name] = found[0][0] if found else None
            self._queue_rows[name] = row
        return row

    def put_queue(self, row: QueueRow) -> None:
        self._effects.touched = True
        self._changed_queues[row.name] = row

    def queues(self) -> Sequence[str]:
        known = {name for (name,) in self._db.rows("queue_names")}
        return sorted(known | self._changed_queues.keys())

    def queue_id(self, name: str) -> int | None:
        self.queue(name)
        return self._queue_ids[name]

    def made_queue_id(self, name: str) -> int:
        """Return the id of a queue; create the queue if it does not exist."""
        return self.queue_id(name) or self._write_queue(name, self.queue(name))

    def _write_queue(self, name: str, row: QueueRow) -> int:
        known = self.queue_id(name)
        if known is not None:
            self._db.rows("put_queue", _encode(row), known)
            return known
        made: int = self._db.value("insert_queue", name, _encode(row))
        self._queue_ids[name] = made
        return made

    # ── combinations of queue, task and priority ──────────────────────────────────────────────

    def combos(self, queue: str) -> list[tuple[str, int, int]]:
        found = self._combos.get(queue)
        if found is None:
            queue_id = self.queue_id(queue)
            rows = [] if queue_id is None else self._db.rows("combos", queue_id)
            found = self._combos[queue] = [(task, priority, combo) for combo, task, priority in rows]
            for task, priority, combo in found:
                self._combo_ids[queue, task, priority] = combo, queue_id or 0
        return found

    def combo_id(self, combo: Combo) -> tuple[int, int]:
        """Return the id of the combination and the id of its queue. A new combination is written immediately."""
        known = self._combo_ids.get(combo)
        if known is not None:
            return known
        queue, task, priority = combo
        of_queue = self.combos(queue)
        if combo not in self._combo_ids:
            queue_id = self.made_queue_id(queue)
            made: int = self._db.value("insert_combo", queue_id, task, priority)
            of_queue.append((task, priority, made))
            self._combo_ids[combo] = made, queue_id
        return self._combo_ids[combo]

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    def _all_tasks(self) -> dict[str, TaskRow]:
        if self._tasks is None:
            self._tasks = {row.name: row for row in (_task_row(facts) for (facts,) in self._db.rows("tasks"))}
        return self._tasks

    def task(self, name: str) -> TaskRow | None:
        tasks = self._tasks
        return (self._all_tasks() if tasks is None else tasks).get(name)

    def put_task(self, row: TaskRow) -> None:
        self._effects.touched = True
        self._all_tasks()[row.name] = self._changed_tasks[row.name] = row

    def tasks(self) -> Sequence[TaskRow]:
        return list(self._all_tasks().values())
