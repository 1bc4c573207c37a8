"""Which heap under the index: a hand-written 4-ary one, or C `heapq`? Run: python -m benchmarks.heap

Both share the index, the stale entries and the compaction of `IndexedHeap`; only the heap
beneath differs. Decision and figures: docs/decisions/0002-heap.md.
"""

import gc
import random
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

from millrace.store.memory.indexes import IndexedHeap, Order

ROUNDS = 5
OPERATIONS = 100_000
DEPTHS = (1_000, 100_000, 1_000_000)
ENTRIES: TypeAlias = list[Any]


def sift_up(entries: ENTRIES, at: int) -> None:
    entry = entries[at]
    while at:
        parent = (at - 1) >> 2
        above = entries[parent]
        if above < entry:
            break
        entries[at] = above
        at = parent
    entries[at] = entry


def sift_down(entries: ENTRIES, at: int) -> None:
    size = len(entries)
    entry = entries[at]
    while (child := 4 * at + 1) < size:
        # min() over a slice keeps the four-way choice in C: the fastest form found in pure Python.
        least = min(entries[child : child + 4])
        if entry < least:
            break
        while entries[child] is not least:
            child += 1
        entries[at] = least
        at = child
    entries[at] = entry


def push4(entries: ENTRIES, entry: Any) -> None:
    entries.append(entry)
    sift_up(entries, len(entries) - 1)


def pop4(entries: ENTRIES) -> Any:
    last = entries.pop()
    if not entries:
        return last
    top, entries[0] = entries[0], last
    sift_down(entries, 0)
    return top


