"""The jobs in memory, and their indexes. `_index` derives all index entries of a job from its fields.

In a database, partial indexes do this. Queues are divided into shards by the FNV-1a hash of their name.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from millrace.domain.hashing import fnv1a
from millrace.domain.job import Job, Spec, State, is_kept_for_children
from millrace.domain.tables import KeyHold, Line, Place, QueueRow
from millrace.store.memory.indexes import IndexedHeap, Ready, Seqs

K = TypeVar("K")
V = TypeVar("V")


class QueueData:
    """The data of one queue: its row, its lines and keys, and the indexes of its jobs."""

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
        self.ready: dict[tuple[str, int], Ready] = {}
        self.outside: IndexedHeap[int] = IndexedHeap()
        self.lines: dict[str, Line] = {}
        self.members: dict[str, IndexedHeap[int]] = {}
        self.holds: dict[str, KeyHold] = {}
        self.finished: IndexedHeap[int] = IndexedHeap()
        self.dead: IndexedHeap[int] = IndexedHeap()
        self.unarchived_dead: IndexedHeap[int] = IndexedHeap()
        self.seqs = Seqs()


class IndexEntries(msgspec.Struct, gc=False):
    """The current index entries of one job. An update compares them with the job's fields to find what to change.

    Like jobs and events, they are not tracked by the garbage collector. With a million tracked objects, it would take a
    third of the time.
    """

    ready: Ready | None = None
    ready_at: int = 0
    outside: int | None = None
    line: str | None = None
    expires: int | None = None
    lease: int | None = None
    retry: int | None = None
    result: int | None = None
    finished: tuple[IndexedHeap[int], ...] = ()
    finished_key: tuple[int, bool, bool] | None = None


class MemoryJobs:
    """The jobs and their indexes.

    `opened` counts, by (queue, task), the jobs that have become claimable since the last `take_wakeups`.
    """

    def __init__(self, shards: int) -> None:
        self._mask = shards - 1
        self._shards: list[dict[str, QueueData]] = [{} for _ in range(shards)]
        self._names: dict[str, QueueData] = {}
        self._jobs: dict[str, Job] = {}
        self._seqs: dict[int, Job] = {}
        self._entries: dict[int, IndexEntries] = {}
        self._dependents: dict[str, dict[int, None]] = {}  # seqs of dependents by the id of their parent
        self._all = Seqs()
        self._last_seq = 0
        self._outside: IndexedHeap[int] = IndexedHeap()
        self._expires: IndexedHeap[int] = IndexedHeap()
        self._leases: IndexedHeap[int] = IndexedHeap()
        self._retries: IndexedHeap[int] = IndexedHeap()
        self._results: IndexedHeap[int] = IndexedHeap()
        self.opened: defaultdict[Place, int] = defaultdict(int)  # faster to create than a Counter
        self.ended: list[str] = []

    def take_wakeups(self) -> tuple[Mapping[Place, int], list[str]]:
        """Return two values and clear them: the number of newly claimable jobs by (queue, task), and the ids of ended
        jobs.
        """
        if not self.opened and not self.ended:
            return self.opened, self.ended
        wakeups = self.opened, self.ended
        self.opened, self.ended = defaultdict(int), []
        return wakeups

    def wake(self, place: Place, jobs: int) -> None:
        self.opened[place] += jobs

    def _data_of(self, name: str) -> QueueData:
        data = self._names.get(name)
        if data is None:
            data = self._names[name] = QueueData(name)
            self._shards[fnv1a(name) & self._mask][name] = data
        return data

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────

    def prefetch_ids(self, ids: Iterable[str]) -> None:
        """Do nothing: all jobs are in memory."""

    def prefetch_seqs(self, seqs: Iterable[int]) -> None:
        """Do nothing: all jobs are in memory."""

    def prefetch_specs(self, specs: Sequence[Spec]) -> None:
        """Do nothing: all jobs are in memory."""

    def by_id(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def by_seq(self, seq: int) -> Job | None:
        return self._seqs.get(seq)

    def next_seqs(self, count: int) -> range:
        first = self._last_seq + 1
        self._last_seq += count
        return range(first, first + count)

    def insert(self, job: Job) -> None:
        self._jobs[job.spec.id] = job
        self._seqs[job.seq] = job
        self._entries[job.seq] = IndexEntries()
        for parent in job.spec.after:
            self._dependents.setdefault(parent, {})[job.seq] = None
        self._all.add(job.seq)
        self._data_of(job.spec.queue).seqs.add(job.seq)

    def insert_simple(self, job: Job) -> None:
        """Insert an open job without group, lane or parents. Like `insert` and `update`, but faster."""
        spec, seq, at = job.spec, job.seq, job.available_at
        self._jobs[spec.id] = self._seqs[seq] = job
        self._all.add(seq)
        data = self._data_of(spec.queue)
        data.seqs.add(seq)
        ready = data.ready.get((spec.task, spec.priority))
        if ready is None:
            ready = data.ready[spec.task, spec.priority] = Ready()
        ready.push(at, seq, delayed=at != job.enqueued_at)
        entries = self._entries[seq] = IndexEntries(ready, at)
        if job.expires_at is not None:
            entries.expires = job.expires_at
            put(self._expires, seq, job.expires_at)
        self.opened[spec.queue, spec.task] += 1

    def update(self, job: Job) -> None:
        self._index(job)

    def delete(self, job: Job) -> None:
        ghost = copy.copy(job)  # a copy that is in no index; the job itself still shows how it ended
        ghost.state, ghost.open, ghost.in_line = State.CANCELLED, False, False
        ghost.finished_at = ghost.next_retry_at = ghost.result_until = None
        self._index(ghost)
        for parent in dict.fromkeys(job.spec.after):
            drop_from(self._dependents, parent, job.seq)
        del self._jobs[job.spec.id], self._seqs[job.seq], self._entries[job.seq]
        self._all.drop(job.seq)
        self._data_of(job.spec.queue).seqs.drop(job.seq)

    def hand_out(self, job: Job) -> Job:
        copied: Job = job.__copy__()  # type: ignore[attr-defined]  # faster than copy.copy
        return copied

    def _index(self, job: Job) -> None:
        """Update all index entries of a job to match its fields."""
        seq, spec, entries = job.seq, job.spec, self._entries[job.seq]
        waiting = job.state is State.WAITING
        ready = None
        if waiting and job.open:
            data = self._data_of(spec.queue)
            ready = data.ready.get((spec.task, spec.priority))
            if ready is None:
                ready = data.ready[spec.task, spec.priority] = Ready()
        if ready is not entries.ready or (ready is not None and entries.ready_at != job.available_at):
            if entries.ready is not None:
                entries.ready.remove(entries.ready_at, seq)
            if ready is not None:
                ready.push(job.available_at, seq, delayed=job.available_at != job.enqueued_at)
                entries.ready_at = job.available_at
                self.wake((spec.queue, spec.task), 1)
            entries.ready = ready
        lease = job.lease_until if job.state is State.RUNNING else None
        if lease != entries.lease:
            entries.lease = lease
            put(self._leases, seq, lease)
        expires = job.expires_at if waiting else None
        if expires != entries.expires:
            entries.expires = expires
            put(self._expires, seq, expires)
        if spec.group is not None or job.lane is not None:
            self._index_line(job, entries, waiting)
        if job.finished_at is not None or entries.finished_key is not None:
            self._index_end(job, entries)

    def _index_line(self, job: Job, entries: IndexEntries, waiting: bool) -> None:
        name = job.line
        data = self._data_of(job.spec.queue)
        line = name if waiting and job.in_line else None
        if line != entries.line:
            if entries.line is not None:
                data.members[entries.line].remove(job.seq)
                if not data.members[entries.line]:
                    del data.members[entries.line]
            if line is not None:
                members = data.members.get(line)
                if members is None:
                    members = data.members[line] = IndexedHeap()
                members.push(job.seq, (-job.spec.priority, job.seq))
            entries.line = line
        is_outside = waiting and name is not None and not (job.in_line or job.holds or job.blocked)
        outside = job.available_at if is_outside else None
        if outside != entries.outside:
            entries.outside = outside
            put(self._outside, job.seq, outside)
            put(data.outside, job.seq, outside)
            if outside is not None:
                self.wake((job.spec.queue, job.spec.task), 1)

    def _index_end(self, job: Job, entries: IndexEntries) -> None:
        key = None if job.finished_at is None else (job.finished_at, job.archived, is_kept_for_children(job))
        if key != entries.finished_key:
            for heap in entries.finished:
                heap.remove(job.seq)
            entries.finished, entries.finished_key = (), key
            if key is not None:
                data = self._data_of(job.spec.queue)
                if job.state is not State.DEAD:
                    entries.finished = () if key[2] else (data.finished,)
                else:
                    entries.finished = (data.dead,) if job.archived else (data.dead, data.unarchived_dead)
                for heap in entries.finished:
                    heap.push(job.seq, (key[0], job.seq))
                self.ended.append(job.spec.id)
        if job.next_retry_at != entries.retry:
            entries.retry = job.next_retry_at
            put(self._retries, job.seq, entries.retry)
        if job.result_until != entries.result:
            entries.result = job.result_until
            put(self._results, job.seq, entries.result)


def drop_from(index: dict[K, dict[V, None]], key: K, value: V) -> None:
    rest = index.get(key)
    if rest is not None:
        rest.pop(value, None)
        if not rest:
            del index[key]


def put(heap: IndexedHeap[int], seq: int, at: int | None) -> None:
    if at is None:
        heap.remove(seq)
    else:
        heap.push(seq, (at, seq))
