"""The ledger: what every operation of a store does and returns, defined once for all stores.

Each method is one atomic step over tables. The memory store is this ledger and a lock. SQLite and PostgreSQL run it
inside a transaction, with faster SQL for common steps. The object store runs it over the objects that it has read.
Redis implements it a second time in Lua. The model test compares every store with it, operation by operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.domain.change import Change, Verb
from millrace.domain.errors import StoreClosed
from millrace.domain.event import Event
from millrace.domain.job import FINISHED, Job, Lease, Spec, State, has_result
from millrace.domain.request import Claim, Enqueued, Extension, Receipt, Reclaim
from millrace.domain.rules import admission, transition
from millrace.domain.rules.dead import expected_hooks
from millrace.domain.rules.limits import Room
from millrace.domain.rules.order import QueueOrder, pick
from millrace.domain.rules.outlook import Outlook, outlook
from millrace.domain.rules.step import Step
from millrace.domain.settings import Closing, fair_period
from millrace.domain.tables import Tables

PROMOTIONS = 100  # per claim: group members that enter their lines, and expired jobs that are buried


class Ledger:
    """The operations of a store. Each method is one step over `tables`.

    The caller sets `closed` if the store is closed: then every step that changes something is refused.
    """

    closed: Closing | None = None

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def step(self, now: int, wiped: str | None = None) -> Step:
        if self.closed is not None:
            self.refuse_if_closed()
        return Step(self.tables, now, _admit_carried, wiped)

    def refuse_if_closed(self) -> None:
        if self.closed is not None and self.closed.refuses:
            raise StoreClosed(self.closed.stage, self.closed.peer)

    # ── producer ──────────────────────────────────────────────────────────────────────────────

    def enqueue(self, specs: Sequence[Spec], now: int) -> list[Enqueued]:
        return admission.enqueue(self.step(now), specs)

    # ── consumer ──────────────────────────────────────────────────────────────────────────────

    def claim(self, request: Claim, claim_id: str, now: int) -> list[Job]:
        """Claim due jobs in order and return them. Each lease id is made of `claim_id` and the job's seq."""
        step = self.step(now)
        self.promote(step, PROMOTIONS)
        self.expire(step, PROMOTIONS)
        room = Room(self.tables, request, now)
        orders = []
        for name in dict.fromkeys(request.queues):
            row = self.tables.queue(name)
            if room.of_queue(row) > 0 or name in room.ahead:
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
        """Move up to `limit` jobs that have become due into their lines. Return how many jobs were found."""
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
            if job is not None and job.state is State.WAITING:  # burying an earlier one may have buried it too
                step.bury(job, "ttl_expired")
                step.carry_out()
        return len(seqs)

    def settle(self, items: Sequence[tuple[Lease, Change]], now: int) -> list[Receipt]:
        step = self.step(now)
        self.tables.prefetch_seqs([lease.seq for lease, _ in items])
        if any(change.jobs or change.verb is Verb.BURY for _, change in items):
            self._prefetch_new_jobs(items)
        for _, change in items:
            if change.jobs:
                admission.refuse_cycles(step, change.jobs)
        return [self._settle_one(step, lease, change) for lease, change in items]

    def _prefetch_new_jobs(self, items: Sequence[tuple[Lease, Change]]) -> None:
        """Load what is needed to enqueue the jobs of these changes: carried jobs, and hook jobs of jobs that die."""
        dying = [self.tables.by_seq(lease.seq) for lease, change in items if change.verb is Verb.BURY]
        specs = expected_hooks(job for job in dying if job is not None)
        specs += [spec for _, change in items for spec in change.jobs]
        if specs:
            self.tables.prefetch_specs(specs)

    def _settle_one(self, step: Step, lease: Lease, change: Change) -> Receipt:
        job = self._held(lease)
        if job is None:
            return Receipt.LOST
        cancel_requested = job.cancel_requested
        if change.log is not None:
            job.log = change.log
        step.log(transition.settle(job, change, step.now))
        cancelled_on_request = cancel_requested and job.state is State.CANCELLED
        if job.state in FINISHED:
            step.finished(job, State.RUNNING)
        else:
            step.returned(job)
        if change.jobs:  # after the job's own end, which frees its id, key and line for them
            admission.enqueue(step, change.jobs, carried=True)
        step.carry_out()
        return Receipt.CANCELLING if cancelled_on_request else Receipt.OK

    def parent_ended(self, parent: str, seq: int, state: State, child: int, now: int) -> None:
        """Unblock or bury one child after its parent has ended. For stores that handle each child in a separate step.

        `parent` is the id of the parent, `seq` its seq and `state` its final state; `child` is the seq of the child.
        Do nothing if the child waits for a later generation of the parent.
        """
        successor = self.tables.by_id(parent)
        if successor is not None and successor.seq != seq and child >= successor.seq:
            return
        if self.tables.by_seq(child) is None or parent not in self.tables.parents(child):
            return  # it no longer waits for this parent
        step = self.step(now)
        step.parent_ended(child, parent, state)
        step.carry_out()

    def extend(self, extensions: Sequence[Extension], now: int) -> list[Receipt]:
        self.refuse_if_closed()
        self.tables.prefetch_seqs([extension.lease.seq for extension in extensions])
        return [self._extend_one(extension, now) for extension in extensions]

    def _extend_one(self, extension: Extension, now: int) -> Receipt:
        job = self._held(extension.lease)
        if job is None:
            return Receipt.LOST
        job.lease_until = now + (job.spec.lease if extension.by is None else extension.by)
        if extension.progress is not None:
            job.progress = extension.progress
        if extension.log is not None:
            job.log = extension.log
        self.tables.update(job)
        return Receipt.CANCELLING if job.cancel_requested else Receipt.OK

    def _held(self, lease: Lease) -> Job | None:
        """Return the job if it is running under this lease, else None. This check is the fence."""
        job = self.tables.by_seq(lease.seq)
        if job is None or job.state is not State.RUNNING or job.lease_id != lease.id:
            return None
        return job

    def reclaim(self, request: Reclaim, claim_id: str, now: int) -> list[Job]:
        """Reclaim jobs whose lease has expired, and return them. The caller decides what happens to each job and
        settles it.
        """
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
            gone = holder is None or not holder.is_alive(now)
            step.log(transition.reclaim(job, request.worker, f"{claim_id}.{seq}", request.lease, now))
            self.tables.update(job)
            copy = self.tables.hand_out(job)
            copy.lost_worker = gone
            taken.append(copy)
        return taken

    def outlook(self, queues: Sequence[str], tasks: frozenset[str] | None, now: int) -> Outlook:
        """Return when a claim may next find a job, and which limits keep due jobs from being claimed now."""
        return outlook(self.tables, queues, tasks, now)

    def next_due(self, queues: Sequence[str], tasks: frozenset[str] | None, now: int) -> int | None:
        """Return the earliest instant at which a claim may find a job, or None if no job is known to become due."""
        return self.outlook(queues, tasks, now).due

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def get(self, ids: Sequence[str], now: int) -> list[Job | None]:
        self.tables.prefetch_ids(ids)
        found = [self.tables.by_id(job_id) for job_id in ids]
        return [None if job is None else without_expired_result(self.tables.hand_out(job), now) for job in found]

    def history(self, job_id: str) -> list[Event]:
        return self.tables.history(job_id)


def without_expired_result(job: Job, now: int) -> Job:
    if job.result_until is not None and not has_result(job, now):
        job.result, job.result_until, job.result_expired = None, None, True
    return job


def _admit_carried(step: Step, specs: list[Spec]) -> object:
    return admission.enqueue(step, specs, carried=True)
