"""The ledger's tables in memory: dictionaries and the ordered indexes of `indexes.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest

from millrace.domain.event import Event
from millrace.domain.feed import mark_of
from millrace.domain.job import LIVE, Job, State, is_lease_expired
from millrace.domain.request import Query, WorkerRecord, matches
from millrace.domain.schedule import Schedule
from millrace.domain.settings import StoreSettings
from millrace.domain.tables import KeyHold, Line, Past, QueueRow, Range, TaskRow
from millrace.store.memory.indexes import IndexedHeap, Ready
from millrace.store.memory.jobs import MemoryJobs, drop_from


class MemoryTables(MemoryJobs):
    """All tables of the ledger: `MemoryJobs` has the jobs and their indexes, and this class adds the other tables."""

    def __init__(self, shards: int = 1) -> None:
        super().__init__(shards)
        self._windows: IndexedHeap[tuple[str, str]] = IndexedHeap()
        self._children: dict[str, dict[int, None]] = {}
        self._parents: dict[int, dict[str, None]] = {}
        self._tasks: dict[str, TaskRow] = {}
        self._settings = StoreSettings()
        self._workers: dict[str, WorkerRecord] = {}
        self._schedules: dict[str, Schedule] = {}
        self._schedules_due: IndexedHeap[str] = IndexedHeap()
        self._feed: list[Event] = []
        self._trimmed = 0
        self._trimmed_mark = ""
        self._histories: dict[int, tuple[Event, ...]] = {}  # tuples: the garbage collector stops tracking them
        self._past: dict[str, list[Past]] = {}
        self._past_order: IndexedHeap[int] = IndexedHeap()
        self._past_by_seq: dict[int, Past] = {}

    # ── what a claim and the reaper look at ───────────────────────────────────────────────────

    def ranges(self, queue: str, tasks: frozenset[str] | None, now: int, limit: int) -> list[Range]:
        return [
            DueJobs(queue, task, priority, ready, now)
            for (task, priority), ready in self._data_of(queue).ready.items()
            if ready and (tasks is None or task in tasks)
        ]

    def entering(self, now: int, limit: int) -> list[int]:
        return self._outside.smallest(limit, now)

    def expiring(self, now: int, limit: int) -> list[int]:
        return self._expires.smallest(limit, now)

    def lapsed(
        self,
        now: int,
        limit: int,
        queues: tuple[str, ...] | None,
        tasks: frozenset[str] | None,
        ignore: frozenset[str],
    ) -> list[int]:
        order = self._leases.peek_order()
        if order is None or order[0] >= now:
            return []
        found: list[int] = []
        for seq in self._leases.smallest(len(self._leases)):
            job = self._seqs[seq]
            if not is_lease_expired(job, now) or len(found) >= limit:
                break
            wanted = (queues is None or job.spec.queue in queues) and (tasks is None or job.spec.task in tasks)
            if wanted and job.lease_id not in ignore:
                found.append(seq)
        return found

    def next_due(self, queue: str, tasks: frozenset[str] | None, without: frozenset[str]) -> int | None:
        data = self._data_of(queue)
        heads: list[tuple[int, ...] | None] = [
            ready.peek()
            for (task, _), ready in data.ready.items()
            if (tasks is None or task in tasks) and task not in without
        ]
        heads.append(data.outside.peek_order())
        return min((head[0] for head in heads if head is not None), default=None)

    # ── lines, keys, dependencies ─────────────────────────────────────────────────────────────

    def line(self, queue: str, name: str) -> Line | None:
        return self._data_of(queue).lines.get(name)

    def put_line(self, line: Line) -> None:
        self._data_of(line.queue).lines[line.name] = line

    def drop_line(self, line: Line) -> None:
        self._data_of(line.queue).lines.pop(line.name, None)

    def best_in_line(self, queue: str, name: str) -> int | None:
        members = self._data_of(queue).members.get(name)
        return None if members is None else members.peek()

    def members(self, queue: str, name: str, limit: int) -> list[int]:
        members = self._data_of(queue).members.get(name)
        return [] if members is None else members.smallest(limit)

    def key(self, queue: str, key: str) -> KeyHold | None:
        return self._data_of(queue).holds.get(key)

    def put_key(self, hold: KeyHold) -> None:
        self._data_of(hold.queue).holds[hold.key] = hold
        put_any(self._windows, (hold.queue, hold.key), hold.until)

    def drop_key(self, hold: KeyHold) -> None:
        self._data_of(hold.queue).holds.pop(hold.key, None)
        self._windows.remove((hold.queue, hold.key))

    def lapsed_keys(self, now: int, limit: int) -> list[KeyHold]:
        return [self._data_of(queue).holds[key] for queue, key in self._windows.smallest(limit, now)]

    def windows(self, since: int, skip: int, limit: int) -> list[KeyHold]:
        names = self._windows.smallest(len(self._windows))
        held = [self._data_of(queue).holds[key] for queue, key in names]
        found = [hold for hold in held if hold.until is not None and hold.until >= since]
        return sorted(found, key=lambda hold: (hold.until, hold.queue, hold.key))[skip : skip + limit]

    def add_dependency(self, parent: str, child: int) -> None:
        self._children.setdefault(parent, {})[child] = None
        self._parents.setdefault(child, {})[parent] = None

    def drop_dependency(self, parent: str, child: int) -> None:
        drop_from(self._children, parent, child)
        drop_from(self._parents, child, parent)

    def children(self, parent: str) -> list[int]:
        return sorted(self._children.get(parent, ()))

    def parents(self, child: int) -> list[str]:
        return list(self._parents.get(child, ()))

    def dead_dependents(self, parents: Sequence[str]) -> list[int]:
        found = {seq for parent in parents for seq in self._dependents.get(parent, ())}
        return sorted(seq for seq in found if self._seqs[seq].state is State.DEAD)

    def is_needed(self, parent: str) -> bool:
        return any(self._seqs[seq].state in LIVE for seq in self._dependents.get(parent, ()))

    # ── queues, tasks, store ──────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> QueueRow:
        return self._data_of(name).row

    def put_queue(self, row: QueueRow) -> None:
        """Mark the queue as existing. Its row needs no write, because `queue` returns the stored row itself."""
        self._data_of(row.name).exists = True

    def queues(self) -> Sequence[str]:
        return sorted(name for name, data in self._names.items() if data.exists)

    def task(self, name: str) -> TaskRow | None:
        return self._tasks.get(name)

    def put_task(self, row: TaskRow) -> None:
        self._tasks[row.name] = row

    def tasks(self) -> Sequence[TaskRow]:
        return list(self._tasks.values())

    def running_of_task(self, name: str) -> int:
        return sum(self._seqs[seq].spec.task == name for seq in self._leases)

    def settings(self) -> StoreSettings:
        return self._settings

    def put_settings(self, settings: StoreSettings) -> None:
        self._settings = settings

    # ── upkeep and reading ────────────────────────────────────────────────────────────────────

    def finished(self, queue: str, dead: bool, before: int, limit: int) -> list[int]:
        data = self._data_of(queue)
        return (data.dead if dead else data.finished).smallest(limit, before)

    def oldest_unarchived_dead(self, queue: str, limit: int) -> list[int]:
        return self._data_of(queue).unarchived_dead.smallest(limit)

    def due_retries(self, now: int, limit: int) -> list[int]:
        return self._retries.smallest(limit, now)

    def expired_results(self, now: int, limit: int) -> list[int]:
        return self._results.smallest(limit, now)

    def seqs_of_queue(
        self, queue: str, states: frozenset[State], limit: int, wanted: Callable[[Job], bool] | None = None
    ) -> list[int]:
        found: list[int] = []
        for seq in self._data_of(queue).seqs.after(0):
            if len(found) >= limit:
                break
            job = self._seqs[seq]
            if job.state in states and (wanted is None or wanted(job)):
                found.append(seq)
        return found

    def search(self, query: Query, now: int, budget: int) -> tuple[list[Job], int | None, int]:
        place = self._all if query.queue is None else self._data_of(query.queue).seqs
        start = None if query.cursor is None else int(query.cursor)
        walk = place.before(start) if query.newest_first else place.after(start or 0)
        found: list[Job] = []
        scanned = last = 0
        for seq in walk:
            if len(found) >= query.limit or scanned >= budget:
                return found, last, scanned
            scanned += 1
            last = seq
            if matches(self._seqs[seq], query, now):
                found.append(self._seqs[seq])
        return found, None, scanned

    def ahead(self, job: Job, now: int, most: int) -> int:
        data = self._data_of(job.spec.queue)
        name = job.line
        if name is not None:
            members = data.members.get(name)
            mine = (-job.spec.priority, job.seq)
            better = [] if members is None else members.smallest(most)
            line = data.lines.get(name)
            held = line is not None and line.holder is not None and line.holder != job.seq
            count = held + sum((-self._seqs[s].spec.priority, s) < mine for s in better)
            return min(most, count)
        count = 0
        starts = max(now, job.available_at)  # a job that is due later is not ahead, even with a higher priority
        for (_, priority), ready in data.ready.items():
            if priority < job.spec.priority:
                continue
            for at, seq in ready.smallest(most):
                if at > starts or (priority == job.spec.priority and (at, seq) >= (job.available_at, job.seq)):
                    break
                count += 1
        return min(most, count)

    def waiting_counts(self, queue: str, now: int) -> tuple[int, int, int | None]:
        data = self._data_of(queue)
        scheduled = retrying = 0
        oldest: int | None = None
        for seq in data.seqs.after(0):
            job = self._seqs[seq]
            if job.state is not State.WAITING or job.blocked:
                continue
            if job.available_at <= now:
                if job.open and (oldest is None or job.available_at < oldest):
                    oldest = job.available_at
            elif job.failures:
                retrying += 1
            else:
                scheduled += 1
        return scheduled, retrying, oldest

    def seq_bounds(self) -> tuple[int, int]:
        first = next(self._all.after(0), None)
        return (0, 0) if first is None else (first, self._last_seq)

    def scan(self, after: int, to: int, limit: int) -> list[Job]:
        found: list[Job] = []
        for seq in self._all.after(after):
            if seq > to or len(found) >= limit:
                break
            found.append(self._seqs[seq])
        return found

    # ── events, and how deleted jobs ended ────────────────────────────────────────────────────

    def all_unknown(self, ids: Iterable[str]) -> bool:
        jobs, past = self._jobs, self._past
        return not any(job_id in jobs or job_id in past for job_id in ids)

    def insert_all(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        for job in jobs:
            self.insert(job)
        self._append_first(events)

    def insert_open(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        for job in jobs:
            self.insert_simple(job)
        self._append_first(events)

    def _append_first(self, events: Sequence[Event]) -> None:
        """Append the first events of new jobs."""
        self._feed += events
        self._histories.update([(event.seq, (event,)) for event in events])

    def append(self, event: Event) -> None:
        self._feed.append(event)
        self._histories[event.seq] = (*self._histories.get(event.seq, ()), event)

    def history(self, job_id: str) -> list[Event]:
        seqs = [past.seq for past in self._past.get(job_id, ())]
        job = self._jobs.get(job_id)
        if job is not None:
            seqs.append(job.seq)
        return [event for seq in sorted(seqs) for event in self._histories.get(seq, ())]

    def events_of(self, seqs: Sequence[int]) -> dict[int, list[Event]]:
        return {seq: list(self._histories.get(seq, ())) for seq in seqs}

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]:
        start = after - self._trimmed
        return list(enumerate(self._feed[start : start + limit], after + 1))

    def feed_bounds(self) -> tuple[int, int]:
        return self._trimmed, self._trimmed + len(self._feed)

    def trimmed_mark(self) -> str:
        return self._trimmed_mark

    def trim_events(self, before: int, limit: int) -> int:
        count = 0
        for event in self._feed[:limit]:
            if event.at > before:
                break
            count += 1
            rest = self._histories.pop(event.seq)[1:]
            if rest:
                self._histories[event.seq] = rest
        if count:
            self._trimmed_mark = mark_of(self._feed[count - 1])
        del self._feed[:count]
        self._trimmed += count
        return count

    def past(self, job_id: str) -> list[Past]:
        return self._past.get(job_id, [])

    def add_past(self, past: Past) -> None:
        self._past.setdefault(past.id, []).append(past)
        self._past_by_seq[past.seq] = past
        self._past_order.push(past.seq, (past.gone_at, past.seq))

    def stale_past(self, before: int, limit: int) -> list[Past]:
        return [self._past_by_seq[seq] for seq in self._past_order.smallest(limit, before)]

    def past_after(self, gone_at: int, seq: int, limit: int) -> list[Past]:
        later = [past for past in self._past_by_seq.values() if (past.gone_at, past.seq) > (gone_at, seq)]
        return sorted(later, key=lambda past: (past.gone_at, past.seq))[:limit]

    def drop_past(self, past: Past) -> None:
        rest = [kept for kept in self._past[past.id] if kept.seq != past.seq]
        if rest:
            self._past[past.id] = rest
        else:
            del self._past[past.id]
        del self._past_by_seq[past.seq]
        self._past_order.remove(past.seq)

    # ── workers and schedules ─────────────────────────────────────────────────────────────────

    def worker(self, worker_id: str) -> WorkerRecord | None:
        return self._workers.get(worker_id)

    def put_worker(self, record: WorkerRecord) -> None:
        self._workers[record.info.id] = record

    def drop_worker(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)

    def workers(self) -> list[WorkerRecord]:
        return [self._workers[worker_id] for worker_id in sorted(self._workers)]

    def prefetch_schedules(self, names: Sequence[str]) -> None:
        """Do nothing: everything is in memory."""

    def schedule(self, name: str) -> Schedule | None:
        return self._schedules.get(name)

    def put_schedule(self, schedule: Schedule) -> None:
        self._schedules[schedule.name] = schedule
        if schedule.due_at is None:
            self._schedules_due.remove(schedule.name)
        else:
            self._schedules_due.push(schedule.name, (schedule.due_at,))

    def drop_schedule(self, name: str) -> None:
        self._schedules.pop(name, None)
        self._schedules_due.remove(name)

    def schedules(self, after: str, limit: int) -> list[Schedule]:
        names = nsmallest(limit, (name for name in self._schedules if name > after))
        return [self._schedules[name] for name in names]

    def due_schedules(self, until: int, limit: int, skip: int) -> list[Schedule]:
        return [self._schedules[name] for name in self._schedules_due.smallest(skip + limit, until)[skip:]]

    def next_schedule(self, after: int) -> int | None:
        due = len(self._schedules_due.smallest(len(self._schedules_due), after))
        first = self._schedules_due.smallest(due + 1)[due:]
        return self._schedules[first[0]].due_at if first else None


class DueJobs:
    """The open, due jobs of one queue, task and priority, as a `Range` of domain/tables.py.

    `advance` removes a job from the index, so the index keeps no stale entry.
    """

    __slots__ = ("_now", "_ready", "priority", "queue", "task")

    def __init__(self, queue: str, task: str, priority: int, ready: Ready, now: int) -> None:
        self.queue, self.task, self.priority = queue, task, priority
        self._ready, self._now = ready, now

    def peek(self) -> tuple[int, int] | None:
        first = self._ready.peek()
        return first if first is not None and first[0] <= self._now else None

    def advance(self) -> None:
        self._ready.pop()


def put_any(heap: IndexedHeap[tuple[str, str]], item: tuple[str, str], at: int | None) -> None:
    if at is None:
        heap.remove(item)
    else:
        heap.push(item, (at,))
