"""Throughput: how many jobs completed and died in each 10-second interval of the last 15 minutes.

Every queue has counters of all jobs that it ever completed and buried. A `Mark` is one reading of these counters. The
throughput is the difference between readings, so its cost does not depend on the number of jobs. For the time before
the first reading, readings are computed from the feed, from a limited number of events.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from millrace.app.format import instant
from millrace.domain.errors import CursorExpired, CursorUnknown
from millrace.domain.event import Kind
from millrace.domain.request import QueueCounts
from millrace.store.protocol import Store
from millrace.views.job_view import Instant

STEP = 10_000  # milliseconds
WINDOWS = (900_000, 300_000, 60_000)  # milliseconds; the longest one with at most MOST events is used
MOST = 20_000  # events to read
PAGE = 2_000
FRESH = 1_000  # milliseconds in which the counters are not read again
KEPT = 2_000  # readings
DIGITS = 3  # after the decimal point of an interpolated number of jobs


class Mark(NamedTuple):
    """The sum of the counters of all queues at one instant."""

    at: int
    completed: int
    died: int


class Point(NamedTuple):
    """The numbers of jobs that completed and died in the interval that ends at `at`.

    Interpolated numbers are fractions.
    """

    at: int
    completed: float
    died: float


class PointView(msgspec.Struct):
    """The number of jobs that completed and died in the interval that ends at `at`."""

    at: Instant
    completed: float
    died: float


def point_view(point: Point) -> PointView:
    return PointView(instant(point.at), round(point.completed, DIGITS), round(point.died, DIGITS))


def mark(counts: Sequence[QueueCounts], at: int) -> Mark:
    return Mark(at, sum(one.processed for one in counts), sum(one.died for one in counts))


async def marks_before(store: Store, now: Mark) -> list[Mark]:
    """Return readings for the time before `now`, computed from the events of the feed. The last one is `now`.

    The readings cover the longest of the `WINDOWS` that has at most `MOST` events and is still in the feed. If there is
    no such window, only `now` is returned.
    """
    for window in WINDOWS:
        try:
            [span] = await store.event_spans(now.at - window, 1)
            if span.count <= MOST:
                return await _marks_from_events(store, span.after, now, now.at - window)
        except (CursorExpired, CursorUnknown):
            continue
    return [now]


async def _marks_from_events(store: Store, cursor: str, now: Mark, since: int) -> list[Mark]:
    completed: Counter[int] = Counter()
    died: Counter[int] = Counter()
    for _ in range(2 * MOST // PAGE + 2):
        page = await store.events(cursor, PAGE)
        for event in page.events:
            if since < event.at <= now.at:
                step = (event.at - since - 1) // STEP  # an event at the end of an interval belongs to that interval
                completed[step] += event.kind is Kind.COMPLETED
                died[step] += event.kind is Kind.BURIED
        cursor = page.cursor
        if not page.events:
            break
    else:  # more events than the store has estimated
        return [now]
    marks = [now]
    left = now
    for step in range((now.at - since) // STEP - 1, -1, -1):
        left = Mark(since + step * STEP, left.completed - completed[step], left.died - died[step])
        marks.append(left)
    return marks[::-1]


def series(marks: Sequence[Mark]) -> list[Point]:
    """Return a point for each complete interval between the first reading and the last, oldest first."""
    if len(marks) < 2:
        return []
    last = marks[-1].at // STEP * STEP
    begin = max(marks[0].at, last - WINDOWS[0])
    ends = range(last, begin + STEP - 1, -STEP)
    return [_step(marks, end) for end in ends][::-1]


def unfinished(marks: Sequence[Mark]) -> Point:
    """Return a point for the current, incomplete interval. It ends at the last reading."""
    last = marks[-1]
    before = _at(marks, max(marks[0].at, last.at // STEP * STEP))
    return Point(last.at, max(0.0, last.completed - before[0]), max(0.0, last.died - before[1]))


def _step(marks: Sequence[Mark], end: int) -> Point:
    before, after = _at(marks, end - STEP), _at(marks, end)
    return Point(end, max(0.0, after[0] - before[0]), max(0.0, after[1] - before[1]))


def _at(marks: Sequence[Mark], at: int) -> tuple[float, float]:
    """Return the counters (completed, died) at an instant, interpolated between two readings.

    The counters are rounded, and not the points that are computed from them. So the points of adjacent intervals add up
    to the number of jobs that was counted.
    """
    n = bisect_right(marks, at, key=lambda one: one.at)
    if n == 0 or n == len(marks):
        one = marks[min(n, len(marks) - 1)]
        return one.completed, one.died
    low, high = marks[n - 1], marks[n]
    share = (at - low.at) / (high.at - low.at)
    completed = low.completed + share * (high.completed - low.completed)
    died = low.died + share * (high.died - low.died)
    return round(completed, DIGITS), round(died, DIGITS)


class ThroughputSampler:
    """Keeps the readings of the last 15 minutes in memory, for all clients of one server."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._turn = asyncio.Lock()

    async def marks(self, store: Store) -> list[Mark]:
        async with self._turn:
            now = await store.now()
            if self._marks and 0 <= now - self._marks[-1].at < FRESH:
                return self._marks
            latest = mark(await store.count(), now)
            if not self._marks or now < self._marks[-1].at:  # the first reading, or the store's clock was set back
                self._marks = await marks_before(store, latest)
                return self._marks
            since = now - WINDOWS[0] - STEP
            kept = next((n for n, one in enumerate(self._marks) if one.at > since), len(self._marks))
            self._marks = [*self._marks[max(0, kept - 1) :][-KEPT:], latest]
            return self._marks
