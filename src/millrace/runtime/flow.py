"""Throughput: how many jobs completed and died in each step of the last quarter of an hour.

Every queue counts for ever what it completed and buried. A series is the difference of these counters between points in
time, so it costs the same however much there is. Of the time before somebody first looked, the history tells, as far as
a bounded look at it reaches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from millrace.domain.errors import CursorExpired
from millrace.domain.event import Kind
from millrace.domain.request import QueueCounts
from millrace.store.protocol import Store

STEP = 10_000  # milliseconds
WINDOWS = (900_000, 300_000, 60_000)  # the longest whose events are few enough to be read is looked back into
MOST = 20_000  # events
PAGE = 2_000


class Mark(NamedTuple):
    """What the counters of all queues together were at an instant."""

    at: int
    completed: int
    died: int


class Point(NamedTuple):
    """What a step that ends at `at` brought; parts of a job where the counters were not looked at on time."""

    at: int
    completed: float
    died: float


def mark(counts: Sequence[QueueCounts], at: int) -> Mark:
    return Mark(at, sum(one.processed for one in counts), sum(one.died for one in counts))


async def marks_before(store: Store, now: Mark) -> list[Mark]:
    """What the counters were until now, reckoned back from the history; only `now` where that would be much work."""
    for window in WINDOWS:
        cursor = await store.cursor_before(now.at - window)
        try:
            [span] = await store.event_spans(cursor, 1)
            if span.count <= MOST:
                return await _reckoned(store, cursor, now, now.at - window)
        except CursorExpired:
            continue
    return [now]


async def _reckoned(store: Store, cursor: str, now: Mark, since: int) -> list[Mark]:
    completed: Counter[int] = Counter()
    died: Counter[int] = Counter()
    for _ in range(2 * MOST // PAGE + 2):
        page = await store.events(cursor, PAGE)
        for event in page.events:
            if since < event.at <= now.at:
                step = (event.at - since - 1) // STEP  # what happened at its very end belongs to a step
                completed[step] += event.kind is Kind.COMPLETED
                died[step] += event.kind is Kind.BURIED
        cursor = page.cursor
        if not page.events:
            break
    else:  # far more than the store had estimated
        return [now]
    marks = [now]
    left = now
    for step in range((now.at - since) // STEP - 1, -1, -1):
        left = Mark(since + step * STEP, left.completed - completed[step], left.died - died[step])
        marks.append(left)
    return marks[::-1]


def series(marks: Sequence[Mark]) -> list[Point]:
    """The steps between the first mark and the last, oldest first."""
    if len(marks) < 2:
        return []
    last = marks[-1].at // STEP * STEP
    begin = max(marks[0].at, last - WINDOWS[0])
    ends = range(last, begin + STEP - 1, -STEP)
    return [_step(marks, end) for end in ends][::-1]


def unfinished(marks: Sequence[Mark]) -> Point:
    """What the step that is not over yet has brought so far."""
    last = marks[-1]
    before = _at(marks, max(marks[0].at, last.at // STEP * STEP))
    return Point(last.at, max(0.0, last.completed - before[0]), max(0.0, last.died - before[1]))


def _step(marks: Sequence[Mark], end: int) -> Point:
    before, after = _at(marks, end - STEP), _at(marks, end)
    return Point(end, max(0.0, after[0] - before[0]), max(0.0, after[1] - before[1]))


def _at(marks: Sequence[Mark], at: int) -> tuple[float, float]:
    """The counters at an instant between two marks, as if they had grown evenly."""
    n = bisect_right(marks, at, key=lambda one: one.at)
    if n == 0 or n == len(marks):
        one = marks[min(n, len(marks) - 1)]
        return one.completed, one.died
    low, high = marks[n - 1], marks[n]
    share = (at - low.at) / (high.at - low.at)
    return low.completed + share * (high.completed - low.completed), low.died + share * (high.died - low.died)
