"""The ledger's tables, built from objects that were read: queues, tasks, the store, schedules, upkeep.

An evaluation is one pass of the ledger's rules over these tables; see `view.py`. It writes nothing. `plan.py` collects
the changes afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import FINISHED, LIVE, Job, State, is_kept_for_children, lane_line
from millrace.domain.request import Query, WorkerRecord
from millrace.domain.schedule import Schedule
from millrace.domain.settings import StoreSettings
from millrace.domain.tables import Past, QueueRow, TaskRow
from millrace.store.object.engine.index_table import IndexTable
from millrace.store.object.engine.job_table import TableOptions
from millrace.store.object.engine.numbers import Numbers
from millrace.store.object.engine.objects import SeenObject
from millrace.store.object.engine.values import (
    LineValue,
    QueueValue,
    StoreValue,
    TasksValue,
    Trimmed,
    V,
    needs_exact_counts,
    value_of,
)
from millrace.store.object.engine.view import Need, View
from millrace.store.object.keys import STATE_LETTERS, STORE, TASKS, IndexEntry, word

FEED_PAGE = 200
SLACK = 50  # keys read beyond a limit, since some may be stale


class ObjectTables(IndexTable):
    """All tables of the ledger: this class adds queues, tasks, the store and schedules to `IndexTable`."""

    def __init__(self, view: View, now: int, numbers: Numbers, options: TableOptions) -> None:
        super().__init__(view, now, numbers, options)
        self.rows: dict[str, tuple[SeenObject, QueueValue, QueueRow]] = {}
        self.plans: dict[str, tuple[SeenObject, Schedule | None]] = {}
        self.gone_workers: list[str] = []
        self.feed_parts: list[str] = []  # parts that were trimmed completely
        self._tasks: tuple[SeenObject, TasksValue] | None = None
        self._store: tuple[SeenObject, StoreValue] | None = None

    # queues

    def queue(self, name: str) -> QueueRow:
        known = self.rows.get(name)
        if known is None:
            seen = self.view.object(self.layout.queue(name))
            value = value_of(seen, QueueValue) or QueueValue(name)
            if self.options.imports:
                value.closed = self.settings().closed  # so that a new queue is closed too
            self.follow(value.stamp)
            known = self.rows[name] = (seen, value, self._row(value))
        return known[2]

    def _row(self, value: QueueValue) -> QueueRow:
        if value.row is not None:
            return msgspec.structs.replace(value.row)
        row = QueueRow(
            value.name,
            value.settings,
            processed=value.completed_before,
            died=value.died_before,
            taken=value.taken,
            next_lane=value.next_lane,
            rearm=value.rearm,
            bucket=value.bucket,
        )
        if self.options.counting:
            count_jobs(row, self.checked_entries_of_queue(value.name))
            lines = [self.line(value.name, lane_line(lane)) for lane in range(value.settings.lanes or 0)]
            row.live = max(row.live, sum(line.live for line in lines if line is not None))
        return row

    def put_queue(self, row: QueueRow) -> None:
        """Do nothing. `queue` returns the row that will be stored, so its changes are found when the step ends."""

    def queues(self) -> Sequence[str]:
        return sorted(value.name for value in self._all("control/queues/", QueueValue))

    def _all(self, prefix: str, kind: type[V]) -> list[V]:
        """Return the values of all objects under a prefix."""
        keys = self.view.keys(prefix)
        self.view.want(keys)
        values = [value_of(self.view.object(key), kind) for key in keys]
        return [value for value in values if value is not None]

    def entries_of_queue(self, queue: str, *, every: bool = False) -> list[IndexEntry]:
        """Return the index entries of all jobs of a queue: the newest entry of each job; with `every`, all entries."""
        spelled = word(queue)
        entries = self.all_entries(self.layout.prefixes_of_queue(spelled))
        return [entry for entry in (entries if every else newest(entries)) if entry.queue == spelled]

    def checked_entries_of_queue(self, queue: str) -> list[IndexEntry]:
        """Like `entries_of_queue`, but without wrong entries, for counts that are stored.

        The job's record is read if it has several entries or is running, because a claim may have crashed.
        """
        entries = self.entries_of_queue(queue, every=True)
        times = Counter(entry.name for entry in entries)
        doubtful = [entry for entry in entries if times[entry.name] > 1 or entry.state is State.RUNNING]
        self.view.want(self.layout.job_by_name(entry.name) for entry in doubtful)
        wrong = {entry.key for entry in doubtful if not self._is_valid(entry)}
        return [entry for entry in entries if entry.key not in wrong]

    def _is_valid(self, entry: IndexEntry) -> bool:
        record = self.record(self.layout.job_by_name(entry.name))
        return record.job is not None and record.value.index_key == entry.key

    def all_entries(self, prefixes: Sequence[str]) -> list[IndexEntry]:
        missing = [prefix for prefix in prefixes if not self.view.has_listed(prefix)]
        if missing:
            raise Need(listings=[(prefix, None) for prefix in missing])
        return [entry for prefix in prefixes for entry in self.entries(prefix)]

    # tasks and the store

    def _limited(self) -> TasksValue:
        if self._tasks is None:
            seen = self.view.object(TASKS)
            self._tasks = (seen, value_of(seen, TasksValue) or TasksValue())
        return self._tasks[1]

    def task(self, name: str) -> TaskRow | None:
        return self._limited().rows.get(name)

    def put_task(self, row: TaskRow) -> None:
        self._limited().rows[row.name] = row

    def tasks(self) -> Sequence[TaskRow]:
        return list(self._limited().rows.values())

    @property
    def limited_tasks(self) -> frozenset[str]:
        """The tasks with limits, if this evaluation has read the limits; otherwise empty."""
        return frozenset() if self._tasks is None else frozenset(self._tasks[1].rows)

    def running_of_task(self, name: str) -> int:
        return sum(entry.task == word(name) for entry in newest(self.entries("leases/")))

    def store_value(self) -> StoreValue:
        if self._store is None:
            seen = self.view.object(STORE)
            self._store = (seen, value_of(seen, StoreValue) or StoreValue())
        return self._store[1]

    def settings(self) -> StoreSettings:
        return self.store_value().settings

    def put_settings(self, settings: StoreSettings) -> None:
        self.store_value().settings = settings

    def trimmed(self) -> Trimmed:
        return self.store_value().trimmed

    # the feed is read in feed.py; here it is trimmed

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]:
        raise NotImplementedError("the feed of an object store is read by `feed.py`")

    def feed_bounds(self) -> tuple[int, int]:
        raise NotImplementedError("the feed of an object store is read by `feed.py`")

    def trimmed_mark(self) -> str:
        raise NotImplementedError("the feed of an object store is read by `feed.py`")

    def trim_events(self, before: int, limit: int) -> int:
        cut = self.trimmed()
        keys = self.view.keys("feed/", min(1_000, max(FEED_PAGE, limit)))
        parts = self.view.parts(keys)
        count = 0
        place = cut.position
        for key in keys:
            for one in parts[key]:
                if one.position <= place:
                    continue
                if one.event.at > before or count >= limit:
                    self._cut(place, cut.count + count)
                    return count
                place = one.position
                count += 1
            self.feed_parts.append(key)
        self._cut(place, cut.count + count)
        return count

    def is_cut_pending(self, written: Container[str]) -> bool:
        """Return whether this evaluation trims the feed, but the store's object is not written yet.

        `written` has the keys of the written objects. The store's object records how far the feed is trimmed.
        """
        if self._store is None:
            return False
        seen, value = self._store
        was = (value_of(seen, StoreValue) or StoreValue()).trimmed
        return value.trimmed != was and STORE not in written

    def _cut(self, place: tuple[int, int], count: int) -> None:
        if count != self.trimmed().count:
            self.store_value().trimmed = Trimmed(*place, count)

    def events_of(self, seqs: Sequence[int]) -> dict[int, list[Event]]:
        raise NotImplementedError("an object store is exported by `transfer.py`")

    def past_after(self, gone_at: int, seq: int, limit: int) -> list[Past]:
        raise NotImplementedError("an object store is exported by `transfer.py`")

    # schedules and workers

    def _plan(self, name: str) -> tuple[SeenObject, Schedule | None]:
        key = self.layout.schedule(name)
        known = self.plans.get(key)
        if known is None:
            seen = self.view.object(key)
            known = self.plans[key] = (seen, value_of(seen, Schedule))
        return known

    def schedule(self, name: str) -> Schedule | None:
        return self._plan(name)[1]

    def put_schedule(self, schedule: Schedule) -> None:
        seen, _ = self._plan(schedule.name)
        self.plans[seen.key] = (seen, schedule)

    def drop_schedule(self, name: str) -> None:
        seen, _ = self._plan(name)
        self.plans[seen.key] = (seen, None)

    def prefetch_schedules(self, names: Sequence[str]) -> None:
        self.view.want([self.layout.schedule(name) for name in names])

    def schedules(self, after: str, limit: int) -> list[Schedule]:
        found = sorted(self._all("schedules/", Schedule), key=lambda schedule: schedule.name)
        return [schedule for schedule in found if schedule.name > after][:limit]

    def due_schedules(self, until: int, limit: int, skip: int) -> list[Schedule]:
        raise NotImplementedError("due schedules are read by the store itself, not in a transaction")

    def next_schedule(self, after: int) -> int | None:
        raise NotImplementedError("due schedules are read by the store itself, not in a transaction")

    def worker(self, worker_id: str) -> WorkerRecord | None:
        return value_of(self.view.object(self.layout.worker(worker_id)), WorkerRecord)

    def put_worker(self, record: WorkerRecord) -> None:
        raise NotImplementedError("workers are written by the store itself, not in a transaction")

    def drop_worker(self, worker_id: str) -> None:
        self.gone_workers.append(worker_id)

    def workers(self) -> list[WorkerRecord]:
        return sorted(self._all("workers/", WorkerRecord), key=lambda record: record.info.id)

    # upkeep

    def finished(self, queue: str, dead: bool, before: int, limit: int) -> list[int]:
        entries: list[IndexEntry] = []
        for letter in "d" if dead else "cx":
            entries += self._ended_before(f"done/{word(queue)}/{letter}/", before, limit + SLACK)
        jobs = [
            job
            for job in self._ended(queue, entries)
            if (job.state is State.DEAD) == dead and job.finished_at is not None and job.finished_at <= before
        ]
        return [job.seq for job in jobs if not is_kept_for_children(job)][:limit]

    def _ended_before(self, prefix: str, before: int, count: int) -> list[IndexEntry]:
        """Return about the first `count` entries up to an instant, without those of jobs kept for their children."""
        most = count
        while True:
            some = self.entries(prefix, most)
            found = [entry for entry in some if entry.at <= before and "n" not in entry.flags]
            if len(found) >= count or len(some) < most or some[-1].at > before:
                return found
            most *= 2

    def oldest_unarchived_dead(self, queue: str, limit: int) -> list[int]:
        entries = self.entries(f"done/{word(queue)}/{STATE_LETTERS[State.DEAD]}/")
        shown = sorted((entry for entry in entries if "a" not in entry.flags), key=lambda entry: (entry.at, entry.seq))
        jobs = self._ended(queue, shown[: limit + SLACK])
        return [job.seq for job in jobs if job.state is State.DEAD and not job.archived][:limit]

    def _ended(self, queue: str, entries: Sequence[IndexEntry]) -> list[Job]:
        """Return the finished jobs of these entries and the jobs that ended in this evaluation, by finish time."""
        self.view.want(self.layout.job_by_name(entry.name) for entry in entries)
        standing = [job for entry in entries if (job := self.job_at(entry)) is not None]
        jobs = {job.seq: job for job in (*standing, *self.changed_jobs())}
        ended = [job for job in jobs.values() if job.queue == queue and job.state in FINISHED]
        return sorted(ended, key=lambda job: (job.finished_at or 0, job.seq))

    def seqs_of_queue(
        self, queue: str, states: frozenset[State], limit: int, wanted: Callable[[Job], bool] | None = None
    ) -> list[int]:
        entries = sorted(
            (entry for entry in self.entries_of_queue(queue) if entry.state in states), key=lambda entry: entry.seq
        )
        found: list[int] = []
        start = 0
        while start < len(entries) and len(found) < limit:
            some = entries[start : start + max(limit - len(found), SLACK)]
            start += len(some)
            self.view.want(self.layout.job_by_name(entry.name) for entry in some)
            for entry in some:
                job = self.job_at(entry)
                if job is not None and job.state in states and (wanted is None or wanted(job)) and len(found) < limit:
                    found.append(job.seq)
        return found

    # reading: done by `reading.py`, without the ledger

    def search(self, query: Query, now: int, budget: int) -> tuple[list[Job], int | None, int]:
        raise NotImplementedError("an object store is searched by `reading.py`")

    def waiting_counts(self, queue: str, now: int) -> tuple[int, int, int | None]:
        raise NotImplementedError("an object store is counted by `reading.py`")

    def seq_bounds(self) -> tuple[int, int]:
        raise NotImplementedError("an object store is scanned by `reading.py`")

    def scan(self, after: int, to: int, limit: int) -> list[Job]:
        raise NotImplementedError("an object store is scanned by `reading.py`")

    # the changes to store

    def changed_values(self) -> dict[str, tuple[SeenObject, bytes | None]]:
        """Return the changed objects other than jobs, by key: each as it was read, and its new value."""
        values: dict[str, tuple[SeenObject, msgspec.Struct | None]] = {
            **self.stored_lines(),
            **self.holds,
            **self.plans,
        }
        for seen, stored, row in self.rows.values():
            kept = stored_queue(stored, row)
            if seen.value is not None or kept != QueueValue(stored.name):
                values[seen.key] = (seen, kept)
        if self._tasks is not None:
            values[TASKS] = (self._tasks[0], self._tasks[1] if self._tasks[1].rows else None)
        if self._store is not None and (self._store[0].value is not None or self._store[1] != StoreValue()):
            values[STORE] = self._store
        changed: dict[str, tuple[SeenObject, bytes | None]] = {}
        for key, (seen, value) in values.items():
            body = _encode(value)
            if body != seen.value or key in self.touched:
                if isinstance(value, LineValue) or (isinstance(value, QueueValue) and value.row is not None):
                    value.stamp = self.stamp
                    body = _encode(value)
                changed[key] = (seen, body)
        return changed


def _encode(value: msgspec.Struct | None) -> bytes | None:
    return None if value is None else msgspec.json.encode(value)


def stored_queue(value: QueueValue, row: QueueRow) -> QueueValue:
    """Return the value to store for a queue row. Counters are included only if the settings need exact counts."""
    return QueueValue(
        value.name,
        row.settings,
        row.processed - row.completed,
        row.died - row.dead,
        row.next_lane,
        row.taken if row.settings.fair_share > 0 else 0,
        row.bucket,
        row if needs_exact_counts(row.settings) else None,
        value.stamp,
        row.rearm,
        value.closed,
    )


def newest(entries: Sequence[IndexEntry]) -> list[IndexEntry]:
    """Return the newest entry of each job. Older entries are stale and will be deleted soon."""
    best: dict[int, IndexEntry] = {}
    for entry in entries:
        known = best.get(entry.seq)
        if known is None or known.rev < entry.rev:
            best[entry.seq] = entry
    return list(best.values())


def count_jobs(row: QueueRow, entries: Sequence[IndexEntry]) -> None:
    for entry in entries:
        if entry.state is State.WAITING:
            row.waiting += 1
            row.blocked += "b" in entry.flags
        elif entry.state is State.RUNNING:
            row.running += 1
        else:
            _count_finished(row, entry)
        row.live += entry.state in LIVE and "k" not in entry.flags
    row.processed += row.completed
    row.died += row.dead


def _count_finished(row: QueueRow, entry: IndexEntry) -> None:
    if entry.state is State.COMPLETED:
        row.completed += 1
    elif entry.state is State.DEAD:
        row.dead += 1
        row.archived_dead += "a" in entry.flags
    else:
        row.cancelled += 1
    row.archived += "a" in entry.flags
