"""Queues, tasks, combinations and the store's own row, as one step reads and changes them.

A combination is a (queue, task, priority) that a job has used; it has an id. A queue is exact if a setting depends on
exact counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from millrace.domain.rules.fast_path import accepts_all, claims_by_order
from millrace.domain.rules.limits import Bucket, capacity
from millrace.domain.settings import QueueSettings, StoreSettings, fair_period
from millrace.domain.tables import QueueRow, TaskRow
from millrace.store.postgres.locks import RetryStep, StepLocks
from millrace.store.postgres.sql import PostgresStatements
from millrace.store.sql.ports import Batch, Row, line_lock
from millrace.store.sql.unit import Combo

_encode = msgspec.msgpack.Encoder().encode
_queue_settings = msgspec.msgpack.Decoder(QueueSettings).decode
_task_row = msgspec.msgpack.Decoder(TaskRow).decode
_settings = msgspec.msgpack.Decoder(StoreSettings).decode

_FASTEST = 1e12  # jobs per second; PostgreSQL raises an error where a product of floats would be infinite

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


def is_exact(settings: QueueSettings) -> bool:
    """Return whether a setting of the queue depends on exact counts, so that its steps must run one after the other."""
    return (
        settings.max_running is not None
        or settings.rate is not None
        or settings.fair_share > 0
        or settings.on_empty is not None
        or not accepts_all(settings)
    )


class Registry:
    """The queues, tasks and combinations that one step has read or changed.

    `combo_ids` and `combo_names` begin with the combinations that are known to be committed.
    """

    def __init__(
        self,
        statements: PostgresStatements,
        locks: StepLocks,
        batch: Batch,
        combo_ids: dict[Combo, tuple[int, int]],
        combo_names: dict[int, Combo],
    ) -> None:
        self._db = statements
        self._locks = locks
        self._batch = batch
        self.combo_ids = combo_ids  # (id, id of the queue)
        self._combo_names = combo_names
        self._now = 0
        self._queue_rows: dict[str, QueueRow] = {}
        self._queue_ids: dict[str, int | None] = {}
        self._as_stored: dict[str, tuple[int, ...]] = {}  # counters as they were read
        self._stored_settings: dict[str, tuple[QueueSettings, Bucket | None, int, bool]] = {}
        self._changed_queues: dict[str, QueueRow] = {}
        self._combos: dict[str, list[tuple[str, int, int]]] = {}  # by queue: (task, priority, id)
        self._tasks: dict[str, TaskRow | None] | None = None
        self._changed_tasks: dict[str, TaskRow] = {}
        self.exact_locks: dict[str, str] = {}  # by queue, for queues that are exact
        self.alone_in: set[str] = set()  # queues whose settings this step may change
        self._seqs: deque[int] = deque()  # drawn, and not used yet
        self._drawn = 0
        self._waiting_counts: dict[str, tuple[int, int, int | None]] = {}  # cached after reading all queues

    def begin(self, now: int, tasks: Sequence[str] | None = None) -> None:
        """Start a step at the time `now`. `tasks` are the names of the tasks with limits, or None to read them when
        needed.
        """
        self._now = now
        if tasks is not None:
            self._tasks = dict.fromkeys(tasks)

    def flush(self) -> None:
        self._write_queues(self._changed_queues.values())
        self._changed_queues = {}
        if self._changed_tasks:
            self._db.write("put_tasks", [(name, _encode(task)) for name, task in self._changed_tasks.items()])
            self._changed_tasks = {}

    # ── the store's row ───────────────────────────────────────────────────────────────────────

    def next_seqs(self, count: int) -> Sequence[int]:
        """Return new seqs. The first call draws as many as the specs of the enqueue may need.

        The lines of these specs are locked before that: otherwise another call could draw later seqs and be committed
        first, and the line would have them in the wrong order.
        """
        missing = count - len(self._seqs)
        if missing > 0:
            self._locks.lock(line_lock(*line) for line in self._batch.lines())
            drawn = self._db.seqs("next_seqs", max(missing, self._batch.new_jobs - self._drawn))
            self._seqs += drawn
            self._drawn += len(drawn)
        return [self._seqs.popleft() for _ in range(count)]

    def settings(self) -> StoreSettings:
        found = self._db.value("store_settings")
        return StoreSettings() if found is None else _settings(found)

    def put_settings(self, settings: StoreSettings) -> None:
        if self._locks.writes:
            self._db.rows("put_store_settings", None if settings == StoreSettings() else _encode(settings))

    # ── queues ────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> QueueRow:
        if name not in self._queue_rows:
            self._load_queues([each for each in {name, *self._batch.queues()} if each not in self._queue_rows])
        return self._queue_rows[name]

    def _load_queues(self, names: Sequence[str]) -> None:
        if not self._locks.writes:
            rows = {row[1]: row for row in self._db.rows("queues", names)}
        else:
            rows = self._lock_queues(names)
        for name in names:
            self._take_queue(name, rows.get(name))

    def _lock_queues(self, names: Sequence[str]) -> dict[str, Row]:
        """Lock these queues, load their combinations, and return their rows."""
        rows: dict[str, Row] = {}
        lacking: dict[str, bool] = {}
        for lacks, mine, ids, tasks, priorities, *row in self._db.rows_of(
            "take_queues", [(name, name in self.alone_in) for name in names]
        ):
            lock, name = f"queue {row[0]}", row[1]
            rows[name] = row
            if lacks:
                lacking[lock] = lacks == 1
                continue
            self._locks.held[lock] = not mine and self._locks.held.get(lock, True)
            if mine:
                self.exact_locks[name] = lock
            self._take_combos(name, row[0], [] if ids is None else zip(tasks, priorities, ids, strict=True))
        if lacking:
            self._locks.retry_with(lacking)
        return rows

    def _take_queue(self, name: str, found: Row | None) -> QueueRow:
        row = QueueRow(name)
        if found is not None:
            _, _, settings, _, tokens, tokens_at, row.next_lane, row.rearm, *counts = found
            for counter, value in zip(COUNTERS, counts, strict=True):
                setattr(row, counter, value)
            if settings is not None:
                row.settings = _queue_settings(settings)
            row.bucket = None if tokens is None else Bucket(tokens, tokens_at)
        self._queue_ids[name] = None if found is None else found[0]
        self._queue_rows[name] = row
        self._as_stored[name] = _counts(row)
        self._stored_settings[name] = row.settings, row.bucket, row.next_lane, row.rearm
        return row

    def seen_queues(self) -> Iterable[str]:
        return self._queue_rows

    def put_queue(self, row: QueueRow) -> None:
        self._changed_queues[row.name] = row

    def queues(self) -> Sequence[str]:
        if self._locks.writes:
            known = {row[0] for row in self._db.rows("queue_names")}
            return sorted(known | self._changed_queues.keys())
        found = self._db.rows("all_queues", self._now)
        for *row, later, retrying, first in found:
            self._take_queue(row[1], row)
            self._waiting_counts[row[1]] = later, retrying, first
        return sorted(row[1] for row in found)

    def waiting_counts(self, queue: str, now: int) -> tuple[int, int, int | None]:
        queue_id = self.queue_id(queue)
        if queue_id is None:
            return 0, 0, None
        later, retrying, oldest = self._waiting_counts.get(queue) or self._db.rows("words", queue_id, now)[0]
        return later - retrying, retrying, oldest if oldest is not None and oldest <= now else None

    def queue_id(self, name: str) -> int | None:
        self.queue(name)
        return self._queue_ids[name]

    def made_queue_id(self, name: str) -> int:
        """Return the id of a queue; create the queue if it does not exist."""
        known = self.queue_id(name)
        if known is None:
            made = self._db.rows("make_queue", name)
            if not made:
                raise RetryStep  # another transaction has created it meanwhile, perhaps with settings
            known = self._queue_ids[name] = int(made[0][0])
            self._locks.lock([f"queue {known}"], shared=name not in self.alone_in)
        return known

    def _write_queues(self, rows: Iterable[QueueRow]) -> None:
        """Write the queues that have changed. No two statements update the same row, so they can be sent together."""
        written: dict[str, list[tuple[object, ...]]] = {"put_queues": [], "add_counts": [], "put_tally": []}
        for row in rows:
            number = self.made_queue_id(row.name)
            kept, counts = (row.settings, row.bucket, row.next_lane, row.rearm), _counts(row)
            added = [new - old for new, old in zip(counts, self._as_stored[row.name], strict=True)]
            alone = self._locks.held.get(f"queue {number}") is False
            if any(added) and not alone:
                written["put_tally"].append((number, *added))
                added = [0] * len(added)
            if kept != self._stored_settings[row.name]:
                written["put_queues"].append((number, *added, *_setting_columns(row)))
            elif any(added):
                written["add_counts"].append((number, *added))
            self._stored_settings[row.name], self._as_stored[row.name] = kept, counts
        for name, of_queues in written.items():
            if of_queues:
                self._db.write(name, of_queues)

    # ── combinations of queue, task and priority ──────────────────────────────────────────────

    def combos(self, queue: str) -> list[tuple[str, int, int]]:
        found = self._combos.get(queue)
        if found is None:
            queue_id = self.queue_id(queue)
            found = self._combos.get(queue)  # read together with the queue
        if found is None:
            rows = [] if queue_id is None else self._db.rows("combos", queue_id)
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
        """Return (id of the combination, id of its queue). A new combination is written immediately."""
        known = self.combo_ids.get(combo)
        if known is not None:
            return known
        queue, task, priority = combo
        queue_id = self.made_queue_id(queue)
        of_queue = self.combos(queue)
        if combo not in self.combo_ids:
            made = self._db.rows("make_combo", queue_id, task, priority) or self._db.rows(
                "make_combo",
                queue_id,
                task,
                priority,  # the first statement waited for a concurrent insert, the second one sees it
            )
            of_queue.append((task, priority, made[0][0]))
            self._name_combo(combo, made[0][0], queue_id)
        return self.combo_ids[combo]

    def _name_combo(self, combo: Combo, number: int, queue_id: int) -> None:
        self.combo_ids[combo] = number, queue_id
        self._combo_names[number] = combo

    def combo_name(self, number: int) -> Combo:
        if number not in self._combo_names:
            for combo, queue, task, priority in self._db.rows("combo_names"):
                self._combo_names[combo] = queue, task, priority
        return self._combo_names[number]

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    def _all_tasks(self) -> dict[str, TaskRow | None]:
        """Return the names of the tasks with limits, each with its row or None if the row was not read yet.

        `task` locks and reads a row when it is first needed.
        """
        if self._tasks is None:
            self._tasks = {row[0]: None for row in self._db.rows("task_names")}
        return self._tasks

    def task(self, name: str) -> TaskRow | None:
        tasks = self._all_tasks()
        if name not in tasks:
            return None
        if tasks[name] is None:
            wanted = [each for each in {name, *self._batch.tasks()} if each in tasks and tasks[each] is None]
            self._locks.lock(f"task {each}" for each in wanted)
            tasks.update((each, _task_row(facts)) for each, facts in self._db.rows("tasks", wanted))
        return tasks[name]

    def put_task(self, row: TaskRow) -> None:
        self._all_tasks()[row.name] = self._changed_tasks[row.name] = row

    def tasks(self) -> Sequence[TaskRow]:
        return [row for row in (self.task(name) for name in list(self._all_tasks())) if row is not None]


def _setting_columns(row: QueueRow) -> tuple[object, ...]:
    settings, bucket = row.settings, row.bucket
    by_order, rate = claims_by_order(settings), settings.rate
    return (
        None if settings == QueueSettings() else _encode(settings),
        is_exact(settings),
        accepts_all(settings),
        by_order and not settings.paused,
        settings.on_empty is None and settings.keep_completed != 0,
        not by_order and not settings.paused and (rate is None or rate <= _FASTEST),
        settings.max_running,
        rate,
        None if rate is None else float(capacity(settings)),
        fair_period(settings) > 0,
        None if bucket is None else bucket.tokens,
        None if bucket is None else bucket.at,
        row.next_lane,
        row.rearm,
    )


def _counts(row: QueueRow) -> tuple[int, ...]:
    return tuple(getattr(row, name) for name in COUNTERS)
