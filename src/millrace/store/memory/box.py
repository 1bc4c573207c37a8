"""What the tables in memory are made of: the box of one queue, a job's card, ordered seqs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from millrace.domain.heap import IndexedHeap
from millrace.domain.tables import KeyHold, Line, QueueRow
from millrace.store.memory.ready import Ready

K = TypeVar("K")
V = TypeVar("V")


class Box:
    """Everything of one queue."""

    __slots__ = (
        "dead",
        "exists",
        "finished",
        "holds",
        "lines",
        "members",
        "outside",
        "ready",
        "row",
        "seqs",
        "unarchived_dead",
    )

    def __init__(self, name: str) -> None:
        self.row = QueueRow(name)
        self.exists = False
        self.ready: dict[tuple[str, int], Ready] = {}
        self.outside: IndexedHeap[int] = IndexedHeap()
        self.lines: dict[str, Line] = {}
        self.members: dict[str, IndexedHeap[int]] = {}
        self.holds: dict[str, KeyHold] = {}
        self.finished: IndexedHeap[int] = IndexedHeap()
        self.dead: IndexedHeap[int] = IndexedHeap()
        self.unarchived_dead: IndexedHeap[int] = IndexedHeap()
        self.seqs = Seqs()


class Seqs:
    """Seqs in order, appended at the end and dropped anywhere; dropped ones are swept out now and then."""

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


class Card(msgspec.Struct, gc=False):
    """Where a job stands in the indexes, to tell what an update changes.

    A struct outside the garbage collector's sight, like jobs and events: with a million of them tracked, the
    collector alone would take a third of the time.
    """

    ready: Ready | None = None
    ready_at: int = 0
    outside: int | None = None
    line: str | None = None
    expires: int | None = None
    lease: int | None = None
    retry: int | None = None
    result: int | None = None
    finished: tuple[IndexedHeap[int], ...] = ()
    finished_key: tuple[int, bool] | None = None


class Due:
    """The heads of one range of ready jobs; a job taken is popped, so a claim leaves nothing stale behind."""

    __slots__ = ("_now", "_ready", "priority", "queue", "task")

    def __init__(self, queue: str, task: str, priority: int, ready: Ready, now: int) -> None:
        self.queue, self.task, self.priority = queue, task, priority
        self._ready, self._now = ready, now

    def peek(self) -> tuple[int, int] | None:
        first = self._ready.peek()
        return first if first is not None and first[0] <= self._now else None

    def advance(self) -> None:
        self._ready.pop()


def drop_from(index: dict[K, dict[V, None]], key: K, value: V) -> None:
    rest = index.get(key)
    if rest is not None:
        rest.pop(value, None)
        if not rest:
            del index[key]


def put(heap: IndexedHeap[int], seq: int, at: int | None) -> None:
    if at is None:
        heap.remove(seq)
    else:
        heap.push(seq, (at, seq))


def put_any(heap: IndexedHeap[tuple[str, str]], item: tuple[str, str], at: int | None) -> None:
    if at is None:
        heap.remove(item)
    else:
        heap.push(item, (at,))
