"""The ledger's tables over objects that were read: queues, tasks, the store, schedules, upkeep.

A run over these tables writes nothing. What it has changed is asked for afterwards (`plan.py`) and swapped in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import FINISHED, LIVE, Job, State, lane_line
from millrace.domain.request import Query, WorkerRecord
from millrace.domain.schedule import Schedule
from millrace.domain.settings import StoreSettings
from millrace.domain.tables import QueueRow, TaskRow
from millrace.store.object.keys import STATE_LETTERS, STORE, TASKS, Entry, word
from millrace.store.object.numbers import Numbers
from millrace.store.object.objects import Seen
from millrace.store.object.place_table import PlaceTable
from millrace.store.object.values import (
    LineValue,
    QueueValue,
    StoreValue,
    TasksValue,
    Trimmed,
    decode,
    needs_exact_counts,
)
from millrace.store.object.view import Need, View

FEED_PAGE = 200
SLACK = 50  # keys read beyond a limit, since some may be leftovers


class ObjectTables(PlaceTable):
    """`counting`: hand out queue rows with counters, found by listing; claims and settles have no use for them."""

    def __init__(
        self,
        view: View,
        now: int,
        numbers: Numbers,
        looks_at_time: bool = True,
        counting: bool = False,
    ) -> None:
        super().__init__(view, now, numbers, looks_at_time)
        self.counting = counting
        self.rows: dict[str, tuple[Seen, QueueValue, QueueRow]] = {}
        self.plans: dict[str, tuple[Seen, Schedule | None]] = {}
        self.gone_workers: list[str] = []
        self.feed_parts: list[str] = []  # that have been read to the end and cut off
        self._tasks: tuple[Seen, TasksValue] | None = None
        self._store: tuple[Seen, StoreValue] | None = None

    # queues

    def queue(self, name: str) -> QueueRow:
        known = self.rows.get(name)
        if known is None:
            seen = self.view.object(self.layout.queue(name))
            value = QueueValue(name) if seen.value is None else decode(seen.value, QueueValue)
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
            bucket=value.bucket,
        )
        if self.counting:
            count_jobs(row, self.surely_in(value.name))
            lines = [self.line(value.name, lane_line(lane)) for lane in range(value.settings.lanes or 0)]
            row.live = max(row.live, sum(line.live for line in lines if line is not None))
        return row

    def put_queue(self, row: QueueRow) -> None:
        """The row handed out is the run's own; what of it is to be kept is seen in the end."""

    def queues(self) -> Sequence[str]:
        keys = self.view.keys("control/queues/")
        self.view.want(keys)
        values = [self.view.object(key).value for key in keys]
        return sorted(decode(value, QueueValue).name for value in values if value is not None)

    def standing_in(self, queue: str, *, every: bool = False) -> list[Entry]:
        """Every job of a queue, as the indexes tell: one entry each, the newest; or whatever there is."""
        spelled = word(queue)
        prefixes = [f"ready/{shard}/{spelled}/" for shard in self.layout.shards]
        entries = self.all_entries([*prefixes, f"held/{spelled}/", "leases/", f"done/{spelled}/"])
        return [entry for entry in (entries if every else newest(entries)) if entry.queue == spelled]

    def surely_in(self, queue: str) -> list[Entry]:
        """As `standing_in`, but where keys contradict each other, or tell of a run that may never have begun, the jobs
        themselves are asked: what is counted here is counted on from."""
        entries = self.standing_in(queue, every=True)
        times = Counter(entry.seq for entry in entries)
        doubtful = [entry for entry in entries if times[entry.seq] > 1 or entry.state is State.RUNNING]
        self.view.want(self.layout.job_by_name(entry.name) for entry in doubtful)
        wrong = {entry.key for entry in doubtful if not self._is_filed(entry)}
        return [entry for entry in entries if entry.key not in wrong]

    def _is_filed(self, entry: Entry) -> bool:
        record = self.record(self.layout.job_by_name(entry.name))
        return record.job is not None and record.value.filed == entry.key

    def all_entries(self, prefixes: Sequence[str]) -> list[Entry]:
        missing = [prefix for prefix in prefixes if not self.view.has_listed(prefix)]
        if missing:
            raise Need(lambda: self.view.list_all(missing))
        return [entry for prefix in prefixes for entry in self.entries(prefix)]

    # tasks and the store

    def _limited(self) -> TasksValue:
        if self._tasks is None:
            seen = self.view.object(TASKS)
            self._tasks = (seen, TasksValue({}) if seen.value is None else decode(seen.value, TasksValue))
        return self._tasks[1]

    def task(self, name: str) -> TaskRow | None:
        return self._limited().rows.get(name)

    def put_task(self, row: TaskRow) -> None:
        self._limited().rows[row.name] = row

    def tasks(self) -> Sequence[TaskRow]:
        return list(self._limited().rows.values())

    @property
    def limited_tasks(self) -> frozenset[str]:
        """Those whose limits this run has looked at."""
        return frozenset() if self._tasks is None else frozenset(self._tasks[1].rows)

    def running_of_task(self, name: str) -> int:
        return sum(entry.task == word(name) for entry in newest(self.entries("leases/")))

    def store_value(self) -> StoreValue:
        if self._store is None:
            seen = self.view.object(STORE)
            value = StoreValue(StoreSettings()) if seen.value is None else decode(seen.value, StoreValue)
            self._store = (seen, value)
        return self._store[1]

    def settings(self) -> StoreSettings:
        return self.store_value().settings

    def put_settings(self, settings: StoreSettings) -> None:
        self.store_value().settings = settings

    def trimmed(self) -> Trimmed:
        return self.store_value().trimmed

    # the feed is read elsewhere; here it is cut

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]:
        raise NotImplementedError("the feed of an object store is read by `feed.py`")

    def feed_bounds(self) -> tuple[int, int]:
        raise NotImplementedError("the feed of an object store is read by `feed.py`")

    def trim_events(self, before: int, limit: int) -> int:
        cut = self.trimmed()
        keys = self.view.keys("feed/", min(1_000, max(FEED_PAGE, limit)))
        parts = self.view.parts(keys)
        count = 0
        place = (cut.stamp, cut.place)
        for key in keys:
            for filed in parts[key].events:
                if (filed.stamp, filed.place) <= place:
                    continue
                if filed.event.at > before or count >= limit:
                    self._cut(place, cut.count + count)
                    return count
                place = (filed.stamp, filed.place)
                count += 1
            self.feed_parts.append(key)
        self._cut(place, cut.count + count)
        return count

    def is_cut_pending(self, written: Container[str]) -> bool:
        """Was the feed to be cut further, and has that not been written?"""
        if self._store is None:
            return False
        seen, value = self._store
        was = Trimmed() if seen.value is None else decode(seen.value, StoreValue).trimmed
        return value.trimmed != was and STORE not in written

    def _cut(self, place: tuple[int, int], count: int) -> None:
        if count != self.trimmed().count:
            self.store_value().trimmed = Trimmed(*place, count)

    # schedules and workers

    def _plan(self, name: str) -> tuple[Seen, Schedule | None]:
        key = self.layout.schedule(name)
        known = self.plans.get(key)
        if known is None:
            seen = self.view.object(key)
            known = self.plans[key] = (seen, None if seen.value is None else decode(seen.value, Schedule))
        return known

    def schedule(self, name: str) -> Schedule | None:
        return self._plan(name)[1]

    def put_schedule(self, schedule: Schedule) -> None:
        seen, _ = self._plan(schedule.name)
        self.plans[seen.key] = (seen, schedule)

    def drop_schedule(self, name: str) -> None:
        seen, _ = self._plan(name)
        self.plans[seen.key] = (seen, None)

    def schedules(self) -> list[Schedule]:
        keys = self.view.keys("schedules/")
        self.view.want(keys)
        values = [self.view.object(key).value for key in keys]
        return sorted((decode(value, Schedule) for value in values if value is not None), key=lambda plan: plan.name)

    def worker(self, worker_id: str) -> WorkerRecord | None:
        value = self.view.object(self.layout.worker(worker_id)).value
        return None if value is None else decode(value, WorkerRecord)

    def put_worker(self, record: WorkerRecord) -> None:
        raise NotImplementedError("workers are written by the store itself, not in a transaction")

    def drop_worker(self, worker_id: str) -> None:
        self.gone_workers.append(worker_id)

    def workers(self) -> list[WorkerRecord]:
        keys = self.view.keys("workers/")
        self.view.want(keys)
        values = [self.view.object(key).value for key in keys]
        found = [decode(value, WorkerRecord) for value in values if value is not None]
        return sorted(found, key=lambda record: record.info.id)

    # upkeep

    def finished(self, queue: str, dead: bool, before: int, limit: int) -> list[int]:
        entries: list[Entry] = []
        for letter in "d" if dead else "cx":
            some = self.entries(f"done/{word(queue)}/{letter}/", limit + SLACK)
            entries += [entry for entry in some if entry.at <= before]
        jobs = [
            job
            for job in self._ended(queue, entries)
            if (job.state is State.DEAD) == dead and job.finished_at is not None and job.finished_at <= before
        ]
        return [job.seq for job in jobs[:limit]]

    def oldest_unarchived_dead(self, queue: str, limit: int) -> list[int]:
        entries = self.entries(f"done/{word(queue)}/{STATE_LETTERS[State.DEAD]}/")
        shown = sorted((entry for entry in entries if "a" not in entry.flags), key=lambda entry: (entry.at, entry.seq))
        jobs = self._ended(queue, shown[: limit + SLACK])
        return [job.seq for job in jobs if job.state is State.DEAD and not job.archived][:limit]

    def _ended(self, queue: str, entries: Sequence[Entry]) -> list[Job]:
        """The finished jobs that these entries name, and those that have ended in this very run."""
        self.view.want(self.layout.job_by_name(entry.name) for entry in entries)
        standing = [job for entry in entries if (job := self.standing_at(entry)) is not None]
        jobs = {job.seq: job for job in (*standing, *self.changed_jobs())}
        ended = [job for job in jobs.values() if job.queue == queue and job.state in FINISHED]
        return sorted(ended, key=lambda job: (job.finished_at or 0, job.seq))

    def seqs_of_queue(
        self, queue: str, states: frozenset[State], limit: int, wanted: Callable[[Job], bool] | None = None
    ) -> list[int]:
        entries = sorted(
            (entry for entry in self.standing_in(queue) if entry.state in states), key=lambda entry: entry.seq
        )
        found: list[int] = []
        start = 0
        while start < len(entries) and len(found) < limit:
            some = entries[start : start + max(limit - len(found), SLACK)]
            start += len(some)
            self.view.want(self.layout.job_by_name(entry.name) for entry in some)
            for entry in some:
                job = self.standing_at(entry)
                if job is not None and job.state in states and (wanted is None or wanted(job)) and len(found) < limit:
                    found.append(job.seq)
        return found

    # reading, which `reading.py` does without a run

    def search(self, query: Query, now: int, budget: int) -> tuple[list[Job], int | None, int]:
        raise NotImplementedError("an object store is searched by `reading.py`")

    def words(self, queue: str, now: int) -> tuple[int, int, int | None]:
        raise NotImplementedError("an object store is counted by `reading.py`")

    def seq_bounds(self) -> tuple[int, int]:
        raise NotImplementedError("an object store is scanned by `reading.py`")

    def scan(self, after: int, to: int, limit: int) -> list[Job]:
        raise NotImplementedError("an object store is scanned by `reading.py`")

    # what is to be kept of all this

    def changed_values(self) -> dict[str, tuple[Seen, bytes | None]]:
        """Objects other than jobs whose value is another one now."""
        values: dict[str, tuple[Seen, msgspec.Struct | None]] = {**self.lines, **self.holds, **self.plans}
        for seen, stored, row in self.rows.values():
            kept = kept_of(stored, row)
            if seen.value is not None or kept != QueueValue(stored.name):
                values[seen.key] = (seen, kept)
        if self._tasks is not None:
            values[TASKS] = (self._tasks[0], self._tasks[1] if self._tasks[1].rows else None)
        if self._store is not None and (self._store[0].value is not None or self._store[1] != _FRESH):
            values[STORE] = self._store
        changed: dict[str, tuple[Seen, bytes | None]] = {}
        for key, (seen, value) in values.items():
            body = _encode(value)
            if body != seen.value or key in self.touched:
                if isinstance(value, LineValue) or (isinstance(value, QueueValue) and value.row is not None):
                    value.stamp = self.stamp
                    body = _encode(value)
                changed[key] = (seen, body)
        return changed


_FRESH = StoreValue(StoreSettings())


def _encode(value: msgspec.Struct | None) -> bytes | None:
    return None if value is None else msgspec.json.encode(value)


def kept_of(value: QueueValue, row: QueueRow) -> QueueValue:
    """What is to be stored of a row after a run."""
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
    )


def newest(entries: Sequence[Entry]) -> list[Entry]:
    """One entry per job: what an older one says was so before, and is about to be deleted."""
    best: dict[int, Entry] = {}
    for entry in entries:
        known = best.get(entry.seq)
        if known is None or known.rev < entry.rev:
            best[entry.seq] = entry
    return list(best.values())


def count_jobs(row: QueueRow, entries: Sequence[Entry]) -> None:
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


def _count_finished(row: QueueRow, entry: Entry) -> None:
    if entry.state is State.COMPLETED:
        row.completed += 1
    elif entry.state is State.DEAD:
        row.dead += 1
        row.archived_dead += "a" in entry.flags
    else:
        row.cancelled += 1
    row.archived += "a" in entry.flags
