"""The lines: at most one runs per group or lane, in line order, and a member in backoff holds its line.

A member that was not due when it took its place enters its line at some later claim; from outside nobody can tell
at which, so such a member is never held against another one's start. Members whose record is gone are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from millrace.domain.event import Event, Kind
from millrace.domain.job import Job
from millrace.testing.invariants import Evidence, Violation

Place = tuple[str, str]  # queue, line


class _Line:
    """What is certain about one line, at one point of the feed."""

    __slots__ = ("holder", "order", "running", "waiting")

    def __init__(self) -> None:
        self.running: int | None = None
        self.holder: int | None = None
        self.waiting: set[int] = set()
        self.order: list[tuple[int, int]] = []

    def enter(self, job: Job) -> None:
        self.waiting.add(job.seq)
        heapq.heappush(self.order, (-job.priority, job.seq))

    def leave(self, seq: int) -> None:
        self.waiting.discard(seq)
        if self.running == seq:
            self.running = None
        if self.holder == seq:
            self.holder = None

    def first(self) -> tuple[int, int] | None:
        while self.order and self.order[0][1] not in self.waiting:
            heapq.heappop(self.order)
        return self.order[0] if self.order else None


def check_lines(evidence: Evidence) -> Iterator[Violation]:
    members: dict[int, tuple[Place, Job]] = {}
    for job in evidence.jobs:
        name = job.line
        if name is not None:
            members[job.seq] = ((job.queue, name), job)
    if not members:
        return
    skip = _replays_to_skip(evidence, members)
    unblocked = {event.seq for event in evidence.events if event.kind is Kind.UNBLOCKED}
    lines: dict[Place, _Line] = {}
    due: dict[int, int] = {}
    for event in evidence.events:
        member = members.get(event.seq)
        if member is None:
            continue
        if skip.get(event.seq, 0):
            skip[event.seq] -= event.kind is Kind.REPLAYED
            if skip[event.seq] or event.kind is not Kind.REPLAYED:
                continue
        place, job = member
        line = lines.get(place)
        if line is None:
            line = lines[place] = _Line()
        yield from _walk(line, job, event, event.seq in unblocked, due)


def _replays_to_skip(evidence: Evidence, members: dict[int, tuple[Place, Job]]) -> dict[int, int]:
    """A replay may give a job another lane, so what it did before its last one was perhaps in another line."""
    skip: dict[int, int] = {}
    for event in evidence.events:
        if event.kind is Kind.REPLAYED and event.seq in members and members[event.seq][1].lane is not None:
            skip[event.seq] = skip.get(event.seq, 0) + 1
    return skip


def _walk(line: _Line, job: Job, event: Event, was_blocked: bool, due: dict[int, int]) -> Iterable[Violation]:
    seq, kind = event.seq, event.kind
    if kind is Kind.CLAIMED:
        yield from _check_start(line, job)
        line.leave(seq)
        line.running = seq
        return
    if kind in (Kind.RECLAIMED, Kind.ARCHIVED, Kind.UNARCHIVED):
        return
    line.leave(seq)
    if event.state != "waiting":
        return
    if kind is not Kind.UNBLOCKED:
        due[seq] = event.at + (event.delay or 0)
    if (kind is Kind.ENQUEUED and was_blocked) or (kind in (Kind.ENQUEUED, Kind.REPLAYED) and job.spec.after):
        return  # it enters when it is unblocked; one that had nothing to wait for is not held against others
    if kind is Kind.RETRIED and job.spec.retry_blocks:
        line.holder = seq
        return
    gave_way = event.failures > 0 and not job.spec.retry_blocks
    if due.get(seq, event.at) <= event.at or (job.lane is not None and not gave_way):
        line.enter(job)


def _check_start(line: _Line, job: Job) -> Iterable[Violation]:
    if line.running is not None:
        yield Violation("two_in_line", job.id, f"started in line {job.line!r} while seq {line.running} ran there")
    if line.holder is not None and line.holder != job.seq:
        yield Violation("line_order", job.id, f"started though seq {line.holder} in backoff holds line {job.line!r}")
    first = line.first()
    if line.holder != job.seq and first is not None and first < (-job.priority, job.seq):
        yield Violation("line_order", job.id, f"started in line {job.line!r} before seq {first[1]}")
