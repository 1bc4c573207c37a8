"""The indexed heap: order (E-05, E-06), removal by item (E-07), bounded staleness (BE-15)."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.store.memory.indexes import IndexedHeap

ORDERS = st.tuples(st.integers(-3, 3), st.integers(0, 5))
ITEMS = st.integers(0, 40)


class EagerHeap(IndexedHeap[int]):
    """Compacts from a handful of entries on, so that short random runs reach compaction."""

    compact_above = 4


class CountingInt(int):
    """An order component that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        CountingInt.comparisons += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        CountingInt.comparisons += 1
        return isinstance(other, int) and int(self) == int(other)

    __hash__ = int.__hash__


def a_heap(size: int) -> IndexedHeap[int]:
    heap: IndexedHeap[int] = IndexedHeap()
    for item in range(size):
        heap.push(item, (item,))
    return heap


def a_counting_heap(size: int) -> IndexedHeap[int]:
    heap: IndexedHeap[int] = IndexedHeap()
    orders = list(range(size))
    random.Random(7).shuffle(orders)
    for order in orders:
        heap.push(order, (CountingInt(order),))
    CountingInt.comparisons = 0
    return heap


def entry_count(heap: IndexedHeap[int]) -> int:
    return len(heap._entries)


def within_bound(heap: IndexedHeap[int]) -> bool:
    return entry_count(heap) <= max(heap.compact_above, 1.25 * len(heap))


def drain(heap: IndexedHeap[int]) -> list[int]:
    return [heap.pop() for _ in range(len(heap))]


def test_items_leave_in_order_e05_e06() -> None:
    heap: IndexedHeap[str] = IndexedHeap()
    for item, order in [("late", (0, 9)), ("urgent", (-5, 9)), ("early", (0, 1))]:
        heap.push(item, order)

    assert [heap.pop(), heap.pop(), heap.pop()] == ["urgent", "early", "late"]


def test_items_of_equal_order_leave_first_in_first_out_and_are_never_compared_e05() -> None:
    heap: IndexedHeap[object] = IndexedHeap()
    items = [object() for _ in range(20)]
    for item in items:
        heap.push(item, (1,))

    assert [heap.pop() for _ in items] == items


@pytest.mark.parametrize(("order", "expected"), [((0,), ["moved", "other"]), ((9,), ["other", "moved"])])
def test_pushing_an_item_again_moves_it_e05(order: tuple[int, ...], expected: list[str]) -> None:
    heap: IndexedHeap[str] = IndexedHeap()
    heap.push("moved", (5 if order == (0,) else 1,))
    heap.push("other", (3,))
    heap.push("moved", order)

    assert (len(heap), heap.stale) == (2, 1)
    assert [heap.pop(), heap.pop()] == expected


def test_popping_when_only_stale_entries_are_left_says_what_to_do_instead_e06() -> None:
    heap = a_heap(1)
    heap.remove(0)

    with pytest.raises(IndexError, match=r"len\(\) or peek\(\)"):
        heap.pop()


def test_peek_shows_what_pop_would_return_and_keeps_it_e06() -> None:
    heap = a_heap(3)
    heap.remove(0)

    assert (heap.peek(), heap.peek_order(), len(heap)) == (1, (1,), 2)
    assert heap.pop() == 1
    heap.remove(2)
    assert (heap.peek(), heap.peek_order()) == (None, None)


def test_a_removed_item_is_gone_at_once_though_its_entry_stays_e07() -> None:
    heap = a_heap(5)

    assert heap.remove(3)
    assert 3 not in heap
    assert sorted(heap) == [0, 1, 2, 4]
    assert (len(heap), heap.stale, entry_count(heap)) == (4, 1, 5)


def test_removal_compares_no_orders_e07() -> None:
    heap = a_counting_heap(1000)
    for item in range(100):
        heap.remove(item)

    assert CountingInt.comparisons == 0


def test_one_stale_entry_more_than_a_fifth_compacts_e07() -> None:
    heap = a_counting_heap(100)
    for item in range(20):
        heap.remove(item)
    assert (heap.stale, entry_count(heap)) == (20, 100)

    heap.remove(20)

    assert (heap.stale, entry_count(heap)) == (0, 79)
    assert drain(heap) == list(range(21, 100))


# BE-15
def test_removals_alone_compact_and_memory_follows_the_live_items_be15() -> None:
    heap = a_heap(10_000)
    for item in random.Random(1).sample(range(10_000), 10_000):
        assert heap.remove(item)
        assert within_bound(heap)

    assert len(heap) == 0
    assert entry_count(heap) <= heap.compact_above


# BE-15
def test_moving_items_alone_compacts_be15() -> None:
    heap = a_heap(100)
    for turn in range(10_000):
        heap.push(turn % 100, (turn,))
        assert within_bound(heap)

    assert len(heap) == 100


