"""The ledger's tables in memory: dictionaries and indexed heaps.

Every index is derived from a job's facts in one place (`_index`), the way a database derives a partial index
from a row. Queues live in shards chosen by FNV-1a of their name (E-02, E-03).
"""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from millrace.domain.event import Event
from millrace.domain.hashing import fnv1a
from millrace.domain.heap import IndexedHeap
from millrace.domain.job import Job, State
from millrace.domain.request import Query, WorkerRecord, matches
from millrace.domain.settings import StoreSettings
from millrace.domain.tables import KeyHold, Line, Past, QueueRow, Range, TaskRow

K = TypeVar("K")
V = TypeVar("V")


class _Box:
    """Everything of one queue."""

    __slots__ = (
        "dead",
        "exists",
        "finished",
        "holds",
        "lines",
        "members",
        "outside",
        "ready",
        "row",
        "seqs",
        "unarchived_dead",
    )

    def __init__(self, name: str) -> None:
        self.row = QueueRow(name)
        self.exists = False
        self.ready: dict[tuple[str, int], IndexedHeap[int]] = {}
        self.outside: IndexedHeap[int] = IndexedHeap()
        self.lines: dict[str, Line] = {}
        self.members: dict[str, IndexedHeap[int]] = {}
        self.holds: dict[str, KeyHold] = {}
        self.finished: IndexedHeap[int] = IndexedHeap()
        self.dead: IndexedHeap[int] = IndexedHeap()
        self.unarchived_dead: IndexedHeap[int] = IndexedHeap()
        self.seqs = _Seqs()


class _Seqs:
    """Seqs in order, appended at the end and dropped anywhere; dropped ones are swept out now and then."""

    __slots__ = ("_alive", "_order")

    def __init__(self) -> None:
        self._order: list[int] = []
        self._alive: set[int] = set()

    def add(self, seq: int) -> None:
        self._order.append(seq)
        self._alive.add(seq)

    def drop(self, seq: int) -> None:
        self._alive.discard(seq)
        if len(self._order) > 64 and len(self._order) > 2 * len(self._alive):
            self._order = [kept for kept in self._order if kept in self._alive]

    def after(self, seq: int) -> Iterator[int]:
        for index in range(bisect_right(self._order, seq), len(self._order)):
            if self._order[index] in self._alive:
                yield self._order[index]

    def before(self, seq: int | None) -> Iterator[int]:
        start = len(self._order) if seq is None else bisect_left(self._order, seq)
        for index in range(start - 1, -1, -1):
            if self._order[index] in self._alive:
                yield self._order[index]


class _Card(msgspec.Struct, gc=False):
    """Where a job stands in the indexes, to tell what an update changes.

    A struct outside the garbage collector's sight, like jobs and events: with a million of them tracked, the
    collector alone would take a third of the time.
    """

    ready: IndexedHeap[int] | None = None
    ready_at: int = 0
    outside: int | None = None
    line: str | None = None
    expires: int | None = None
    lease: int | None = None
    retry: int | None = None
    result: int | None = None
    finished: tuple[IndexedHeap[int], ...] = ()
    finished_key: tuple[int, bool] | None = None


class _Due:
    """The heads of one ready heap; a job taken is popped, so a claim leaves nothing stale behind."""

    __slots__ = ("_heap", "_now", "priority", "queue", "task")

    def __init__(self, queue: str, task: str, priority: int, heap: IndexedHeap[int], now: int) -> None:
        self.queue, self.task, self.priority = queue, task, priority
        self._heap, self._now = heap, now

    def peek(self) -> tuple[int, int] | None:
        order = self._heap.peek_order()
        return (order[0], order[1]) if order is not None and order[0] <= self._now else None

    def advance(self) -> None:
        self._heap.pop()


