"""Checks of lines: in each group or lane one job runs at a time, in order, and a job in backoff holds its line.

A job that is not due when it is enqueued enters its line at a later claim. If the feed is in order
(`Evidence.ordered_to`), the audit assumes that the job enters at the first claim after its due time. This assumption
holds because one claim moves up to 100 due jobs into their lines, and audited histories never have more than that. If
the order of the feed is not known, the audit does not require that other jobs wait for such a job. Jobs whose line is
not known are not checked.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator

from millrace.domain.audit.evidence import Evidence, Violation, due_at, find_line, find_spec, violation
from millrace.domain.event import Event, Kind
from millrace.domain.job import Spec


class _Line:
    """The jobs of one line after the events read so far: the running one, the one in backoff that blocks the line, and
    those that wait.
    """

    __slots__ = ("due", "early", "holder", "order", "running", "waiting")

    def __init__(self) -> None:
        self.running: int | None = None
        self.holder: int | None = None
        self.waiting: set[int] = set()
        self.order: list[tuple[int, int]] = []
        self.due: dict[int, int] = {}  # seq → due time of members that are not in the line yet
        self.early: list[tuple[int, int, int]] = []  # a heap of the same members: (due, priority, seq)

    def enter(self, seq: int, priority: int) -> None:
        self.waiting.add(seq)
        heapq.heappush(self.order, (-priority, seq))

    def enter_later(self, seq: int, priority: int, due: int) -> None:
        self.due[seq] = due
        heapq.heappush(self.early, (due, priority, seq))

    def leave(self, seq: int) -> None:
        self.waiting.discard(seq)
        self.due.pop(seq, None)
        if self.running == seq:
            self.running = None
        if self.holder == seq:
            self.holder = None

    def promote(self, now: int) -> None:
        while self.early and self.early[0][0] <= now:
            due, priority, seq = heapq.heappop(self.early)
            if self.due.get(seq) == due:
                del self.due[seq]
                self.enter(seq, priority)

    def first(self) -> tuple[int, int] | None:
        while self.order and self.order[0][1] not in self.waiting:
            heapq.heappop(self.order)
        return self.order[0] if self.order else None


def check_lines(evidence: Evidence, blocked: set[tuple[int, int]]) -> Iterator[Violation]:
    """Yield violations of the rules on lines. `blocked` is the set of events that `check_dependencies` returns."""
    spec_of, line_of = find_spec(evidence), find_line(evidence)
    in_order = evidence.ordered_to is not None
    skip = _replays_to_skip(evidence)
    unblocked = {event.seq for event in evidence.events if event.kind is Kind.UNBLOCKED}
    lines: dict[tuple[str, str], _Line] = {}
    due: dict[int, int] = {}
    for event in evidence.events:
        name, spec = line_of(event), spec_of(event)
        if name is None or spec is None:
            continue
        if skip[event.seq]:
            skip[event.seq] -= event.kind is Kind.REPLAYED
            if skip[event.seq] or event.kind is not Kind.REPLAYED:
                continue
        line = lines.setdefault((event.queue, name), _Line())
        if event.kind is Kind.CLAIMED:
            if in_order:
                line.promote(event.at)
            yield from _check_start(line, name, spec, event)
            line.leave(event.seq)
            line.running = event.seq
        elif event.kind not in (Kind.RECLAIMED, Kind.ARCHIVED, Kind.UNARCHIVED):
            line.leave(event.seq)
            if event.kind is not Kind.UNBLOCKED:
                due[event.seq] = due_at(event, spec)
            arrives = event.kind in (Kind.ENQUEUED, Kind.REPLAYED)
            waits = bool(spec.after) or (event.kind is Kind.ENQUEUED and event.seq in unblocked)
            if in_order:
                waits = (event.seq, event.n) in blocked
            if event.state == "waiting" and not (arrives and waits):  # else it enters when it is unblocked
                _return(line, name, spec, event, due.get(event.seq, event.at))


def _replays_to_skip(evidence: Evidence) -> Counter[int]:
    """Return the number of replays of each job in a lane, by seq. `check_lines` skips events before the last replay.

    A replay may move a job to another lane, and the record shows only the latest one. The result is empty if the feed
    is in order and the number of lanes did not change, because no events need to be skipped.
    """
    skip: Counter[int] = Counter()
    if evidence.ordered_to is None or not evidence.fixed_limits:
        in_lanes = {job.seq for job in evidence.jobs if job.lane is not None}
        skip.update(each.seq for each in evidence.events if each.kind is Kind.REPLAYED and each.seq in in_lanes)
    return skip


def _return(line: _Line, name: str, spec: Spec, event: Event, due: int) -> None:
    """Record that a job waits again: it holds the line, enters the line now, or enters it at `due`."""
    gave_way = event.failures > 0 and not spec.retry_blocks
    if event.kind is Kind.RETRIED and spec.retry_blocks:
        line.holder = event.seq
    elif due <= event.at or (name.startswith("l:") and not gave_way):
        line.enter(event.seq, spec.priority)
    else:
        line.enter_later(event.seq, spec.priority, due)


def _check_start(line: _Line, name: str, spec: Spec, event: Event) -> Iterable[Violation]:
    if line.running is not None:
        yield violation(event, "two_in_line", f"started in line {name!r} while seq {line.running} ran there")
    if line.holder is not None and line.holder != event.seq:
        yield violation(event, "line_order", f"started, and seq {line.holder} in backoff holds line {name!r}")
    first = line.first()
    if line.holder != event.seq and first is not None and first < (-spec.priority, event.seq):
        yield violation(event, "line_order", f"started in line {name!r} before seq {first[1]}")
