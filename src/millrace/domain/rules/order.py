"""The order of claims over many ranges: priority, then due time, then seq, within all limits.

Each range has the open, due jobs of one (queue, task, priority) in order. So the next job to claim is always the first
job of a range. The cost of a claim depends on the number of ranges and of jobs claimed, not on the length of a queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from millrace.domain.tables import Range

Head = tuple[int, int, int, int]  # sort key …, index of the range


class QueueOrder:
    """Finds the next job of one queue among its ranges, according to priority and `fair_share`.

    A range is read only when its priority is reached. With `fair_share`, the job that has been due the longest may be
    in any range, so all ranges are read at the start.
    """

    def __init__(self, ranges: list[Range], taken: int, period: int) -> None:
        self._ranges = ranges
        self._taken = taken
        self._period = period
        self._by_priority: list[Head] = []
        self._by_age: list[Head] = []
        self._unseen = sorted(range(len(ranges)), key=lambda index: ranges[index].priority)  # the highest last
        while period and self._unseen:
            self._show_next()

    def candidate(self) -> tuple[Head, Range] | None:
        """Return the sort key and the range of this queue's next job; None if the queue has no more jobs."""
        found = self._head()
        while found is None and self._unseen:
            self._show_next()
            found = self._head()
        return found

    def _head(self) -> tuple[Head, Range] | None:
        heads = self._by_age if self._fair_turn() else self._by_priority
        while heads:
            source = self._ranges[heads[0][3]]
            peeked = source.peek()
            if peeked is not None and (heads[0][1:3] if heads is self._by_priority else heads[0][0:2]) == peeked:
                return (-source.priority, *peeked, heads[0][3]), source
            heapq.heappop(heads)  # it was taken from the other heap, or its range was closed
        return None

    def took(self, index: int) -> None:
        self._taken += 1
        self._ranges[index].advance()
        self._show(index)

    def close(self, index: int) -> None:
        """Close a range, so that this claim takes no more jobs from it."""
        self._ranges[index] = Closed(self._ranges[index])

    @property
    def only_range(self) -> Range | None:
        return self._ranges[0] if len(self._ranges) == 1 else None

    def _fair_turn(self) -> bool:
        return self._period > 0 and (self._taken + 1) % self._period == 0

    def _show_next(self) -> None:
        """Read the first job of each range that has the next lower priority."""
        priority = self._ranges[self._unseen[-1]].priority
        while self._unseen and self._ranges[self._unseen[-1]].priority == priority:
            self._show(self._unseen.pop())

    def _show(self, index: int) -> None:
        source = self._ranges[index]
        peeked = source.peek()
        if peeked is None:
            return
        at, seq = peeked
        heapq.heappush(self._by_priority, (-source.priority, at, seq, index))
        if self._period:
            heapq.heappush(self._by_age, (at, seq, source.priority, index))


class Closed:
    """An empty range. It replaces a range whose first job may not be claimed."""

    def __init__(self, source: Range) -> None:
        self.queue, self.task, self.priority = source.queue, source.task, source.priority

    def peek(self) -> tuple[int, int] | None:
        return None

    def advance(self) -> None:
        raise AssertionError("a closed range has no jobs")


def _pick_from_one(source: Range, allowed: Callable[[Range, int], bool], limit: int) -> Iterator[int]:
    """Yield up to `limit` seqs of a single range. This is the common case: one task and one priority."""
    while limit > 0:
        head = source.peek()
        if head is None or not allowed(source, head[1]):
            return
        source.advance()
        limit -= 1
        yield head[1]


def pick(queues: list[QueueOrder], allowed: Callable[[Range, int], bool], limit: int) -> Iterator[int]:
    """Yield up to `limit` seqs in claim order. If `allowed` refuses the first job of a range, skip the range."""
    only = queues[0].only_range if len(queues) == 1 else None
    if only is not None:
        yield from _pick_from_one(only, allowed, limit)
        return
    while limit > 0:
        best: tuple[Head, Range] | None = None
        owner: QueueOrder | None = None
        for queue in queues:
            found = queue.candidate()
            if found is not None and (best is None or found[0][:3] < best[0][:3]):
                best, owner = found, queue
        if best is None or owner is None:
            return
        head, source = best
        if not allowed(source, head[2]):
            owner.close(head[3])
            continue
        owner.took(head[3])
        limit -= 1
        yield head[2]
