"""The order of claims over many ranges at once: priority, then due time, then seq, within every allowance.

Each range holds the open, due jobs of one (queue, task, priority) in order, so the next job to take is one of
their heads: the cost of a claim is the number of ranges and of jobs taken, never the length of a queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from millrace.domain.tables import Range

Head = tuple[int, int, int, int]  # sort key …, index of the range


class QueueOrder:
    """The ranges of one queue, and whose turn it is under `fair_share`.

    A range is looked at when its priority comes up; with `fair_share`, where the oldest of all may come first, at once.
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
        """The job this queue would give next, with its key in the order over all queues."""
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
            heapq.heappop(heads)  # it was taken through the other order, or its range was closed
        return None

    def took(self, index: int) -> None:
        self._taken += 1
        self._ranges[index].advance()
        self._show(index)

    def close(self, index: int) -> None:
        """Nothing more may be taken from this range in this claim."""
        self._ranges[index] = Closed(self._ranges[index])

    @property
    def only_range(self) -> Range | None:
        return self._ranges[0] if len(self._ranges) == 1 else None

    def _fair_turn(self) -> bool:
        return self._period > 0 and (self._taken + 1) % self._period == 0

    def _show_next(self) -> None:
        """Look at all ranges of the next priority."""
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
    """A range that gives nothing more."""

    def __init__(self, source: Range) -> None:
        self.queue, self.task, self.priority = source.queue, source.task, source.priority

    def peek(self) -> tuple[int, int] | None:
        return None

    def advance(self) -> None:
        raise AssertionError("a closed range gives no job")


def _pick_from_one(source: Range, allowed: Callable[[Range, int], bool], limit: int) -> Iterator[int]:
    """The usual case, one task and one priority, needs no merging."""
    while limit > 0:
        head = source.peek()
        if head is None or not allowed(source, head[1]):
            return
        source.advance()
        limit -= 1
        yield head[1]


def pick(queues: list[QueueOrder], allowed: Callable[[Range, int], bool], limit: int) -> Iterator[int]:
    """Up to `limit` seqs in claim order; a range whose head `allowed` refuses is left out from then on."""
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
