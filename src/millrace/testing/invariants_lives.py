"""The life of each job, walked through event by event: legal steps, leases, budgets, due times, parents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millrace.domain.event import Event, Kind
from millrace.domain.job import FINISHED, Job, State
from millrace.domain.legal import LAST, LEGAL, MAY_FAIL
from millrace.testing.invariants import Evidence, Violation

_W, _R = State.WAITING, State.RUNNING


class _Life:
    """What is known of one generation of a job so far."""

    __slots__ = ("archived", "available_at", "granted_at", "last", "lease", "replayed", "whole")

    def __init__(self, first: Event) -> None:
        self.last = first
        self.whole = first.kind is Kind.ENQUEUED
        self.lease = first.lease if first.state == _R else None
        self.granted_at = first.at
        self.available_at = _due(first)
        self.archived: bool | None = False if self.whole else None
        self.replayed = first.kind is Kind.REPLAYED


def _due(event: Event) -> int | None:
    """The earliest next start, after an event that leaves a job waiting."""
    return event.at + (event.delay or 0) if event.state == _W and event.kind is not Kind.UNBLOCKED else None


def check_lives(evidence: Evidence) -> Iterator[Violation]:
    records = {job.seq: job for job in evidence.jobs}
    lives: dict[int, _Life] = {}
    leases: set[str] = set()
    ended: dict[str, set[str]] = {}
    last_seqs: dict[object, int] = {}
    for event in evidence.events:
        life = lives.get(event.seq)
        record = records.get(event.seq)
        if life is None:
            place = _place(evidence, event, record)
            yield from _check_first(evidence, event, last_seqs.get(place, 0))
            last_seqs[place] = max(last_seqs.get(place, 0), event.seq)
            life = lives[event.seq] = _Life(event)
        else:
            yield from _check_step(life, event)
            if event.kind is Kind.CLAIMED and record is not None and not life.replayed:
                yield from _check_parents(evidence, record, ended)
            _advance(life, event)
        if event.kind in (Kind.CLAIMED, Kind.RECLAIMED):
            if event.lease is None or event.lease in leases:
                text = f"{event.kind.value} under lease {event.lease!r}, which is none or was given out before"
                yield _of(event, "lease", text)
            leases.add(event.lease or "")
        if event.state in FINISHED:
            ended.setdefault(event.job, set()).add(event.state)
        if record is not None and record.spec.max_attempts is not None and event.failures > record.spec.max_attempts:
            yield _of(event, "failures", f"{event.failures} failures, max_attempts is {record.spec.max_attempts}")
    yield from _check_records(evidence, records, lives)


def _place(evidence: Evidence, event: Event, record: Job | None) -> object:
    """Where numbers are drawn in order: in the whole store, or, where steps overlap, in a line."""
    if not evidence.steps_overlap:
        return None
    return event.seq if record is None or record.line is None else (record.queue, record.line)


def _check_first(evidence: Evidence, event: Event, last_seq: int) -> Iterable[Violation]:
    if event.kind is Kind.ENQUEUED:
        if (event.n, event.state, event.attempt, event.failures) != (1, _W, 0, 0):
            yield _of(event, "events", f"the first event is {event}")
        if event.seq <= last_seq:
            yield _of(event, "seq", f"seq {event.seq} was drawn after {last_seq}")
    elif evidence.whole or event.n == 1:
        yield _of(event, "events", f"the first event is no {event.kind.value} with n = {event.n}")


def _check_step(life: _Life, event: Event) -> Iterable[Violation]:
    last = life.last
    if event.n != last.n + 1:
        yield _of(event, "events", f"event {event.n} follows event {last.n}")
    if (event.job, event.generation, event.queue, event.task) != (last.job, last.generation, last.queue, last.task):
        yield _of(event, "events", f"seq {event.seq} was {last.job!r} of {last.queue!r} before")
    if last.kind in LAST:
        yield _of(event, "transition", f"{event.kind.value} after {last.kind.value}")
    yield from _check_legal(life, event)
    yield from _check_numbers(last, event)
    if event.kind is Kind.CLAIMED and life.available_at is not None and event.at < life.available_at:
        yield _of(event, "too_early", f"started at {event.at}, available at {life.available_at}")
    if last.state == _R:
        yield from _check_lease(life, event)


def _check_legal(life: _Life, event: Event) -> Iterable[Violation]:
    before = State(life.last.state)
    if event.kind is Kind.ENQUEUED:
        yield _of(event, "transition", f"enqueued again under the same seq {event.seq}")
        return
    froms, to = LEGAL[event.kind]
    if before not in froms:
        name = "transition"
        if event.kind is Kind.CLAIMED:
            name = {_R: "two_leases", State.CANCELLED: "cancelled_starts"}.get(before, "finished_runs")
        yield _of(event, name, f"{event.kind.value} from {before.value}")
    if event.state != (before if to is None else to):
        yield _of(event, "transition", f"{event.kind.value} led from {before.value} to {event.state}")
    if event.kind in (Kind.ARCHIVED, Kind.UNARCHIVED) and life.archived is (event.kind is Kind.ARCHIVED):
        yield _of(event, "transition", f"{event.kind.value} twice")


def _check_numbers(last: Event, event: Event) -> Iterable[Violation]:
    if event.attempt != last.attempt + (event.kind is Kind.CLAIMED):
        yield _of(event, "attempt", f"attempt {event.attempt} follows {last.attempt} by {event.kind.value}")
    if event.kind is Kind.REPLAYED:
        if event.failures != 0:
            yield _of(event, "failures", f"{event.failures} failures after a replay")
    elif event.failures - last.failures not in MAY_FAIL.get(event.kind, (0,)):
        yield _of(event, "failures", f"{event.failures} failures follow {last.failures} by {event.kind.value}")


def _check_lease(life: _Life, event: Event) -> Iterable[Violation]:
    if event.kind is Kind.RECLAIMED:
        if event.at <= life.granted_at:
            yield _of(event, "two_leases", f"taken over at {event.at}, though granted at {life.granted_at}")
    elif event.lease != life.lease and not (event.kind is Kind.CANCELLED and event.lease is None):
        yield _of(event, "fence", f"{event.kind.value} under lease {event.lease!r}, the current one was {life.lease!r}")


def _advance(life: _Life, event: Event) -> None:
    life.last = event
    if event.kind in (Kind.CLAIMED, Kind.RECLAIMED):
        life.lease, life.granted_at = event.lease, event.at
    if event.kind in (Kind.ARCHIVED, Kind.UNARCHIVED, Kind.REPLAYED):
        life.archived = event.kind is Kind.ARCHIVED
    life.replayed = life.replayed or event.kind is Kind.REPLAYED
    life.available_at = _due(event) if event.kind is not Kind.UNBLOCKED else life.available_at


def _check_parents(evidence: Evidence, child: Job, ended: dict[str, set[str]]) -> Iterable[Violation]:
    """Children start only after their parents; a replayed child was let go by hand."""
    for parent in child.spec.after:
        how = ended.get(parent)
        if how is None and not evidence.whole:
            continue
        if not how or (child.spec.on_dependency != "run" and State.COMPLETED not in how):
            yield Violation("before_parent", child.id, f"started though {parent!r} had not completed")


def _check_records(evidence: Evidence, records: dict[int, Job], lives: dict[int, _Life]) -> Iterable[Violation]:
    """Accepted = live + finished + pruned; and a record says what its last event said."""
    for seq, life in lives.items():
        if seq not in records and life.last.kind not in LAST:
            yield _of(life.last, "lost", f"no record is left, and {life.last.kind.value} was the last word")
    for seq, job in records.items():
        known = lives.get(seq)
        if known is None:
            if evidence.whole:
                yield Violation("events", job.id, "a record without events")
            continue
        last = known.last
        if last.kind in LAST:
            yield _of(last, "lost", f"{last.kind.value}, and still there")
        told = (last.state, last.attempt, last.failures, last.n, last.job, last.generation)
        if told != (job.state, job.attempt, job.failures, job.events, job.id, job.generation):
            yield _of(last, "record", f"the record differs from its last event: {job}")
        if job.state is _R and (job.lease_id is None or job.lease_id != known.lease):
            yield _of(last, "fence", f"runs under lease {job.lease_id!r}, granted was {known.lease!r}")
        if job.state is not _R and (job.lease_id, job.lease_until, job.worker) != (None, None, None):
            yield _of(last, "fence", f"{job.state.value} with a lease or a worker")
        if known.archived is not None and job.archived != known.archived:
            yield _of(last, "record", f"archived is {job.archived}, the events say {known.archived}")
        yield from _check_runs(job)


def _check_runs(job: Job) -> Iterable[Violation]:
    budget = job.spec.max_attempts
    if budget is None:
        return
    allowed = budget * (1 + job.replays) + job.snoozes + job.releases
    if job.attempt > allowed:
        yield Violation("runs", job.id, f"{job.attempt} runs; budget, snoozes, releases and replays allow {allowed}")


def _of(event: Event, name: str, text: str) -> Violation:
    return Violation(name, event.job, text)
