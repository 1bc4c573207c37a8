"""Queues, tasks, workers and the store's own row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from millrace.domain.limits import Bucket
from millrace.domain.request import WorkerRecord
from millrace.domain.settings import QueueSettings, StoreSettings
from millrace.domain.tables import QueueRow, TaskRow
from millrace.store.postgres.unit import Again, Row, Unit

_encode = msgspec.msgpack.Encoder().encode
_queue_settings = msgspec.msgpack.Decoder(QueueSettings).decode
_bucket = msgspec.msgpack.Decoder(Bucket).decode
_task_row = msgspec.msgpack.Decoder(TaskRow).decode
_settings = msgspec.msgpack.Decoder(StoreSettings).decode
_worker = msgspec.msgpack.Decoder(WorkerRecord).decode

COUNTERS = (
    "waiting",
    "running",
    "completed",
    "dead",
    "cancelled",
    "blocked",
    "archived",
    "archived_dead",
    "live",
    "processed",
    "died",
    "taken",
)
Combo = tuple[str, str, int]


def is_exact(settings: QueueSettings) -> bool:
    """Does a setting decide by numbers? Then steps of the queue take turns."""
    return (
        settings.max_running is not None
        or settings.rate is not None
        or settings.max_depth is not None
        or settings.fair_share > 0
        or settings.on_empty is not None
        or settings.lanes is not None
        or (settings.dead_overflow == "reject" and settings.dead_cap is not None)
    )


class Registry(Unit):
    def start(self) -> None:
        super().start()
        self._queue_rows: dict[str, QueueRow] = {}
        self._queue_ids: dict[str, int | None] = {}
        self._as_stored: dict[str, tuple[int, ...]] = {}  # counters, when they were read
        self._stored_settings: dict[str, tuple[QueueSettings, Bucket | None, int]] = {}
        self._changed_queues: dict[str, QueueRow] = {}
        self._combos: dict[str, list[tuple[str, int, int]]] = {}  # of a queue: (task, priority, id)
        self.combo_ids: dict[Combo, tuple[int, int]] = {}  # (id, id of the queue)
        self.combo_names: dict[int, Combo] = {}
        self._tasks: dict[str, TaskRow | None] | None = None
        self._changed_tasks: dict[str, TaskRow] = {}
        self.exact_locks: dict[str, str] = {}  # of queues that were seen to be exact
        self.alone_in: set[str] = set()  # queues whose settings this step may change
        self.words_read: dict[str, tuple[int, int, int | None]] = {}  # of queues that were all looked at

    def flush(self) -> None:
        super().flush()
        for row in self._changed_queues.values():
            self._write_queue(row)
        self._changed_queues = {}
        for name, task in self._changed_tasks.items():
            self.rows("put_task", name, _encode(task))
        self._changed_tasks = {}

    # ── the store's row ───────────────────────────────────────────────────────────────────────

    def next_seqs(self, count: int) -> Sequence[int]:
        return self.seqs("next_seqs", count)

    def settings(self) -> StoreSettings:
        found = self.value("store_settings")
        return StoreSettings() if found is None else _settings(found)

    def put_settings(self, settings: StoreSettings) -> None:
        if self.writes:
            self.rows("put_store_settings", None if settings == StoreSettings() else _encode(settings))

    # ── queues ────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> QueueRow:
        row = self._queue_rows.get(name)
        return self._load_queue(name) if row is None else row

    def _load_queue(self, name: str) -> QueueRow:
        if not self.writes:
            found = self.rows("queue", name)
            return self._take_queue(name, found[0] if found else None)
        taken = self.rows("take_queue", name, name in self.alone_in)
        if not taken:
            return self._take_queue(name, None)
        lacking, mine, ids, tasks, priorities, *row = taken[0]
        lock = f"queue {row[0]}"
        if lacking:
            self.begin_anew_with([lock], shared=lacking == 1)
        self.held[lock] = not mine and self.held.get(lock, True)
        if mine:
            self.exact_locks[name] = lock
        combos = [] if ids is None else zip(tasks, priorities, ids, strict=True)
        self._take_combos(name, row[0], combos)
        return self._take_queue(name, row)

    def _take_queue(self, name: str, found: Row | None) -> QueueRow:
        row = QueueRow(name)
        if found is not None:
            _, _, settings, _, bucket, row.next_lane, *counts = found
            for counter, value in zip(COUNTERS, counts, strict=True):
                setattr(row, counter, value)
            if settings is not None:
                row.settings = _queue_settings(settings)
            row.bucket = None if bucket is None else _bucket(bucket)
        self._queue_ids[name] = None if found is None else found[0]
        self._queue_rows[name] = row
        self._as_stored[name] = _counts(row)
        self._stored_settings[name] = row.settings, row.bucket, row.next_lane
        return row

    def seen_queues(self) -> Iterable[str]:
        return self._queue_rows

    def put_queue(self, row: QueueRow) -> None:
        self._changed_queues[row.name] = row

    def queues(self) -> Sequence[str]:
        if self.writes:
            known = {row[0] for row in self.rows("queue_names")}
            return sorted(known | self._changed_queues.keys())
        found = self.rows("all_queues", self.now)
        for *row, later, retrying, first in found:
            self._take_queue(row[1], row)
            self.words_read[row[1]] = later, retrying, first
        return sorted(row[1] for row in found)

    def queue_id(self, name: str) -> int | None:
        self.queue(name)
        return self._queue_ids[name]

    def made_queue_id(self, name: str) -> int:
        """The number of a queue, which is made if it is not there yet."""
        known = self.queue_id(name)
        if known is None:
            made = self.rows("make_queue", name)
            if not made:
                raise Again  # somebody else made it meanwhile, and may have given it settings
            known = self._queue_ids[name] = int(made[0][0])
            self.lock([f"queue {known}"], shared=name not in self.alone_in)
        return known

    def _write_queue(self, row: QueueRow) -> None:
        number = self.made_queue_id(row.name)
        kept = row.settings, row.bucket, row.next_lane
        if kept != self._stored_settings[row.name]:
            settings = row.settings
            rejects = settings.dead_overflow == "reject" and settings.dead_cap is not None
            exact = is_exact(settings)
            self.rows(
                "put_queue",
                number,
                None if settings == QueueSettings() else _encode(settings),
                exact,
                not exact and settings.max_depth is None and not rejects,
                not exact and not settings.paused,
                not exact and settings.keep_completed != 0,
                None if row.bucket is None else _encode(row.bucket),
                row.next_lane,
            )
            self._stored_settings[row.name] = kept
        counts = _counts(row)
        added = [new - old for new, old in zip(counts, self._as_stored[row.name], strict=True)]
        if any(added):
            alone = self.held.get(f"queue {number}") is False
            self.rows("add_counts" if alone else "put_tally", number, *added)
            self._as_stored[row.name] = counts

    # ── combinations of queue, task and priority ──────────────────────────────────────────────

    def combos(self, queue: str) -> list[tuple[str, int, int]]:
        found = self._combos.get(queue)
        if found is None:
            queue_id = self.queue_id(queue)
            found = self._combos.get(queue)  # told with the queue
        if found is None:
            rows = [] if queue_id is None else self.rows("combos", queue_id)
            found = self._take_combos(queue, queue_id or 0, ((task, priority, combo) for combo, task, priority in rows))
        return found

    def _take_combos(
        self, queue: str, queue_id: int, combos: Iterable[tuple[str, int, int]]
    ) -> list[tuple[str, int, int]]:
        found = self._combos[queue] = list(combos)
        for task, priority, combo in found:
            self._name_combo((queue, task, priority), combo, queue_id)
        return found

    def combo_id(self, combo: Combo) -> tuple[int, int]:
        """The number of a combination and of its queue; a new one is written at once."""
        known = self.combo_ids.get(combo)
        if known is not None:
            return known
        queue, task, priority = combo
        queue_id = self.made_queue_id(queue)
        of_queue = self.combos(queue)
        if combo not in self.combo_ids:
            made = self.rows("make_combo", queue_id, task, priority) or self.rows(
                "make_combo",
                queue_id,
                task,
                priority,  # the first one waited for somebody else's, this one sees it
            )
            of_queue.append((task, priority, made[0][0]))
            self._name_combo(combo, made[0][0], queue_id)
        return self.combo_ids[combo]

    def _name_combo(self, combo: Combo, number: int, queue_id: int) -> None:
        self.combo_ids[combo] = number, queue_id
        self.combo_names[number] = combo

    def combo_name(self, number: int) -> Combo:
        if number not in self.combo_names:
            for combo, queue, task, priority in self.rows("combo_names"):
                self.combo_names[combo] = queue, task, priority
        return self.combo_names[number]

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    def begun(self, event: int, tasks: Sequence[str]) -> None:
        super().begun(event, tasks)
        self._tasks = dict.fromkeys(tasks)

    def _all_tasks(self) -> dict[str, TaskRow | None]:
        """The limited tasks. Most stores have none; their rows are locked once they are looked at."""
        if self._tasks is None:
            self._tasks = {row[0]: None for row in self.rows("task_names")}
        return self._tasks

    def task(self, name: str) -> TaskRow | None:
        tasks = self._all_tasks()
        if name not in tasks:
            return None
        row = tasks[name]
        if row is None:
            self.lock([f"task {name}"])
            row = tasks[name] = _task_row(self.value("task", name))
        return row

    def put_task(self, row: TaskRow) -> None:
        self._all_tasks()[row.name] = self._changed_tasks[row.name] = row

    def tasks(self) -> Sequence[TaskRow]:
        return [row for row in (self.task(name) for name in list(self._all_tasks())) if row is not None]

    def running_of_task(self, name: str) -> int:
        self.close_gate()  # whoever begins or ends a run without counting it must be done
        self.flush()
        count: int = self.value("running_of_task", name)
        return count

    # ── workers ───────────────────────────────────────────────────────────────────────────────

    def worker(self, worker_id: str) -> WorkerRecord | None:
        found = self.rows("worker", worker_id)
        return _worker(found[0][0]) if found else None

    def put_worker(self, record: WorkerRecord) -> None:
        self.rows("put_worker", record.info.id, _encode(record))

    def drop_worker(self, worker_id: str) -> None:
        self.rows("drop_worker", worker_id)

    def workers(self) -> list[WorkerRecord]:
        return [_worker(row[0]) for row in self.rows("workers")]


def _counts(row: QueueRow) -> tuple[int, ...]:
    return tuple(getattr(row, name) for name in COUNTERS)
