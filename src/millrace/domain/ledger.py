"""The ledger: what a store answers and becomes, for every operation, stated once.

Each method is one atomic step over the tables it is given. The memory store is this ledger and a lock; the
SQLite store is this ledger inside a transaction; the other stores say the same in their own words and are
compared with it, step by step, by the model test.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.domain import admission, transition
from millrace.domain.change import Change
from millrace.domain.event import Event
from millrace.domain.job import FINISHED, Job, Lease, Spec, State
from millrace.domain.limits import UNLIMITED, allowance, next_token, spend
from millrace.domain.order import QueueOrder, pick
from millrace.domain.request import Claim, Enqueued, Extension, Receipt, Reclaim
from millrace.domain.settings import fair_period
from millrace.domain.step import Step
from millrace.domain.tables import QueueRow, Range, Tables, TaskRow

PROMOTIONS = 100  # group members let into their lines, and expired jobs buried, per claim


class Ledger:
    """`salt` names this client; with the claim counter it makes lease ids that never repeat."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def step(self, now: int) -> Step:
        return Step(self.tables, now, _admit_carried)

    # ── producer ──────────────────────────────────────────────────────────────────────────────

    def enqueue(self, specs: Sequence[Spec], now: int) -> list[Enqueued]:
        return admission.enqueue(self.step(now), specs)

    # ── consumer ──────────────────────────────────────────────────────────────────────────────

    def claim(self, request: Claim, claim_id: str, now: int) -> list[Job]:
        """Take due jobs in order. Lease ids are claim id + seq, so a repeated claim could be told apart."""
        step = self.step(now)
        self.promote(step, PROMOTIONS)
        self.expire(step, PROMOTIONS)
        room = _Room(self.tables, request, now)
        orders = []
        for name in dict.fromkeys(request.queues):
            row = self.tables.queue(name)
            if room.of_queue(row) > 0:
                ranges = self.tables.ranges(name, request.tasks, now, request.limit)
                orders.append(QueueOrder(ranges, row.taken, fair_period(row.settings)))
        seqs = list(pick(orders, room.take, request.limit))
        room.spend()
        self.tables.prefetch_seqs(seqs)
        return [self._claim_one(step, seq, request, claim_id) for seq in seqs]

    def _claim_one(self, step: Step, seq: int, request: Claim, claim_id: str) -> Job:
        job = self.tables.by_seq(seq)
        assert job is not None, f"seq {seq} is in the ready index without a job"
        lease = job.spec.lease if request.lease is None else request.lease
        step.log(transition.claim(job, request.worker, f"{claim_id}.{seq}", lease, step.now))
        row = self.tables.queue(job.spec.queue)
        step.claimed(job, row)
        self.tables.put_queue(row)
        return self.tables.hand_out(job)

    def promote(self, step: Step, limit: int) -> int:
        """Let group members that have become due into their lines; time alone never changes who is open."""
        seqs = self.tables.entering(step.now, limit)
        self.tables.prefetch_seqs(seqs)
        for seq in seqs:
            job = self.tables.by_seq(seq)
            line = step.line_of(job) if job is not None else None
            if job is not None and line is not None:
                job.in_line = True
                self.tables.update(job)
                step.elect(line)
        return len(seqs)

    def expire(self, step: Step, limit: int) -> int:
        seqs = self.tables.expiring(step.now, limit)
        self.tables.prefetch_seqs(seqs)
        for seq in seqs:
            job = self.tables.by_seq(seq)
            if job is not None and job.state is State.WAITING:  # it may have died with a parent meanwhile
                step.bury(job, "ttl_expired")
                step.carry_out()
        return len(seqs)

    def settle(self, items: Sequence[tuple[Lease, Change]], now: int) -> list[Receipt]:
        step = self.step(now)
        for _, change in items:
            if change.jobs:
                admission.refuse_cycles(step, change.jobs)
        self.tables.prefetch_seqs([lease.seq for lease, _ in items])
        return [self._settle_one(step, lease, change) for lease, change in items]

    def _settle_one(self, step: Step, lease: Lease, change: Change) -> Receipt:
        job = self._held(lease)
        if job is None:
            return Receipt.LOST
        asked_to_cancel = job.cancel_requested
        step.log(transition.settle(job, change, step.now))
        ended_as_asked = asked_to_cancel and job.state is State.CANCELLED
        if job.state in FINISHED:
            step.finished(job, State.RUNNING)
        else:
            step.returned(job)
        if change.jobs:  # after its own end, which frees its id, its key and its place in line for them
            admission.enqueue(step, change.jobs, carried=True)
        step.carry_out()
        return Receipt.CANCELLING if ended_as_asked else Receipt.OK

    def parent_ended(self, parent: str, seq: int, state: State, child: int, now: int) -> None:
        """Tell one dependent of an end, on a store that does so after the end and not within its step.

        Who came after the next generation of the parent's id waits for that one.
        """
        heir = self.tables.by_id(parent)
        if heir is not None and heir.seq != seq and child >= heir.seq:
            return
        step = self.step(now)
        step.parent_ended(child, parent, state)
        step.carry_out()

    def extend(self, extensions: Sequence[Extension], now: int) -> list[Receipt]:
        self.tables.prefetch_seqs([extension.lease.seq for extension in extensions])
        return [self._extend_one(extension, now) for extension in extensions]

    def _extend_one(self, extension: Extension, now: int) -> Receipt:
        job = self._held(extension.lease)
        if job is None:
            return Receipt.LOST
        job.lease_until = now + (job.spec.lease if extension.by is None else extension.by)
        if extension.progress is not None:
            job.progress = extension.progress
        self.tables.update(job)
        return Receipt.CANCELLING if job.cancel_requested else Receipt.OK

    def _held(self, lease: Lease) -> Job | None:
        """The job, if this lease is still the one that holds it: the fence (BR-08, BL-02)."""
        job = self.tables.by_seq(lease.seq)
        if job is None or job.state is not State.RUNNING or job.lease_id != lease.id:
            return None
        return job

    def reclaim(self, request: Reclaim, claim_id: str, now: int) -> list[Job]:
        """Take over expired leases; the taker decides and settles like any holder."""
        step = self.step(now)
        self.promote(step, PROMOTIONS)
        seqs = self.tables.lapsed(now, request.limit, request.queues, request.tasks, request.ignore)
        self.tables.prefetch_seqs(seqs)
        taken = []
        for seq in seqs:
            job = self.tables.by_seq(seq)
            if job is None:
                continue
            holder = self.tables.worker(job.worker) if job.worker is not None else None
            gone = holder is None or holder.last_beat + holder.ttl < now
            step.log(transition.reclaim(job, request.worker, f"{claim_id}.{seq}", request.lease, now))
            self.tables.update(job)
            copy = self.tables.hand_out(job)
            copy.lost_worker = gone
            taken.append(copy)
        return taken

    def next_due(self, queues: Sequence[str], tasks: frozenset[str] | None, now: int) -> int | None:
        """The instant at which a claim may find something, as far as can be known now: how long to wait."""
        full: set[str] = set()
        refilled: list[int] = []
        for task in self.tables.tasks():
            if (tasks is None or task.name in tasks) and allowance(task.limits, task.running, task.bucket, now) <= 0:
                full.add(task.name)
                if task.limits.max_running is None or task.running < task.limits.max_running:
                    refilled.append(next_token(task.limits, task.bucket, now))
        instants = [self._next_due_in(name, tasks, frozenset(full), now) for name in queues]
        return min((at for at in (*instants, *refilled) if at is not None), default=None)

    def _next_due_in(self, name: str, tasks: frozenset[str] | None, full: frozenset[str], now: int) -> int | None:
        row = self.tables.queue(name)
        limits = row.settings
        if limits.paused or (limits.max_running is not None and row.running >= limits.max_running):
            return None  # a resume, or the end of a run, wakes who waits
        due = self.tables.next_due(name, tasks, full)
        return None if due is None else max(due, next_token(limits, row.bucket, now))

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def get(self, ids: Sequence[str], now: int) -> list[Job | None]:
        self.tables.prefetch_ids(ids)
        found = [self.tables.by_id(job_id) for job_id in ids]
        return [None if job is None else without_expired_result(self.tables.hand_out(job), now) for job in found]

    def history(self, job_id: str) -> list[Event]:
        return self.tables.history(job_id)


