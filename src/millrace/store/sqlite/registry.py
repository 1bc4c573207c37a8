"""Queues, tasks, combinations and the store's own row. They are few and small, and are cached between transactions.

A combination is a (queue, task, priority) that a job has used. It has an id, which indexes contain instead of the three
values.

Nearly every transaction changes counters: the last seq, the last event, and those of a queue. It also appends a page to
the feed, so the counters are written into this page, and not into rows of their own: a commit takes time for each page
of the file that it changes. The newest page of the feed has the counters of up to `MOST_IN_PAGE` queues; they replace
those in the rows of these queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from millrace.domain.settings import QueueSettings, StoreSettings
from millrace.domain.tables import QueueRow, TaskRow
from millrace.store.sql.ports import Effects, Statements
from millrace.store.sql.unit import Combo

MOST_IN_PAGE = 4  # queues

_SETTINGS_OF_QUEUE = ("name", "settings")
_COUNTERS = [field for field in msgspec.structs.fields(QueueRow) if field.name not in _SETTINGS_OF_QUEUE]
_Counters = msgspec.defstruct(
    "_Counters", [(field.name, field.type, field.default) for field in _COUNTERS], array_like=True, gc=False
)
_counters_of = attrgetter(*(field.name for field in _COUNTERS))
_in_page = msgspec.msgpack.Decoder(dict[int, _Counters]).decode  # type: ignore[valid-type]  # made above
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
        self._stored_settings: dict[str, QueueSettings] = {}  # in the rows of the queues
        self._in_page: dict[int, Any] = {}  # by id: queues whose counters are in the newest page of the feed
        self._combos: dict[str, list[tuple[str, int, int]]] = {}  # by queue: (task, priority, id)
        self._combo_ids: dict[Combo, tuple[int, int]] = {}  # (id, id of the queue)
        self._tasks: dict[str, TaskRow] | None = None
        self._changed_tasks: dict[str, TaskRow] = {}
        self._store: list[int] | None = None  # last seq, last event, trimmed, last due
        self._store_settings = StoreSettings()
        self._counted = False  # the last seq or the last event has changed …
        self._store_changed = False  # … or something else in the store's row

    def outdated(self) -> None:
        """Drop cached rows that another connection may have changed. Ids of combinations never change and are kept."""
        numbers = self._combo_ids  # a combination keeps its number for good
        self.forget()
        self._combo_ids = numbers

    def counters_for_page(self) -> tuple[int, int, bytes | None]:
        """Return the columns `last_seq`, `last_due` and `counters` of the newest page of the feed.

        `flush` writes what the page does not have.
        """
        changed, in_page, stored = self._changed_queues, self._in_page, self._stored_settings
        for name in list(changed):
            queue_id = self._queue_ids[name]
            if queue_id is None:
                continue
            in_page.pop(queue_id, None)
            if changed[name].settings is stored[name]:
                in_page[queue_id] = changed.pop(name)  # the last of those that changed
                if len(in_page) > MOST_IN_PAGE:
                    self._move_to_row(next(iter(in_page)))
        self._counted = False
        queues = {queue_id: _counters_of(row) for queue_id, row in in_page.items()}
        last_seq, _, _, last_due = self._counters()
        return last_seq, last_due, _encode(queues) if queues else None

    def flush(self) -> None:
        """Write what has changed and is not in the newest page of the feed."""
        in_page = len(self._in_page)
        for name, row in self._changed_queues.items():
            self._in_page.pop(self._write_queue(name, row), None)
        self._changed_queues.clear()
        if len(self._in_page) < in_page:
            queues = {queue_id: _counters_of(row) for queue_id, row in self._in_page.items()}
            self._db.rows("put_page_counters", self.last_event(), _encode(queues))
        for name, task in self._changed_tasks.items():
            self._db.rows("put_task", name, _encode(task))
        self._changed_tasks.clear()
        if (self._counted or self._store_changed) and self._store is not None:
            last_seq, last_event, trimmed, last_due = self._store
            settings = None if self._store_settings == StoreSettings() else _encode(self._store_settings)
            self._db.rows("put_store_row", last_seq, last_event, trimmed, last_due, settings)
            self._counted = self._store_changed = False

    def _move_to_row(self, queue_id: int) -> None:
        """Have `flush` write the counters of a queue to the queue's row, because the newest page will not have them."""
        row = self.queue(self._db.value("queue_name", queue_id))  # while it is in the page, so that it has its counters
        del self._in_page[queue_id]
        self._changed_queues[row.name] = row

    # ── the store's row ───────────────────────────────────────────────────────────────────────

    def _counters(self) -> list[int]:
        if self._store is None:
            *self._store, settings, queues = self._db.rows("store_row")[0]
            self._store_settings = StoreSettings() if settings is None else _settings(settings)
            self._in_page = {} if queues is None else _in_page(queues)
        return self._store

    def next_seqs(self, count: int) -> range:
        counters = self._store or self._counters()
        first = counters[0] + 1
        counters[0] += count
        self._counted = True
        return range(first, first + count)

    def next_events(self, count: int) -> int:
        """Reserve cursors for `count` events, and return the first cursor."""
        counters = self._store or self._counters()
        first = counters[1] + 1
        counters[1] += count
        self._counted = True
        return first

    @property
    def last_due(self) -> int:
        """When the last job in order was due; see schema.sql."""
        return self._counters()[3]

    @last_due.setter
    def last_due(self, due: int) -> None:
        self._counters()[3] = due
        self._counted = True

    def last_event(self) -> int:
        return self._counters()[1]

    def trimmed(self) -> int:
        return self._counters()[2]

    def trim(self, count: int) -> None:
        """Count trimmed events. The caller deletes their pages; if the newest one is among them, nothing is in it."""
        counters = self._counters()
        counters[2] += count
        self._effects.touched = self._store_changed = True
        if counters[2] >= counters[1]:
            for queue_id in list(self._in_page):
                self._move_to_row(queue_id)

    def settings(self) -> StoreSettings:
        self._counters()
        return self._store_settings

    def put_settings(self, settings: StoreSettings) -> None:
        self._counters()
        if settings != self._store_settings:
            self._effects.touched = self._store_changed = True
            self._store_settings = settings

    # ── queues ────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> QueueRow:
        row = self._queue_rows.get(name)
        if row is None:
            found = self._db.rows("queue", name)
            row = _queue_row(found[0][1]) if found else QueueRow(name)
            self._queue_ids[name] = queue_id = found[0][0] if found else None
            self._queue_rows[name] = row
            self._stored_settings[name] = row.settings
            self._counters()
            if queue_id in self._in_page:
                row = QueueRow(name, row.settings, *_counters_of(self._in_page[queue_id]))
                self._queue_rows[name] = self._in_page[queue_id] = row
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
        self._stored_settings[name] = row.settings
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
