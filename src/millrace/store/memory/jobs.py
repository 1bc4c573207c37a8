"""The jobs in memory, and the indexes derived from their facts in one place (`_index`).

It is what a database does with a partial index over a row. Queues live in shards chosen by FNV-1a of their name
(E-02, E-03).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable

from millrace.domain.hashing import fnv1a
from millrace.domain.heap import IndexedHeap
from millrace.domain.job import Job, State
from millrace.store.memory.box import Box, Card, Seqs, put
from millrace.store.memory.ready import Ready
from millrace.store.memory.schedules import ScheduleTable


class JobTable(ScheduleTable):
    """`opened` counts, per queue, the jobs that became claimable since it was last taken: whom to wake."""

    def __init__(self, shards: int) -> None:
        super().__init__()
        self._mask = shards - 1
        self._shards: list[dict[str, Box]] = [{} for _ in range(shards)]
        self._names: dict[str, Box] = {}
        self._jobs: dict[str, Job] = {}
        self._seqs: dict[int, Job] = {}
        self._cards: dict[int, Card] = {}
        self._all = Seqs()
        self._last_seq = 0
        self._outside: IndexedHeap[int] = IndexedHeap()
        self._expires: IndexedHeap[int] = IndexedHeap()
        self._leases: IndexedHeap[int] = IndexedHeap()
        self._retries: IndexedHeap[int] = IndexedHeap()
        self._results: IndexedHeap[int] = IndexedHeap()
        self.opened: Counter[str] = Counter()
        self.ended: list[str] = []

    def take_news(self) -> tuple[Counter[str], list[str]]:
        """(jobs that became claimable, per queue; ids that finished) since this was last asked."""
        if not self.opened and not self.ended:
            return self.opened, self.ended
        news = self.opened, self.ended
        self.opened, self.ended = Counter(), []
        return news

    def stir(self, queue: str, jobs: int) -> None:
        self.opened[queue] += jobs

    def _box(self, name: str) -> Box:
        box = self._names.get(name)
        if box is None:
            box = self._names[name] = Box(name)
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

    def next_seqs(self, count: int) -> range:
        first = self._last_seq + 1
        self._last_seq += count
        return range(first, first + count)

    def insert(self, job: Job) -> None:
        self._jobs[job.spec.id] = job
        self._seqs[job.seq] = job
        self._cards[job.seq] = Card()
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
                ready = box.ready[spec.task, spec.priority] = Ready()
        if ready is not card.ready or (ready is not None and card.ready_at != job.available_at):
            if card.ready is not None:
                card.ready.remove(card.ready_at, seq)
            if ready is not None:
                ready.push(job.available_at, seq, delayed=job.available_at != job.enqueued_at)
                card.ready_at = job.available_at
                self.stir(spec.queue, 1)
            card.ready = ready
        lease = job.lease_until if job.state is State.RUNNING else None
        if lease != card.lease:
            card.lease = lease
            put(self._leases, seq, lease)
        expires = job.expires_at if waiting else None
        if expires != card.expires:
            card.expires = expires
            put(self._expires, seq, expires)
        if spec.group is not None or job.lane is not None:
            self._index_line(job, card, waiting)
        if job.finished_at is not None or card.finished_key is not None:
            self._index_end(job, card)

    def _index_line(self, job: Job, card: Card, waiting: bool) -> None:
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
            put(self._outside, job.seq, outside)
            put(box.outside, job.seq, outside)
            if outside is not None:
                self.stir(job.spec.queue, 1)

    def _index_end(self, job: Job, card: Card) -> None:
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
            put(self._retries, job.seq, card.retry)
        if job.result_until != card.result:
            card.result = job.result_until
            put(self._results, job.seq, card.result)