def heapify4(entries: ENTRIES) -> None:
    for at in reversed(range((len(entries) + 2) // 4)):
        sift_down(entries, at)


class Queue:
    """The lazy deletion of `IndexedHeap` over any heap, so that both candidates run the same code."""

    def __init__(
        self,
        push: Callable[[ENTRIES, Any], None],
        pop: Callable[[ENTRIES], Any],
        build: Callable[[ENTRIES], None],
    ) -> None:
        self._push, self._pop, self._build = push, pop, build
        self._entries: ENTRIES = []
        self._index: dict[int, int] = {}
        self._generation = 0

    def push(self, item: int, order: Order) -> None:
        self._generation += 1
        self._index[item] = self._generation
        self._push(self._entries, (order, self._generation, item))
        self._compact_if_due()

    def pop(self) -> int:
        while True:
            _, generation, item = self._pop(self._entries)
            if self._index.get(item) == generation:
                del self._index[item]
                self._compact_if_due()
                return int(item)

    def remove(self, item: int) -> bool:
        if self._index.pop(item, None) is None:
            return False
        self._compact_if_due()
        return True

    def _compact_if_due(self) -> None:
        total = len(self._entries)
        if total > 64 and (total - len(self._index)) * 5 > total:
            self._entries = [entry for entry in self._entries if self._index.get(entry[2]) == entry[1]]
            self._build(self._entries)


Heap: TypeAlias = Queue | IndexedHeap[int]
Workload: TypeAlias = Callable[[Heap], float]

CANDIDATES: dict[str, Callable[[], Heap]] = {
    "4-ary": lambda: Queue(push4, pop4, heapify4),
    "heapq": lambda: Queue(heappush, heappop, heapify),
    "src": IndexedHeap[int],
}


def random_orders(count: int) -> list[Order]:
    chance = random.Random(count)
    return [(chance.randrange(-5, 6), chance.randrange(10**12)) for _ in range(count)]


def ascending_orders(count: int) -> list[Order]:
    return [(0, 10**12 + at) for at in range(count)]


def push_then_pop(orders: list[Order]) -> Workload:
    def run(heap: Heap) -> float:
        start = perf_counter()
        for item, order in enumerate(orders):
            heap.push(item, order)
        for _ in orders:
            heap.pop()
        return perf_counter() - start

    return run


def push_and_pop_at(depth: int, orders: list[Order]) -> Workload:
    """Fill to `depth` untimed; then time pairs of one push and one pop."""

    def run(heap: Heap) -> float:
        for item in range(depth):
            heap.push(item, orders[item])
        start = perf_counter()
        for item in range(depth, len(orders)):
            heap.push(item, orders[item])
            heap.pop()
        return perf_counter() - start

    return run


def half_removed(orders: list[Order]) -> Workload:
    victims = random.Random(2).sample(range(len(orders)), len(orders) // 2)

    def run(heap: Heap) -> float:
        start = perf_counter()
        for item, order in enumerate(orders):
            heap.push(item, order)
        for item in victims:
            heap.remove(item)
        for _ in range(len(orders) - len(victims)):
            heap.pop()
        return perf_counter() - start

    return run


def workloads() -> dict[str, Workload]:
    n = OPERATIONS
    found = {
        f"push {n:,}, pop {n:,}": push_then_pop(random_orders(n)),
        "the same, ascending": push_then_pop(ascending_orders(n)),
        f"push {n:,}, remove half, pop the rest": half_removed(random_orders(n)),
    }
    for depth in DEPTHS:
        found[f"{n:,} push/pop pairs at depth {depth:,}"] = push_and_pop_at(depth, random_orders(depth + n))
    for depth in DEPTHS:
        found[f"the same, ascending, depth {depth:,}"] = push_and_pop_at(depth, ascending_orders(depth + n))
    return found


def timed(run: Workload, heap: Heap) -> float:
    """Seconds for one run; the collector is off, as in `timeit`, since its pauses are not the heap's."""
    gc.collect()
    gc.disable()
    try:
        return run(heap)
    finally:
        gc.enable()


def compare() -> None:
    print("| workload | " + " | ".join(f"{name}, ms" for name in CANDIDATES) + " | 4-ary / heapq |")
    print("|---|" + "---:|" * (len(CANDIDATES) + 1))
    for title, run in workloads().items():
        seconds: dict[str, list[float]] = {name: [] for name in CANDIDATES}
        for _ in range(ROUNDS):  # candidates take turns, so that drift of the machine hits all alike
            for name, make in CANDIDATES.items():
                seconds[name].append(timed(run, make()))
        middle = {name: median(taken) * 1000 for name, taken in seconds.items()}
        cells = " | ".join(f"{taken:.0f}" for taken in middle.values())
        print(f"| {title} | {cells} | {middle['4-ary'] / middle['heapq']:.1f} |", flush=True)


def smallest_at(size: int, n: int) -> Workload:
    def run(heap: Heap) -> float:
        assert isinstance(heap, IndexedHeap)
        for item, order in enumerate(random_orders(size)):
            heap.push(item, order)
        start = perf_counter()
        for _ in range(100):
            heap.smallest(n)
        return (perf_counter() - start) / 100

    return run


def longest_removal(orders: list[Order]) -> Workload:
    """The one removal that compacts: the longest a caller can be held up."""

    def run(heap: Heap) -> float:
        for item, order in enumerate(orders):
            heap.push(item, order)
        longest = 0.0
        for item in range(len(orders) // 4):
            start = perf_counter()
            heap.remove(item)
            longest = max(longest, perf_counter() - start)
        return longest

    return run


def describe() -> None:
    print("\n| kept heap | median, ms |\n|---|---:|")
    single = {f"smallest(10) of {size:,}": smallest_at(size, 10) for size in (1_000, 1_000_000)}
    single |= {f"smallest(1,000) of {size:,}": smallest_at(size, 1000) for size in (10_000, 1_000_000)}
    for size in DEPTHS:
        single[f"removal that compacts {size:,}"] = longest_removal(random_orders(size))
        single[f"the same, ascending, {size:,}"] = longest_removal(ascending_orders(size))
    for title, run in single.items():
        taken = median(timed(run, IndexedHeap[int]()) for _ in range(ROUNDS))
        print(f"| {title} | {taken * 1000:.3f} |", flush=True)


if __name__ == "__main__":
    compare()
    describe()
