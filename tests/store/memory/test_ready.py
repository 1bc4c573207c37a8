"""The ready jobs of one task and priority in memory: order, removal, bounded staleness (E-05…E-07, BE-15)."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.store.memory.indexes import IndexedHeap, Ready

SHORT = 64


def in_order(count: int) -> Ready:
    ready = Ready()
    for seq in range(count):
        ready.push(1_000 + seq // 10, seq, delayed=False)
    return ready


def drain(ready: Ready) -> list[int]:
    found: list[int] = []
    while (first := ready.peek()) is not None:
        found.append(first[1])
        ready.pop()
    return found


def test_jobs_that_come_in_order_leave_in_order_e05() -> None:
    assert drain(in_order(500)) == list(range(500))


def test_jobs_that_come_in_order_never_see_a_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes the cost of taking the first independent of how many there are."""
    pushed: list[object] = []
    monkeypatch.setattr(IndexedHeap, "push", lambda _, item, order: pushed.append(item))

    assert drain(in_order(500)) == list(range(500))
    assert pushed == []


def test_a_delayed_job_does_not_close_the_row_to_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Ready()
    ready.push(9_000, 1, delayed=True)
    pushed: list[object] = []
    monkeypatch.setattr(IndexedHeap, "push", lambda _, item, order: pushed.append(item))
    for seq in range(2, 50):
        ready.push(1_000, seq, delayed=False)

    assert pushed == []
    assert ready.peek() == (1_000, 2)


def test_a_member_elected_late_goes_before_the_younger_ones() -> None:
    ready = in_order(5)
    ready.push(10, 77, delayed=False)

    assert ready.peek() == (10, 77)
    assert drain(ready) == [77, 0, 1, 2, 3, 4]


def test_a_job_removed_and_added_again_counts_once() -> None:
    ready = in_order(3)
    ready.remove(1_000, 2)
    ready.push(1_000, 2, delayed=False)

    assert (len(ready), ready.entries) == (3, 3)
    assert ready.smallest(9) == [(1_000, 0), (1_000, 1), (1_000, 2)]
    assert drain(ready) == [0, 1, 2]


def test_removals_alone_sweep_the_row_be15() -> None:
    ready = in_order(10_000)
    for seq in random.Random(1).sample(range(10_000), 10_000):
        ready.remove(1_000 + seq // 10, seq)
        assert ready.entries <= max(SHORT, 1.25 * len(ready))

    assert len(ready) == 0


def test_taking_jobs_past_buried_stale_ones_sweeps_the_row_be15() -> None:
    ready = in_order(1_000)
    for seq in range(800, 1_000):
        ready.remove(1_000 + seq // 10, seq)
    for expected in range(800):
        assert ready.peek() == (1_000 + expected // 10, expected)
        ready.pop()
        assert ready.entries <= max(SHORT, 1.25 * len(ready))


class ReadyMachine(RuleBasedStateMachine):
    """Against a plain set of (available_at, seq)."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = Ready()
        self.jobs: set[tuple[int, int]] = set()

    @rule(at=st.integers(0, 6), seq=st.integers(0, 9), delayed=st.booleans())
    def push(self, at: int, seq: int, delayed: bool) -> None:
        if all(seq != known for _, known in self.jobs):
            self.ready.push(at, seq, delayed=delayed)
            self.jobs.add((at, seq))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        self.ready.remove(*job)
        self.jobs.discard(job)

    @precondition(lambda self: self.jobs)
    @rule()
    def pop(self) -> None:
        self.ready.pop()
        self.jobs.discard(min(self.jobs))

    @rule(n=st.integers(0, 12))
    def smallest(self, n: int) -> None:
        assert self.ready.smallest(n) == sorted(self.jobs)[:n]

    @invariant()
    def shows_the_first(self) -> None:
        assert self.ready.peek() == min(self.jobs, default=None)
        assert len(self.ready) == len(self.jobs)


TestReadyMachine = ReadyMachine.TestCase
TestReadyMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
