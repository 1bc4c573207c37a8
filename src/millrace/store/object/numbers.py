"""Numbers that grow: a job's seq, and the stamp that orders an operation in the feed.

A number is the store's millisecond times 2^20 plus a count. A process that connects takes a writer number of its own,
and gives it back when it closes; it counts in its own block of 256 per millisecond, so no two processes draw the same.
Within a process numbers only grow, also when the clock goes back or the store is opened anew; what was seen of others
lifts them too, so a job that is enqueued because of another one has the higher number, and events of one job are in
order whatever the clocks of those who wrote them.
"""

from __future__ import annotations

import os
import threading

from millrace.domain.errors import StoreError
from millrace.store.forks import hold_over_forks

COUNT = 20  # bits below the millisecond
BLOCK = 8  # of them, those that a writer counts with
WRITERS = 1 << (COUNT - BLOCK)

_shared: dict[str, Numbers] = {}
_lock = threading.Lock()
hold_over_forks(_lock)


class Counting:
    """One row of numbers."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._end = 0  # of the block in use
        self.last = 0

    def seen(self, number: int) -> None:
        if number > self.last:
            with _lock:
                if number > self.last:
                    self.last, self._end = number, 0

    def draw(self, now: int) -> int:
        with _lock:
            if self.last + 1 >= self._end or (now << COUNT) > self.last:
                self._begin_block(max(now, self.last >> COUNT))
            self.last += 1
            return self.last

    def _begin_block(self, milli: int) -> None:
        writer = self._numbers.writer
        if writer is None:
            raise StoreError("this process has not connected to the store, or was forked since; connect() first")
        while True:
            start = (milli << COUNT) | (writer << BLOCK)
            if start > self.last:
                break
            milli += 1
        self._end = start + (1 << BLOCK)
        self.last = start - 1


class Numbers:
    """What all handles of this process on one store draw from."""

    def __init__(self) -> None:
        self.writer: int | None = None
        self.users = 0
        self.seqs = Counting(self)
        self.stamps = Counting(self)

    @classmethod
    def of(cls, place: str) -> Numbers:
        with _lock:
            return _shared.setdefault(place, cls())

    @property
    def high(self) -> int:
        return max(self.seqs.last, self.stamps.last)

    def join(self) -> None:
        with _lock:
            self.users += 1

    def leave(self) -> int | None:
        """The writer number, if nobody of this process needs it any more."""
        with _lock:
            self.users -= 1
            if self.users > 0:
                return None
            writer, self.writer = self.writer, None
            return writer

    def begin(self, writer: int, high: int) -> bool:
        """False when another handle of this process has taken a number meanwhile, which then is everybody's."""
        self.seqs.seen(high)
        self.stamps.seen(high)
        with _lock:
            if self.writer is not None:
                return False
            self.writer = writer
            return True


def _forget_writers() -> None:
    """A child that was forked has its parent's numbers in its memory, but must not draw from them."""
    for numbers in _shared.values():
        numbers.writer, numbers.users = None, 0


os.register_at_fork(after_in_child=_forget_writers)
