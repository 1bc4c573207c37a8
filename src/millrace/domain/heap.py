"""Indexed heap: the next job in order, and removal of any job by id.

A plain heap finds its smallest item fast, but to remove another one it must search.
Here removal only forgets the item in an index; its heap entry goes stale and is skipped
when it surfaces. Each push draws a new generation, so an entry is live exactly when the
index still names its generation. The generation also orders equal items first in,
first out, and keeps the items themselves from ever being compared.

Why this stands on `heapq` and is not 4-ary: docs/decisions/0002-heap.md.
"""

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import ClassVar, Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)
Order: TypeAlias = tuple[int, ...]


class IndexedHeap(Generic[K]):
    """Min-heap of items with an order tuple; removal by item is O(1).

    Every operation is O(log n) amortized. At most one entry in five is stale, once there
    are more than `compact_above` entries; below that, compacting costs more than it frees.
    """

    compact_above: ClassVar[int] = 64

    def __init__(self) -> None:
        self._entries: list[tuple[Order, int, K]] = []
        self._index: dict[K, int] = {}
        self._generation = 0

    def push(self, item: K, order: Order) -> None:
        """Add `item`; when it is already present, it moves to the new order."""
        self._generation += 1
        self._index[item] = self._generation
        heappush(self._entries, (order, self._generation, item))
        self._compact_if_due()

    def pop(self) -> K:
        """Remove and return the item with the smallest order."""
        entries, index = self._entries, self._index
        while entries:
            _, generation, item = heappop(entries)
            if index.get(item) == generation:
                del index[item]
                # Pops take live entries and leave stale ones behind, so they raise the ratio too.
                self._compact_if_due()
                return item
        raise IndexError("pop from an empty heap; ask len() or peek() first")

    def peek(self) -> K | None:
        """The item `pop` would return, or None when the heap is empty."""
        self._drop_stale_top()
        return self._entries[0][2] if self._entries else None

    def peek_order(self) -> Order | None:
        """The order of the item `pop` would return, or None when the heap is empty."""
        self._drop_stale_top()
        return self._entries[0][0] if self._entries else None

    def remove(self, item: K) -> bool:
        """Forget `item`; False when it was not there."""
        if self._index.pop(item, None) is None:
            return False
        self._compact_if_due()
        return True

    def smallest(self, n: int, bound: int | None = None) -> list[K]:
        """The `n` smallest items in order, without removing them; with `bound`, up to that first number.

        Walks down from the root and opens an entry's two children only once the entry itself
        was taken, so the cost is O(n log n) however large the heap is.
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
        """How many entries await being skipped or compacted."""
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
            current = self._index.get  # not _is_live: the call would lengthen the one long pause a heap has
            self._entries = [entry for entry in self._entries if current(entry[2]) == entry[1]]
            heapify(self._entries)
