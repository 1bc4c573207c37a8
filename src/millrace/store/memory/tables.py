"""The ledger's tables in memory: dictionaries and indexed heaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millrace.domain.heap import IndexedHeap
from millrace.domain.job import Job, State
from millrace.domain.request import Query, WorkerRecord, matches
from millrace.domain.settings import StoreSettings
from millrace.domain.tables import KeyHold, Line, QueueRow, Range, TaskRow
from millrace.store.memory.box import Due, drop_from, put_any
from millrace.store.memory.history import HistoryTable


class MemoryTables(HistoryTable):
    def __init__(self, shards: int = 1) -> None:
        super().__init__(shards)
        self._windows: IndexedHeap[tuple[str, str]] = IndexedHeap()
        self._children: dict[str, dict[int, None]] = {}
        self._parents: dict[int, dict[str, None]] = {}
        self._tasks: dict[str, TaskRow] = {}
        self._settings = StoreSettings()
        self._workers: dict[str, WorkerRecord] = {}

    # ── what a claim and the reaper look at ───────────────────────────────────────────────────

    def ranges(self, queue: str, tasks: frozenset[str] | None, now: int, limit: int) -> list[Range]:
        return [
            Due(queue, task, priority, ready, now)
            for (task, priority), ready in self._box(queue).ready.items()
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
            if job.lease_until is None or job.lease_until >= now or len(found) >= limit:
                break
            wanted = (queues is None or job.spec.queue in queues) and (tasks is None or job.spec.task in tasks)
            if wanted and job.lease_id not in ignore:
                found.append(seq)
        return found

    def next_due(self, queue: str, tasks: frozenset[str] | None, without: frozenset[str]) -> int | None:
        box = self._box(queue)
        heads: list[tuple[int, ...] | None] = [
            ready.peek()
            for (task, _), ready in box.ready.items()
            if (tasks is None or task in tasks) and task not in without
        ]
        heads.append(box.outside.peek_order())
        return min((head[0] for head in heads if head is not None), default=None)

    # ── lines, keys, dependencies ─────────────────────────────────────────────────────────────

    def line(self, queue: str, name: str) -> Line | None:
        return self._box(queue).lines.get(name)

    def put_line(self, line: Line) -> None:
        self._box(line.queue).lines[line.name] = line

    def drop_line(self, line: Line) -> None:
        self._box(line.queue).lines.pop(line.name, None)

    def best_in_line(self, queue: str, name: str) -> int | None:
        members = self._box(queue).members.get(name)
        return None if members is None else members.peek()

    def members(self, queue: str, name: str, limit: int) -> list[int]:
        members = self._box(queue).members.get(name)
        return [] if members is None else members.smallest(limit)

    def key(self, queue: str, key: str) -> KeyHold | None:
        return self._box(queue).holds.get(key)

    def put_key(self, hold: KeyHold) -> None:
        self._box(hold.queue).holds[hold.key] = hold
        put_any(self._windows, (hold.queue, hold.key), hold.until)

    def drop_key(self, hold: KeyHold) -> None:
        self._box(hold.queue).holds.pop(hold.key, None)
        self._windows.remove((hold.queue, hold.key))

    def lapsed_keys(self, now: int, limit: int) -> list[KeyHold]:
        return [self._box(queue).holds[key] for queue, key in self._windows.smallest(limit, now)]

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

    # ── queues, tasks, store ──────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> QueueRow:
        return self._box(name).row

    def put_queue(self, row: QueueRow) -> None:
        """The row handed out is the record itself; a queue exists once something was written to it."""
        self._box(row.name).exists = True

    def queues(self) -> Sequence[str]:
        return sorted(name for name, box in self._names.items() if box.exists)

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
        box = self._box(queue)
        return (box.dead if dead else box.finished).smallest(limit, before)

    def oldest_unarchived_dead(self, queue: str, limit: int) -> list[int]:
        return self._box(queue).unarchived_dead.smallest(limit)

    def due_retries(self, now: int, limit: int) -> list[int]:
        return self._retries.smallest(limit, now)

    def expired_results(self, now: int, limit: int) -> list[int]:
        return self._results.smallest(limit, now)

    def seqs_of_queue(
        self, queue: str, states: frozenset[State], limit: int, wanted: Callable[[Job], bool] | None = None
    ) -> list[int]:
        found: list[int] = []
        for seq in self._box(queue).seqs.after(0):
            if len(found) >= limit:
                break
            job = self._seqs[seq]
            if job.state in states and (wanted is None or wanted(job)):
                found.append(seq)
        return found

    def search(self, query: Query, now: int, budget: int) -> tuple[list[Job], int | None, int]:
        place = self._all if query.queue is None else self._box(query.queue).seqs
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
        box = self._box(job.spec.queue)
        name = job.line
        if name is not None:
            members = box.members.get(name)
            mine = (-job.spec.priority, job.seq)
            better = [] if members is None else members.smallest(most)
            line = box.lines.get(name)
            held = line is not None and line.holder is not None and line.holder != job.seq
            count = held + sum((-self._seqs[s].spec.priority, s) < mine for s in better)
            return min(most, count)
        count = 0
        starts = max(now, job.available_at)  # what is due only after that is not ahead, whatever its priority
        for (_, priority), ready in box.ready.items():
            if priority < job.spec.priority:
                continue
            for at, seq in ready.smallest(most):
                if at > starts or (priority == job.spec.priority and (at, seq) >= (job.available_at, job.seq)):
                    break
                count += 1
        return min(most, count)

    def words(self, queue: str, now: int) -> tuple[int, int, int | None]:
        box = self._box(queue)
        scheduled = retrying = 0
        oldest: int | None = None
        for seq in box.seqs.after(0):
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

    def worker(self, worker_id: str) -> WorkerRecord | None:
        return self._workers.get(worker_id)

    def put_worker(self, record: WorkerRecord) -> None:
        self._workers[record.info.id] = record

    def drop_worker(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)

    def workers(self) -> list[WorkerRecord]:
        return [self._workers[worker_id] for worker_id in sorted(self._workers)]

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