class MemoryTables:
    """`opened` counts, per queue, the jobs that became claimable since it was last taken: whom to wake."""

    def __init__(self, shards: int = 1) -> None:
        self._mask = shards - 1
        self._shards: list[dict[str, _Box]] = [{} for _ in range(shards)]
        self._names: dict[str, _Box] = {}
        self._jobs: dict[str, Job] = {}
        self._seqs: dict[int, Job] = {}
        self._cards: dict[int, _Card] = {}
        self._all = _Seqs()
        self._last_seq = 0
        self._outside: IndexedHeap[int] = IndexedHeap()
        self._expires: IndexedHeap[int] = IndexedHeap()
        self._leases: IndexedHeap[int] = IndexedHeap()
        self._retries: IndexedHeap[int] = IndexedHeap()
        self._results: IndexedHeap[int] = IndexedHeap()
        self._windows: IndexedHeap[tuple[str, str]] = IndexedHeap()
        self._children: dict[str, dict[int, None]] = {}
        self._parents: dict[int, dict[str, None]] = {}
        self._feed: list[Event] = []
        self._trimmed = 0
        self._histories: dict[int, tuple[Event, ...]] = {}  # tuples: the collector lets go of those
        self._past: dict[str, list[Past]] = {}
        self._past_order: IndexedHeap[int] = IndexedHeap()
        self._past_by_seq: dict[int, Past] = {}
        self._tasks: dict[str, TaskRow] = {}
        self._settings = StoreSettings()
        self._workers: dict[str, WorkerRecord] = {}
        self.opened: Counter[str] = Counter()
        self.ended: list[str] = []

    def take_news(self) -> tuple[Counter[str], list[str]]:
        """(jobs that became claimable, per queue; ids that finished) since this was last asked."""
        if not self.opened and not self.ended:
            return self.opened, self.ended
        news = self.opened, self.ended
        self.opened, self.ended = Counter(), []
        return news

    def _box(self, name: str) -> _Box:
        box = self._names.get(name)
        if box is None:
            box = self._names[name] = _Box(name)
            self._shards[fnv1a(name) & self._mask][name] = box
        return box

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────

    def prefetch_ids(self, ids: Iterable[str]) -> None:
        """Everything is at hand already."""

    def prefetch_seqs(self, seqs: Iterable[int]) -> None:
        """Everything is at hand already."""

    def by_id(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def by_seq(self, seq: int) -> Job | None:
        return self._seqs.get(seq)

    def next_seq(self) -> int:
        self._last_seq += 1
        return self._last_seq

    def insert(self, job: Job) -> None:
        self._jobs[job.spec.id] = job
        self._seqs[job.seq] = job
        self._cards[job.seq] = _Card()
        self._all.add(job.seq)
        self._box(job.spec.queue).seqs.add(job.seq)

    def update(self, job: Job) -> None:
        self._index(job)

    def delete(self, job: Job) -> None:
        ghost = copy.copy(job)  # one that stands in no index; whoever still looks at the job sees how it ended
        ghost.state, ghost.open, ghost.in_line = State.CANCELLED, False, False
        ghost.finished_at = ghost.next_retry_at = ghost.result_until = None
        self._index(ghost)
        del self._jobs[job.spec.id], self._seqs[job.seq], self._cards[job.seq]
        self._all.drop(job.seq)
        self._box(job.spec.queue).seqs.drop(job.seq)

    def hand_out(self, job: Job) -> Job:
        return copy.copy(job)

    def _index(self, job: Job) -> None:
        """Bring every index in line with the facts of a job."""
        seq, spec, card = job.seq, job.spec, self._cards[job.seq]
        waiting = job.state is State.WAITING
        ready = None
        if waiting and job.open:
            box = self._box(spec.queue)
            ready = box.ready.get((spec.task, spec.priority))
            if ready is None:
                ready = box.ready[spec.task, spec.priority] = IndexedHeap()
        if ready is not card.ready or (ready is not None and card.ready_at != job.available_at):
            if card.ready is not None:
                card.ready.remove(seq)
            if ready is not None:
                ready.push(seq, (job.available_at, seq))
                card.ready_at = job.available_at
                self.stir(spec.queue, 1)
            card.ready = ready
        lease = job.lease_until if job.state is State.RUNNING else None
        if lease != card.lease:
            card.lease = lease
            _put(self._leases, seq, lease)
        expires = job.expires_at if waiting else None
        if expires != card.expires:
            card.expires = expires
            _put(self._expires, seq, expires)
        if spec.group is not None or job.lane is not None:
            self._index_line(job, card, waiting)
        if job.finished_at is not None or card.finished_key is not None:
            self._index_end(job, card)

    def _index_line(self, job: Job, card: _Card, waiting: bool) -> None:
        name = job.line
        box = self._box(job.spec.queue)
        line = name if waiting and job.in_line else None
        if line != card.line:
            if card.line is not None:
                box.members[card.line].remove(job.seq)
                if not box.members[card.line]:
                    del box.members[card.line]
            if line is not None:
                members = box.members.get(line)
                if members is None:
                    members = box.members[line] = IndexedHeap()
                members.push(job.seq, (-job.spec.priority, job.seq))
            card.line = line
        is_outside = waiting and name is not None and not (job.in_line or job.holds or job.blocked)
        outside = job.available_at if is_outside else None
        if outside != card.outside:
            card.outside = outside
            _put(self._outside, job.seq, outside)
            _put(box.outside, job.seq, outside)
            if outside is not None:
                self.stir(job.spec.queue, 1)

    def _index_end(self, job: Job, card: _Card) -> None:
        key = None if job.finished_at is None else (job.finished_at, job.archived)
        if key != card.finished_key:
            for heap in card.finished:
                heap.remove(job.seq)
            card.finished, card.finished_key = (), key
            if key is not None:
                box = self._box(job.spec.queue)
                if job.state is not State.DEAD:
                    card.finished = (box.finished,)
                else:
                    card.finished = (box.dead,) if job.archived else (box.dead, box.unarchived_dead)
                for heap in card.finished:
                    heap.push(job.seq, (key[0], job.seq))
                self.ended.append(job.spec.id)
        if job.next_retry_at != card.retry:
            card.retry = job.next_retry_at
            _put(self._retries, job.seq, card.retry)
        if job.result_until != card.result:
            card.result = job.result_until
            _put(self._results, job.seq, card.result)

    # ── history ───────────────────────────────────────────────────────────────────────────────

    def append(self, event: Event) -> None:
        self._feed.append(event)
        self._histories[event.seq] = (*self._histories.get(event.seq, ()), event)

    def history(self, job_id: str) -> list[Event]:
        seqs = [past.seq for past in self._past.get(job_id, ())]
        job = self._jobs.get(job_id)
        if job is not None:
            seqs.append(job.seq)
        return [event for seq in sorted(seqs) for event in self._histories.get(seq, ())]

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]:
        start = after - self._trimmed
        return list(enumerate(self._feed[start : start + limit], after + 1))

    def feed_bounds(self) -> tuple[int, int]:
        return self._trimmed, self._trimmed + len(self._feed)

    def trim_events(self, before: int, limit: int) -> int:
        count = 0
        for event in self._feed[:limit]:
            if event.at > before:
                break
            count += 1
            rest = self._histories.pop(event.seq)[1:]
            if rest:
                self._histories[event.seq] = rest
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

    def drop_past(self, past: Past) -> None:
        rest = [kept for kept in self._past[past.id] if kept.seq != past.seq]
        if rest:
            self._past[past.id] = rest
        else:
            del self._past[past.id]
        del self._past_by_seq[past.seq]
        self._past_order.remove(past.seq)

    # ── what a claim and the reaper look at ───────────────────────────────────────────────────

    def ranges(self, queue: str, tasks: frozenset[str] | None, now: int, limit: int) -> list[Range]:
        return [
            _Due(queue, task, priority, heap, now)
            for (task, priority), heap in self._box(queue).ready.items()
            if heap and (tasks is None or task in tasks)
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
        heads = [
            heap.peek_order()
            for (task, _), heap in box.ready.items()
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

    def key(self, queue: str, key: str) -> KeyHold | None:
        return self._box(queue).holds.get(key)

    def put_key(self, hold: KeyHold) -> None:
        self._box(hold.queue).holds[hold.key] = hold
        _put_any(self._windows, (hold.queue, hold.key), hold.until)

    def drop_key(self, hold: KeyHold) -> None:
        self._box(hold.queue).holds.pop(hold.key, None)
        self._windows.remove((hold.queue, hold.key))

    def lapsed_keys(self, now: int, limit: int) -> list[KeyHold]:
        return [self._box(queue).holds[key] for queue, key in self._windows.smallest(limit, now)]

    def add_dependency(self, parent: str, child: int) -> None:
        self._children.setdefault(parent, {})[child] = None
        self._parents.setdefault(child, {})[parent] = None

    def drop_dependency(self, parent: str, child: int) -> None:
        _drop_from(self._children, parent, child)
        _drop_from(self._parents, child, parent)

    def children(self, parent: str) -> list[int]:
        return sorted(self._children.get(parent, ()))

    def parents(self, child: int) -> list[str]:
        return list(self._parents.get(child, ()))

    def stir(self, queue: str, jobs: int) -> None:
        self.opened[queue] += jobs

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

    def seqs_of_queue(self, queue: str, states: frozenset[State], limit: int) -> list[int]:
        found: list[int] = []
        for seq in self._box(queue).seqs.after(0):
            if self._seqs[seq].state in states:
                found.append(seq)
                if len(found) >= limit:
                    break
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
        for (_, priority), heap in box.ready.items():
            if priority < job.spec.priority:
                continue
            for seq in heap.smallest(most):
                other = self._seqs[seq]
                if other.available_at > starts:
                    break
                if priority == job.spec.priority and (other.available_at, seq) >= (job.available_at, job.seq):
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


def _drop_from(index: dict[K, dict[V, None]], key: K, value: V) -> None:
    rest = index.get(key)
    if rest is not None:
        rest.pop(value, None)
        if not rest:
            del index[key]


def _put(heap: IndexedHeap[int], seq: int, at: int | None) -> None:
    if at is None:
        heap.remove(seq)
    else:
        heap.push(seq, (at, seq))


def _put_any(heap: IndexedHeap[tuple[str, str]], item: tuple[str, str], at: int | None) -> None:
    if at is None:
        heap.remove(item)
    else:
        heap.push(item, (at,))
