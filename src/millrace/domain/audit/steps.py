"""Checks of each job alone: numbering, legal transitions, leases, attempts, failures and due times; then its record.

`millrace.spark.lake.lives` implements the rules numbering, beginning, after_the_end, transition, two_leases, fence,
attempt and failures a second time, for Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millrace.domain.audit.evidence import Evidence, Violation, due_at, find_line, find_spec, violation
from millrace.domain.event import Event, Kind
from millrace.domain.job import Job, Spec, State
from millrace.domain.rules.legal import GRANTS, LAST, LEGAL, MAY_FAIL, UNDER_A_LEASE

_W, _R = State.WAITING, State.RUNNING
_RETURNS = (Kind.RETRIED, Kind.SNOOZED, Kind.RELEASED)


class _Life:
    """The state of one job (one seq) after the events read so far."""

    __slots__ = ("archived", "available_at", "granted_at", "last", "lease")

    def __init__(self, first: Event, spec: Spec | None) -> None:
        self.last = first
        self.lease = first.lease if first.state == _R else None
        self.granted_at = first.at
        self.available_at = due_at(first, spec) if first.state == _W and first.kind is not Kind.UNBLOCKED else None
        self.archived: bool | None = False if first.kind is Kind.ENQUEUED else None

    def advance(self, event: Event) -> None:
        self.last = event
        if event.kind in GRANTS:
            self.lease, self.granted_at = event.lease, event.at
        if event.kind in (Kind.ARCHIVED, Kind.UNARCHIVED, Kind.REPLAYED):
            self.archived = event.kind is Kind.ARCHIVED
        if event.kind is Kind.RELEASED and not event.delay:
            self.available_at = None  # since before the claim: a concurrent claim with an earlier instant may take it
        elif event.kind is not Kind.UNBLOCKED:
            self.available_at = due_at(event, None) if event.state == _W else None


def check_steps(evidence: Evidence) -> Iterator[Violation]:
    spec_of, line_of = find_spec(evidence), find_line(evidence)
    lives: dict[int, _Life] = {}
    leases: set[str | None] = {None}
    last_seqs: dict[object, int] = {}
    for event in evidence.events:
        life, spec = lives.get(event.seq), spec_of(event)
        if life is None:
            place: object = None  # where seqs are drawn in order: in the whole store, or in each line
            if evidence.concurrent_writes:
                place = (event.queue, line_of(event) or event.seq)
            if evidence.late_events:
                place = event.seq
            yield from _check_first(evidence, event, last_seqs.get(place, 0))
            last_seqs[place] = max(last_seqs.get(place, 0), event.seq)
            lives[event.seq] = _Life(event, spec)
        else:
            yield from _check_step(evidence, life, event)
            life.advance(event)
        if event.kind in GRANTS:
            if event.lease in leases:
                yield violation(event, "lease", f"lease {event.lease!r} is none, or was given out before")
            leases.add(event.lease)
        most = None if spec is None else spec.max_attempts
        if most is not None and event.failures > most - (event.kind in _RETURNS):
            yield violation(event, "failures", f"{event.kind.value} with {event.failures} failures of {most}")
    yield from _check_records(evidence, lives)


def _check_first(evidence: Evidence, event: Event, last_seq: int) -> Iterable[Violation]:
    if event.kind is Kind.ENQUEUED:
        if (event.n, event.state, event.attempt, event.failures) != (1, _W, 0, 0):
            yield violation(event, "beginning", f"the first event is {event}")
        if event.seq <= last_seq:
            yield violation(event, "seq", f"seq {event.seq} was drawn after {last_seq}")
    elif evidence.whole or event.n == 1:
        yield violation(event, "beginning", f"the first event is {event.kind.value}")


def _check_step(evidence: Evidence, life: _Life, event: Event) -> Iterable[Violation]:
    last = life.last
    if event.n != last.n + 1:
        yield violation(event, "numbering", f"event {event.n} follows event {last.n}")
    if (event.job, event.generation, event.queue, event.task) != (last.job, last.generation, last.queue, last.task):
        yield violation(event, "identity", f"seq {event.seq} was {last.job!r} of {last.queue!r} before")
    yield from _check_legal(life, event)
    if event.attempt != last.attempt + (event.kind is Kind.CLAIMED):
        yield violation(event, "attempt", f"attempt {event.attempt} follows {last.attempt} by {event.kind.value}")
    counted = event.failures == 0 if event.kind is Kind.REPLAYED else _may_follow(last.failures, event)
    if not counted:
        yield violation(event, "failures", f"{event.failures} failures follow {last.failures} by {event.kind.value}")
    if event.kind is Kind.CLAIMED and life.available_at is not None and event.at < life.available_at:
        yield violation(event, "too_early", f"started at {event.at}, available at {life.available_at}")
    if last.state == _R:
        yield from _check_lease(evidence, life, event)


def _may_follow(failures: int, event: Event) -> bool:
    return event.failures - failures in MAY_FAIL.get(event.kind, (0,))


def _check_legal(life: _Life, event: Event) -> Iterable[Violation]:
    before = State(life.last.state)
    froms, to = LEGAL.get(event.kind, (frozenset(), None))
    if life.last.kind in LAST:
        yield violation(event, "after_the_end", f"{event.kind.value} after {life.last.kind.value}")
    elif before not in froms:
        name = "transition"
        if event.kind is Kind.CLAIMED:
            name = {_R: "two_leases", State.CANCELLED: "cancelled_starts"}.get(before, "finished_runs")
        yield violation(event, name, f"{event.kind.value} from {before.value}")
    elif event.state != (before if to is None else to):
        yield violation(event, "transition", f"{event.kind.value} led from {before.value} to {event.state}")
    if event.kind in (Kind.ARCHIVED, Kind.UNARCHIVED) and life.archived is (event.kind is Kind.ARCHIVED):
        yield violation(event, "archived_twice", f"{event.kind.value}, and it was so before")


def _check_lease(evidence: Evidence, life: _Life, event: Event) -> Iterable[Violation]:
    """Yield a violation if a valid lease was reclaimed, or if a run was ended under another lease.

    `obliterate` may end a run without a lease.
    """
    if event.kind is Kind.RECLAIMED:
        until = evidence.leases.get(life.lease or "", life.granted_at)
        if event.at <= until - (evidence.ordered_to or 0):
            yield violation(event, "two_leases", f"taken over at {event.at}, the lease is live until {until}")
        return
    obliterated = event.kind is Kind.CANCELLED and event.lease is None and event.reason == "obliterated"
    held = event.lease is not None and event.lease == life.lease
    if event.kind in (*UNDER_A_LEASE, Kind.CANCELLED) and not held and not obliterated:
        yield violation(event, "fence", f"{event.kind.value} under lease {event.lease!r}, {life.lease!r} holds it")


def _check_records(evidence: Evidence, lives: dict[int, _Life]) -> Iterable[Violation]:
    """Yield a violation for a missing record, a record without events, and a record that differs from its last event.

    A record may be missing only after the event `pruned` or `evicted`.
    """
    records = {job.seq: job for job in evidence.jobs}
    for seq, life in lives.items():
        if seq not in records and life.last.kind not in LAST:
            yield violation(life.last, "lost", f"no record is left, and {life.last.kind.value} was its last event")
    for seq, job in records.items():
        known = lives.get(seq)
        if known is not None:
            yield from _check_record(job, known)
        elif evidence.whole:
            yield Violation("without_events", job.id, f"seq {seq} has a record, and no event")


def _check_record(job: Job, known: _Life) -> Iterable[Violation]:
    last = known.last
    if last.kind in LAST:
        yield violation(last, "lost", f"{last.kind.value}, and its record is still there")
    expected = (last.state, last.attempt, last.failures, last.n, last.job, last.generation)
    if expected != (job.state, job.attempt, job.failures, job.events, job.id, job.generation):
        yield violation(last, "record", f"the record differs from the last event: {job}")
    if job.state is _R and (job.lease_id is None or job.lease_id != known.lease):
        yield violation(last, "fence", f"runs under lease {job.lease_id!r}, granted was {known.lease!r}")
    if job.state is not _R and (job.lease_id, job.lease_until, job.worker) != (None, None, None):
        yield violation(last, "fence", f"{job.state.value} with a lease or a worker")
    if known.archived is not None and job.archived != known.archived:
        yield violation(last, "record", f"archived is {job.archived}, the events say {known.archived}")
    budget = job.spec.max_attempts
    if budget is not None:
        allowed = budget * (1 + job.replays) + job.snoozes + job.releases
        if job.attempt > allowed:
            text = f"{job.attempt} runs; budget, snoozes, releases and replays allow {allowed}"
            yield Violation("runs", job.id, text)