def test_pops_past_buried_stale_entries_compact_be15() -> None:
    heap = a_heap(1000)
    for item in range(800, 1000):
        heap.remove(item)
    assert heap.stale == 200

    for expected in range(800):
        assert heap.pop() == expected
        assert within_bound(heap)


def test_a_tiny_heap_is_left_alone_be15() -> None:
    heap = a_heap(IndexedHeap.compact_above)
    for item in range(1, IndexedHeap.compact_above):
        heap.remove(item)

    assert heap.stale == IndexedHeap.compact_above - 1
    heap.push(-1, (-1,))
    assert heap.stale == 0


def test_compaction_touches_at_most_five_entries_per_removal_e07() -> None:
    heap = a_heap(20_000)
    touched = 0
    for item in range(20_000):
        before = entry_count(heap)
        heap.remove(item)
        if entry_count(heap) < before:
            touched += before

    assert 0 < touched <= 5 * 20_000


def test_smallest_lists_items_in_order_and_removes_none() -> None:
    heap = a_counting_heap(500)
    heap.remove(1)

    assert heap.smallest(4) == [0, 2, 3, 4]
    assert heap.smallest(0) == heap.smallest(-1) == []
    assert heap.smallest(10_000) == [0, *range(2, 500)]
    assert len(heap) == 499


def test_smallest_costs_the_same_on_a_heap_a_hundred_times_larger() -> None:
    costs = []
    for size in (1_000, 100_000):
        heap = a_counting_heap(size)
        assert heap.smallest(20) == list(range(20))
        costs.append(CountingInt.comparisons)

    assert costs[1] <= 2 * costs[0]


def test_smallest_walks_over_the_same_stale_entries_only_once() -> None:
    heap = a_counting_heap(10_000)
    for item in range(1, 2000):
        heap.remove(item)
    assert heap.smallest(2) == [0, 2000]
    assert heap.stale == 0

    CountingInt.comparisons = 0
    assert heap.smallest(2) == [0, 2000]
    assert CountingInt.comparisons < 50


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), ORDERS), min_size=100, max_size=600), st.randoms())
def test_whatever_was_moved_and_removed_the_rest_leaves_sorted_e05_e06_e07(
    pushes: list[tuple[int, tuple[int, int]]], chance: random.Random
) -> None:
    heap: IndexedHeap[int] = IndexedHeap()
    model: dict[int, tuple[tuple[int, int], int]] = {}
    for turn, (item, order) in enumerate(pushes):
        heap.push(item, order)
        model[item] = (order, turn)
    for item in chance.sample(sorted(model), len(model) // 2):
        assert heap.remove(item)
        del model[item]

    assert within_bound(heap)
    assert drain(heap) == sorted(model, key=model.__getitem__)


class HeapAgainstSortedList(RuleBasedStateMachine):
    """E-05, E-06, E-07, BE-15: the heap answers as a list sorted anew each time would."""

    def __init__(self) -> None:
        super().__init__()
        self.heap = EagerHeap()
        self.model: dict[int, tuple[tuple[int, int], int]] = {}
        self.turn = 0

    def ordered(self) -> list[int]:
        return sorted(self.model, key=self.model.__getitem__)

    @rule(item=ITEMS, order=ORDERS)
    def push(self, item: int, order: tuple[int, int]) -> None:
        self.turn += 1
        self.heap.push(item, order)
        self.model[item] = (order, self.turn)

    @rule(pushes=st.lists(st.tuples(ITEMS, ORDERS), max_size=20))
    def push_many(self, pushes: list[tuple[int, tuple[int, int]]]) -> None:
        for item, order in pushes:
            self.push(item, order)

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        expected = self.ordered()[0]
        assert self.heap.pop() == expected
        del self.model[expected]

    @rule(item=ITEMS)
    def remove(self, item: int) -> None:
        assert self.heap.remove(item) == (self.model.pop(item, None) is not None)

    @rule()
    def peek(self) -> None:
        first = next(iter(self.ordered()), None)
        assert self.heap.peek() == first
        assert self.heap.peek_order() == (None if first is None else self.model[first][0])

    @rule(n=st.integers(0, 45))
    def smallest(self, n: int) -> None:
        assert self.heap.smallest(n) == self.ordered()[:n]

    @invariant()
    def holds_exactly_the_live_items(self) -> None:
        assert set(self.heap) == set(self.model)
        assert len(self.heap) == len(self.model)
        assert all((item in self.heap) == (item in self.model) for item in range(41))

    @invariant()
    def keeps_stale_entries_bounded(self) -> None:
        assert self.heap.stale == entry_count(self.heap) - len(self.model)
        assert within_bound(self.heap)


TestHeapAgainstSortedList = HeapAgainstSortedList.TestCase
