"""The open jobs of one task and priority, by (available_at, seq).

Nearly every job is due when it is enqueued, so jobs come in the order in which they will be taken: they stand in a row,
and taking the first of a million touches no other. Two heaps beside it hold who is due later, and the few whose turn in
their line has come after jobs that are younger than they.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from millrace.domain.heap import IndexedHeap

Entry = tuple[int, int]  # (available_at, seq)

_SHORT = 64  # entries; below that, sweeping a row costs more than it frees


class Ready:
    __slots__ = ("_at", "_early", "_first", "_later", "_row")

    def __init__(self) -> None:
        self._row: deque[Entry] = deque()  # ascending; an entry that `_at` does not confirm is stale
        self._at: dict[int, int] = {}  # of the jobs in the row: when they are due
        self._early: IndexedHeap[Entry] = IndexedHeap()
        self._later: IndexedHeap[Entry] = IndexedHeap()
        self._first: Entry | None = None  # what `peek` has found, until it is another

    def push(self, at: int, seq: int, *, delayed: bool) -> None:
        """Add a job that is not there. One that was `delayed` would close the row to all who are due before it."""
        row, mine = self._row, (at, seq)
        if self._first is not None and mine < self._first:
            self._first = None
        if delayed:
            self._later.push(mine, mine)
        elif row and mine < row[-1]:
            self._early.push(mine, mine)
        else:
            if not row or row[-1] != mine:  # else it was removed a moment ago, and its entry is still there
                row.append(mine)
            self._at[seq] = at

    def remove(self, at: int, seq: int) -> None:
        mine = (at, seq)
        if mine == self._first:
            self._first = None
        if self._at.get(seq) == at:
            del self._at[seq]
            self._sweep_if_due()
        elif not self._early.remove(mine):
            self._later.remove(mine)

    def peek(self) -> Entry | None:
        if self._first is None:
            heads = (self._first_in_row(), self._early.peek(), self._later.peek())
            self._first = min((head for head in heads if head is not None), default=None)
        return self._first

    def pop(self) -> None:
        """Remove what `peek` shows."""
        first = self.peek()
        if first is not None:
            self.remove(*first)

    def smallest(self, n: int) -> list[Entry]:
        """The first `n` in order, without removing them."""
        in_row = islice(filter(self._is_live, self._row), n)
        return sorted([*in_row, *self._early.smallest(n), *self._later.smallest(n)])[:n]

    def __len__(self) -> int:
        return len(self._at) + len(self._early) + len(self._later)

    @property
    def entries(self) -> int:
        """Live and stale ones."""
        heaps = (self._early, self._later)
        return len(self._row) + sum(len(heap) + heap.stale for heap in heaps)

    def _is_live(self, entry: Entry) -> bool:
        return self._at.get(entry[1]) == entry[0]

    def _first_in_row(self) -> Entry | None:
        row, current = self._row, self._at.get
        while row:
            first = row[0]
            if current(first[1]) == first[0]:
                return first
            row.popleft()
        return None

    def _sweep_if_due(self) -> None:
        """More than one stale entry in five is too many (BE-15)."""
        total = len(self._row)
        if total > _SHORT and (total - len(self._at)) * 5 > total:
            self._row = deque(filter(self._is_live, self._row))