def without_expired_result(job: Job, now: int) -> Job:
    """A result is gone at its time, whether or not upkeep has come by yet (BR-14)."""
    if job.result_until is not None and job.result_until <= now:
        job.result, job.result_until, job.result_expired = None, None, True
    return job


def _admit_carried(step: Step, specs: list[Spec]) -> object:
    return admission.enqueue(step, specs, carried=True)


class _Room:
    """How many jobs one claim may take, per queue and per task, as numbers fixed before it looks at any job."""

    def __init__(self, tables: Tables, request: Claim, now: int) -> None:
        self._tables = tables
        self._now = now
        self._limit = request.limit
        self._queues: dict[str, int] = {}
        self._tasks: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        self._taken_tasks: dict[str, int] = {}

    def of_queue(self, row: QueueRow) -> int:
        room = allowance(row.settings, row.running, row.bucket, self._now)
        self._queues[row.name] = room
        return room

    def take(self, source: Range, seq: int) -> bool:
        """Reserve a place for the head of a range; False when a limit or its expiry forbids it."""
        queue, task = source.queue, source.task
        if self._queues[queue] <= 0 or self._of_task(task) <= 0:
            return False
        job = self._tables.by_seq(seq)
        if job is None or (job.expires_at is not None and job.expires_at <= self._now):
            return False  # more had expired than one claim buries: the next claim goes on with that
        self._queues[queue] -= 1
        self._tasks[task] -= 1
        self._taken[queue] = self._taken.get(queue, 0) + 1
        self._taken_tasks[task] = self._taken_tasks.get(task, 0) + 1
        return True

    def spend(self) -> None:
        """Tokens are spent for delivered jobs only (BE-01)."""
        for name, taken in self._taken.items():
            row = self._tables.queue(name)
            row.bucket = spend(row.bucket, row.settings, taken, self._now)
            self._tables.put_queue(row)
        for name, taken in self._taken_tasks.items():
            task = self._tables.task(name)
            if task is not None:
                task.bucket = spend(task.bucket, task.limits, taken, self._now)
                self._tables.put_task(task)

    def _of_task(self, name: str) -> int:
        if name not in self._tasks:
            row: TaskRow | None = self._tables.task(name)
            self._tasks[name] = UNLIMITED if row is None else allowance(row.limits, row.running, row.bucket, self._now)
        return self._tasks[name]
