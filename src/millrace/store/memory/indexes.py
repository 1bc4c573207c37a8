"""Ordered indexes of the memory store: `IndexedHeap`, `Ready` (the open jobs of one task and priority) and `Seqs`.

A heap finds its smallest item fast, but must search for any other item to remove it. An `IndexedHeap` therefore removes
an item only from a dictionary. The heap entry of the item becomes stale, and is skipped when it reaches the top. Every
push gets a new number (`_generation`; it has nothing to do with the generations of a job). An entry is live if the
dictionary has the number of this entry. Items with equal order leave the heap in the order of their numbers, so items
themselves are never compared. docs/decisions/0002-heap.md explains why the heap is binary and uses `heapq`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import ClassVar, Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)
Order: TypeAlias = tuple[int, ...]
Entry = tuple[int, int]  # (available_at, seq)

_SHORT = 64  # entries; below that, cleaning up a row costs more than it frees


class IndexedHeap(Generic[K]):
    """A min-heap of items, from which any item can be removed. Each item has an order, a tuple of numbers.

    `push`, `pop` and `remove` take O(log n) amortized. A heap with more than `compact_above` entries has at most one
    stale entry in five. A smaller heap is not compacted, because that would cost more than it frees.
    """

    __slots__ = ("_entries", "_generation", "_index")

    compact_above: ClassVar[int] = 64

    def __init__(self) -> None:
        self._entries: list[tuple[Order, int, K]] = []
        self._index: dict[K, int] = {}
        self._generation = 0

    def push(self, item: K, order: Order) -> None:
        """Add `item`. If it is already in the heap, its order is replaced."""
        self._generation += 1
        self._index[item] = self._generation
        heappush(self._entries, (order, self._generation, item))
        self._compact_if_due()

    def pop(self) -> K:
        """Remove and return the item with the smallest order. Raise IndexError if the heap is empty."""
        entries, index = self._entries, self._index
        while entries:
            _, generation, item = heappop(entries)
            if index.get(item) == generation:
                del index[item]
                # A pop removes a live entry, so the share of stale ones grows.
                self._compact_if_due()
                return item
        raise IndexError("pop from an empty heap; check len() or peek() first")

    def peek(self) -> K | None:
        """Return the item that `pop` would return, or None if the heap is empty."""
        self._drop_stale_top()
        return self._entries[0][2] if self._entries else None

    def peek_order(self) -> Order | None:
        """Return the order of the item that `pop` would return, or None if the heap is empty."""
        self._drop_stale_top()
        return self._entries[0][0] if self._entries else None

    def remove(self, item: K) -> bool:
        """Remove `item`. Return False if it is not in the heap."""
        if self._index.pop(item, None) is None:
            return False
        self._compact_if_due()
        return True

    def smallest(self, n: int, bound: int | None = None) -> list[K]:
        """Return the `n` smallest items in order, without removing them.

        With `bound`, return only items whose order begins with a number up to `bound`. The search walks down from the
        root and visits the children of an entry only after the entry itself. So the cost is O(n log n) at any heap
        size.
        """
        entries, index = self._entries, self._index
        found: list[K] = []
        skipped = 0
        frontier = [(entries[0], 0)] if entries else []
        while frontier and len(found) < n:
            (order, generation, item), at = heappop(frontier)
            if bound is not None and order[0] > bound:
                break
            if index.get(item) == generation:
                found.append(item)
            else:
                skipped += 1
            for child in range(2 * at + 1, min(2 * at + 3, len(entries))):
                heappush(frontier, (entries[child], child))
        if skipped > len(found):
            self._drop_stale_among_first(len(found))
        return found

    @property
    def stale(self) -> int:
        """Number of stale entries in the heap."""
        return len(self._entries) - len(self._index)

    def __contains__(self, item: object) -> bool:
        return item in self._index

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[K]:
        return iter(self._index)

    def _is_live(self, entry: tuple[Order, int, K]) -> bool:
        return self._index.get(entry[2]) == entry[1]

    def _drop_stale_top(self) -> None:
        while self._entries and not self._is_live(self._entries[0]):
            heappop(self._entries)

    def _drop_stale_among_first(self, live: int) -> None:
        # Otherwise every later `smallest` would walk over the same stale entries again.
        kept: list[tuple[Order, int, K]] = []
        while len(kept) < live:
            entry = heappop(self._entries)
            if self._is_live(entry):
                kept.append(entry)
        for entry in kept:
            heappush(self._entries, entry)

    def _compact_if_due(self) -> None:
        total = len(self._entries)
        if total > self.compact_above and (total - len(self._index)) * 5 > total:
            current = self._index.get  # not _is_live: a call per entry would make this pause longer
            self._entries = [entry for entry in self._entries if current(entry[2]) == entry[1]]
            heapify(self._entries)


class Ready:
    """The open jobs of one task and priority, in order of (available_at, seq). An open job is claimable once it is due.

    Nearly every job is due when it is enqueued, so jobs arrive in the order in which they are claimed. They are kept in
    a deque (`_row`), so claiming the first of a million jobs touches no other. Two heaps contain the exceptions:
    `_later` the jobs with a delay, and `_early` the few jobs that are added after jobs with a higher order.
    """

    __slots__ = ("_at", "_early", "_first", "_later", "_row")

    def __init__(self) -> None:
        self._row: deque[Entry] = deque()  # ascending; an entry that differs from `_at` is stale
        self._at: dict[int, int] = {}  # available_at of the jobs in the row, by seq
        self._early: IndexedHeap[Entry] = IndexedHeap()
        self._later: IndexedHeap[Entry] = IndexedHeap()
        self._first: Entry | None = None  # cached result of `peek`

    def push(self, at: int, seq: int, *, delayed: bool) -> None:
        """Add a job. A `delayed` job goes to a heap.

        In the deque, it would be the last entry, and all jobs that are due before it would have to go to a heap.
        """
        row, mine = self._row, (at, seq)
        if self._first is not None and mine < self._first:
            self._first = None
        if delayed:
            self._later.push(mine, mine)
        elif row and mine < row[-1]:
            self._early.push(mine, mine)
        else:
            if not row or row[-1] != mine:  # else it was just removed, and its stale entry is still the last one
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
        """Remove the job that `peek` returns. Do nothing if there is no job."""
        first = self.peek()
        if first is not None:
            self.remove(*first)

    def smallest(self, n: int) -> list[Entry]:
        """Return the first `n` entries in order, without removing them."""
        in_row = islice(filter(self._is_live, self._row), n)
        return sorted([*in_row, *self._early.smallest(n), *self._later.smallest(n)])[:n]

    def __len__(self) -> int:
        return len(self._at) + len(self._early) + len(self._later)

    @property
    def entries(self) -> int:
        """Number of entries in the deque and the heaps, including stale ones."""
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
        """Remove stale entries from the deque if they are more than a fifth of it."""
        total = len(self._row)
        if total > _SHORT and (total - len(self._at)) * 5 > total:
            self._row = deque(filter(self._is_live, self._row))


class Seqs:
    """An ascending list of seqs. Seqs are added at the end and removed anywhere.

    A removed seq stays in the list and is skipped, until the list is rebuilt.
    """

    __slots__ = ("_alive", "_order")

    def __init__(self) -> None:
        self._order: list[int] = []
        self._alive: set[int] = set()

    def add(self, seq: int) -> None:
        self._order.append(seq)
        self._alive.add(seq)

    def drop(self, seq: int) -> None:
        self._alive.discard(seq)
        if len(self._order) > 64 and len(self._order) > 2 * len(self._alive):
            self._order = [kept for kept in self._order if kept in self._alive]

    def after(self, seq: int) -> Iterator[int]:
        for index in range(bisect_right(self._order, seq), len(self._order)):
            if self._order[index] in self._alive:
                yield self._order[index]

    def before(self, seq: int | None) -> Iterator[int]:
        start = len(self._order) if seq is None else bisect_left(self._order, seq)
        for index in range(start - 1, -1, -1):
            if self._order[index] in self._alive:
                yield self._order[index]
