"""The order of claims over many ranges, compared with a plain search through all jobs (part 2: order)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.domain.rules.order import Closed, QueueOrder, pick
from millrace.domain.tables import Range

Item = tuple[str, str, int, int, int]  # queue, task, priority, available_at, seq


class ListRange:
    """The jobs of one (queue, task, priority), by (available_at, seq)."""

    def __init__(self, queue: str, task: str, priority: int, jobs: Iterable[tuple[int, int]]) -> None:
        self.queue, self.task, self.priority = queue, task, priority
        self._jobs = sorted(jobs)

    def peek(self) -> tuple[int, int] | None:
        return self._jobs[0] if self._jobs else None

    def advance(self) -> None:
        del self._jobs[0]


def orders(items: list[Item], taken: dict[str, int], period: int) -> list[QueueOrder]:
    ranges: dict[str, dict[tuple[str, int], list[tuple[int, int]]]] = {}
    for queue, task, priority, at, seq in items:
        ranges.setdefault(queue, {}).setdefault((task, priority), []).append((at, seq))
    return [
        QueueOrder([ListRange(queue, *key, jobs) for key, jobs in found.items()], taken.get(queue, 0), period)
        for queue, found in ranges.items()
    ]


def brute_force(items: list[Item], taken: dict[str, int], period: int, limit: int, room: dict[str, int]) -> list[int]:
    """Each queue offers one job: the best, or on a fair turn the oldest; the best offer of all is taken."""
    left, taken, room = list(items), dict(taken), dict(room)
    picked: list[int] = []
    while len(picked) < limit:
        offers = []
        for queue in sorted({item[0] for item in left}):
            mine = [item for item in left if item[0] == queue]
            fair = period > 0 and (taken.get(queue, 0) + 1) % period == 0
            offers.append(min(mine, key=lambda i: (i[3], i[4]) if fair else (-i[2], i[3], i[4])))
        if not offers:
            break
        best = min(offers, key=lambda i: (-i[2], i[3], i[4]))
        if room.get(best[1], 10**9) <= 0:
            left = [item for item in left if (item[0], item[1], item[2]) != best[:3]]
            continue
        room[best[1]] = room.get(best[1], 10**9) - 1
        taken[best[0]] = taken.get(best[0], 0) + 1
        left.remove(best)
        picked.append(best[4])
    return picked


ITEMS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 3), st.integers(0, 6)), max_size=40
).map(lambda found: [(*item, seq) for seq, item in enumerate(found, 1)])


@settings(deadline=None, max_examples=300)
@given(
    items=ITEMS,
    taken=st.dictionaries(st.sampled_from("ab"), st.integers(0, 9)),
    period=st.integers(0, 5),
    limit=st.integers(0, 45),
    room=st.dictionaries(st.sampled_from("xyz"), st.integers(0, 5)),
)
def test_the_merge_of_ranges_equals_a_plain_search(
    items: list[Item], taken: dict[str, int], period: int, limit: int, room: dict[str, int]
) -> None:
    left = dict(room)

    def allowed(source: Range, seq: int) -> bool:
        if left.get(source.task, 10**9) <= 0:
            return False
        left[source.task] = left.get(source.task, 10**9) - 1
        return True

    expected = brute_force(items, taken, period, limit, room)
    assert list(pick(orders(items, taken, period), allowed, limit)) == expected


def test_a_fair_share_of_a_quarter_takes_the_oldest_every_fourth_time() -> None:
    low = [("q", "t", 0, 0, seq) for seq in range(1, 4)]
    high = [("q", "t", 9, 1, seq) for seq in range(10, 19)]

    assert list(pick(orders([*low, *high], {}, 4), lambda *_: True, 8)) == [10, 11, 12, 1, 13, 14, 15, 2]


def test_the_counter_goes_on_where_the_last_claim_left_it() -> None:
    items = [("q", "t", 0, 0, 1), ("q", "t", 9, 1, 2)]

    assert list(pick(orders(items, {"q": 3}, 4), lambda *_: True, 1)) == [1]
    assert list(pick(orders(items, {"q": 2}, 4), lambda *_: True, 1)) == [2]
    assert list(pick(orders(items, {"q": 2}, 4), lambda *_: True, 2)) == [2, 1]


def test_without_a_fair_share_age_does_not_count() -> None:
    items = [("q", "t", 0, 0, 1), ("q", "t", 1, 9, 2)]

    assert list(pick(orders(items, {}, 0), lambda *_: True, 2)) == [2, 1]


def test_a_refused_range_is_left_out_and_asked_only_once() -> None:
    items = [("q", "no", 5, 0, seq) for seq in (1, 2, 3)] + [("q", "yes", 0, 0, 4)]
    asked: list[int] = []

    def allowed(source: Range, seq: int) -> bool:
        asked.append(seq)
        return source.task == "yes"

    assert list(pick(orders(items, {}, 0), allowed, 4)) == [4]
    assert asked == [1, 4]


def test_nothing_is_asked_beyond_the_limit() -> None:
    asked: list[int] = []
    items = [("q", "t", 0, 0, seq) for seq in (1, 2, 3)]

    def allowed(_, seq: int) -> bool:
        asked.append(seq)
        return True

    assert list(pick(orders(items, {}, 0), allowed, 2)) == [1, 2]
    assert asked == [1, 2]
    assert list(pick([], lambda *_: True, 5)) == []


def test_a_closed_range_gives_nothing() -> None:
    closed = Closed(ListRange("q", "t", 3, [(1, 1)]))

    assert (closed.queue, closed.task, closed.priority, closed.peek()) == ("q", "t", 3, None)
    with pytest.raises(AssertionError, match="has no jobs"):
        closed.advance()
