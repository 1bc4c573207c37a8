"""Queues, tasks, workers and the store's own row: few, small, and kept at hand between transactions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace.domain.request import WorkerRecord
from millrace.domain.settings import StoreSettings
from millrace.domain.tables import QueueRow, TaskRow
from millrace.store.sqlite.unit import Unit

_encode = msgspec.msgpack.Encoder().encode
_queue_row = msgspec.msgpack.Decoder(QueueRow).decode
_task_row = msgspec.msgpack.Decoder(TaskRow).decode
_settings = msgspec.msgpack.Decoder(StoreSettings).decode
_worker = msgspec.msgpack.Decoder(WorkerRecord).decode

Combo = tuple[str, str, int]


class Registry(Unit):
    def forget(self) -> None:
        super().forget()
        self._queue_rows: dict[str, QueueRow] = {}
        self._queue_ids: dict[str, int | None] = {}
        self._changed_queues: dict[str, QueueRow] = {}
        self._combos: dict[str, list[tuple[str, int, int]]] = {}  # of a queue: (task, priority, id)
        self._combo_ids: dict[Combo, tuple[int, int]] = {}  # (id, id of the queue)
        self._tasks: dict[str, TaskRow] | None = None
        self._changed_tasks: dict[str, TaskRow] = {}
        self._store: list[int] | None = None  # last seq, last event, trimmed
        self._store_settings = StoreSettings()
        self._store_changed = False

    def outdated(self) -> None:
        numbers = self._combo_ids  # a combination keeps its number for good
        super().outdated()
        self._combo_ids = numbers

    def flush(self) -> None:
        super().flush()
        for name, row in self._changed_queues.items():
            self._write_queue(name, row)
        self._changed_queues.clear()
        for name, task in self._changed_tasks.items():
            self.rows("put_task", {"name": name, "facts": _encode(task)})
        self._changed_tasks.clear()
        if self._store_changed and self._store is not None:
            last_seq, last_event, trimmed = self._store
            settings = None if self._store_settings == StoreSettings() else _encode(self._store_settings)
            facts = {"last_seq": last_seq, "last_event": last_event, "trimmed": trimmed, "settings": settings}
            self.rows("put_store_row", facts)
            self._store_changed = False

    # ── the store's row ───────────────────────────────────────────────────────────────────────

    def counters(self) -> list[int]:
        """[last seq, last event, trimmed], to be changed in place by whoever says so with `count_changed`."""
        if self._store is None:
            last_seq, last_event, trimmed, settings = self.rows("store_row")[0]
            self._store = [last_seq, last_event, trimmed]
            self._store_settings = StoreSettings() if settings is None else _settings(settings)
        return self._store

    def next_seqs(self, count: int) -> range:
        counters = self._store or self.counters()
        first = counters[0] + 1
        counters[0] += count
        self._store_changed = True
        return range(first, first + count)

    def settings(self) -> StoreSettings:
        self.counters()
        return self._store_settings

    def put_settings(self, settings: StoreSettings) -> None:
        self.counters()
        self.touched = self._store_changed = True
        self._store_settings = settings

    # ── queues ────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> QueueRow:
        row = self._queue_rows.get(name)
        if row is None:
            found = self.rows("queue", {"name": name})
            row = _queue_row(found[0][1]) if found else QueueRow(name)
            self._queue_ids[name] = found[0][0] if found else None
            self._queue_rows[name] = row
        return row

    def put_queue(self, row: QueueRow) -> None:
        self.touched = True
        self._changed_queues[row.name] = row

    def queues(self) -> Sequence[str]:
        known = {name for (name,) in self.rows("queue_names")}
        return sorted(known | self._changed_queues.keys())

    def queue_id(self, name: str) -> int | None:
        self.queue(name)
        return self._queue_ids[name]

    def _write_queue(self, name: str, row: QueueRow) -> int:
        known = self.queue_id(name)
        if known is not None:
            self.rows("put_queue", {"id": known, "facts": _encode(row)})
            return known
        made: int = self.value("insert_queue", {"name": name, "facts": _encode(row)})
        self._queue_ids[name] = made
        return made

    # ── combinations of queue, task and priority ──────────────────────────────────────────────

    def combos(self, queue: str) -> list[tuple[str, int, int]]:
        found = self._combos.get(queue)
        if found is None:
            queue_id = self.queue_id(queue)
            rows = [] if queue_id is None else self.rows("combos", {"queue": queue_id})
            found = self._combos[queue] = [(task, priority, combo) for combo, task, priority in rows]
            for task, priority, combo in found:
                self._combo_ids[queue, task, priority] = combo, queue_id or 0
        return found

    def combo_id(self, combo: Combo) -> tuple[int, int]:
        """The number of a combination and of its queue; a new one is written at once."""
        known = self._combo_ids.get(combo)
        if known is not None:
            return known
        queue, task, priority = combo
        of_queue = self.combos(queue)
        if combo not in self._combo_ids:
            queue_id = self.queue_id(queue) or self._write_queue(queue, self.queue(queue))
            made: int = self.value("insert_combo", {"queue": queue_id, "task": task, "priority": priority})
            of_queue.append((task, priority, made))
            self._combo_ids[combo] = made, queue_id
        return self._combo_ids[combo]

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    def _all_tasks(self) -> dict[str, TaskRow]:
        if self._tasks is None:
            self._tasks = {row.name: row for row in (_task_row(facts) for (facts,) in self.rows("tasks"))}
        return self._tasks

    def task(self, name: str) -> TaskRow | None:
        tasks = self._tasks
        return (self._all_tasks() if tasks is None else tasks).get(name)

    def put_task(self, row: TaskRow) -> None:
        self.touched = True
        self._all_tasks()[row.name] = self._changed_tasks[row.name] = row

    def tasks(self) -> Sequence[TaskRow]:
        return list(self._all_tasks().values())

    def running_of_task(self, name: str) -> int:
        self.flush()
        count: int = self.value("running_of_task", {"task": name})
        return count

    # ── workers ───────────────────────────────────────────────────────────────────────────────

    def worker(self, worker_id: str) -> WorkerRecord | None:
        found = self.rows("worker", {"id": worker_id})
        return _worker(found[0][0]) if found else None

    def put_worker(self, record: WorkerRecord) -> None:
        self.touched = True
        self.rows("put_worker", {"id": record.info.id, "record": _encode(record)})

    def drop_worker(self, worker_id: str) -> None:
        self.touched = True
        self.rows("drop_worker", {"id": worker_id})

    def workers(self) -> list[WorkerRecord]:
        return [_worker(record) for (record,) in self.rows("workers")]
