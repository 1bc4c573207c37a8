"""Increasing numbers: the seqs of jobs, and the stamps that order operations in the feed.

A number is the store's millisecond times 2^20 plus a counter. A process that writes reserves a random writer number for
a minute (`writers/{number}.json`). Each writer number has a block of 64 numbers per millisecond. The process draws
numbers from this block, and only before its reservation ends. It renews the reservation when it needs later numbers.

A writer number can be taken only if it was given back or its reservation has expired, and the new reservation starts
where the old one ended. So two reservations of one writer number never overlap, and no clock, pause or crash can make
two processes draw the same number.

Within a process, numbers only increase, even if the clock is set back or the store is opened again. A higher number
from another process also raises the next number. So a job that is enqueued because of another job has a higher number,
and the events of one job are in order even if clocks differ.

A process that only reads needs no writer number. Each writer number has its own object, so thousands of short processes
do not wait for each other.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.forks import hold_over_forks
from millrace.store.object.engine.objects import Objects, SeenObject, Swap
from millrace.store.object.engine.values import WriterValue, decode, encode, value_of
from millrace.store.object.keys import Layout, stamp_of

COUNT = 20  # bits below the millisecond
BLOCK = 6  # of these bits, those for a writer's own counter
WRITERS = 1 << (COUNT - BLOCK)
LEAST_STEP_BACK = 500  # milliseconds; estimates of a server's clock differ by less
LEASE = 60_000  # milliseconds
MARGIN = 5_000  # milliseconds after its end before another process may take it: the holder may be renewing it
ASKED = (1, 3, 12, 48)  # how many numbers are tried at once, until one is free

_shared: dict[str, Numbers] = {}
_lock = threading.Lock()
hold_over_forks(_lock)


class NumberNeeded(Exception):
    """Raised when no number can be drawn. Await `hold` and try again.

    The process has no writer number, its reservation has ended, or the clock was set back.
    """


class Holding(msgspec.Struct, frozen=True):
    """A reserved writer number: this process owns the number while `start` <= time < `until`, in milliseconds."""

    writer: int
    start: int
    until: int
    seen: SeenObject  # its record, as it was written
    at: int  # the store's clock when it was taken or renewed
    steady: int = 0  # a monotonic clock at the same moment
    step_back: int = LEAST_STEP_BACK  # the clock may go back by this much; no reader of the feed is further


class Counting:
    """One sequence of numbers: the seqs or the stamps."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._end = 0  # end of the current block
        self.last = 0

    def seen(self, number: int) -> None:
        if number > self.last:
            with _lock:
                if number > self.last:
                    self.last, self._end = number, 0

    def restart(self) -> None:
        self._end = 0

    def draw(self, now: int) -> int:
        with _lock:
            held = self._numbers.usable(now)
            if self.last + 1 >= self._end or (now << COUNT) > self.last:
                self._begin_block(held, max(now, self.last >> COUNT))
            self.last += 1
            return self.last

    def _begin_block(self, held: Holding, milli: int) -> None:
        milli = max(milli, held.start)
        start = (milli << COUNT) | (held.writer << BLOCK)
        if start <= self.last:
            milli += 1
            start += 1 << COUNT
        if milli >= held.until:
            raise NumberNeeded
        self._end = start + (1 << BLOCK)
        self.last = start - 1


class Numbers:
    """The source of seqs and stamps. All handles of one store in this process share it."""

    def __init__(self) -> None:
        self.held: Holding | None = None
        self.users = 0
        self.seqs = Counting(self)
        self.stamps = Counting(self)
        self.steady: Callable[[], int] | None = None  # a monotonic clock; None: there is none
        self._latest = 0  # the last known time of the store's clock

    @classmethod
    def of(cls, place: str) -> Numbers:
        with _lock:
            return _shared.setdefault(place, cls())

    @property
    def high(self) -> int:
        return max(self.seqs.last, self.stamps.last)

    def usable(self, now: int) -> Holding:
        """Return the writer number that this process holds.

        Raise NumberNeeded if it holds none, or if the clock was set back: readers of the feed may already be ahead of
        the clock, and other processes may have drawn numbers that this process never saw. A clock that was set back is
        detected by comparing it with the last known time and with a monotonic clock.
        """
        held = self.held
        if held is None:
            raise NumberNeeded
        expected = self._latest
        if self.steady is not None:
            expected = max(expected, held.at + self.steady() - held.steady)
        if expected - now > held.step_back:
            raise NumberNeeded
        self._latest = max(self._latest, now)
        return held

    def join(self) -> None:
        with _lock:
            self.users += 1

    def leave(self) -> Holding | None:
        """Unregister one handle. Return the writer number to give back; None if this process has other handles."""
        with _lock:
            self.users -= 1
            if self.users > 0:
                return None
            return self._let_go()

    def begin(self, held: Holding, high: int) -> None:
        """From now on, draw numbers with this writer number, and only numbers above `high`."""
        self.seqs.seen(high)
        self.stamps.seen(high)
        with _lock:
            if self.held is None or self.held.writer != held.writer:
                self.seqs.restart()
                self.stamps.restart()
            self.held, self._latest = held, held.at

    def forget(self) -> None:
        self.users = 0
        self._let_go()

    def _let_go(self) -> Holding | None:
        held, self.held = self.held, None
        self.seqs.restart()
        self.stamps.restart()
        return held


def _forget_writers() -> None:
    """Forget all writer numbers. Called in a forked child, which must not draw from its parent's numbers."""
    for numbers in _shared.values():
        numbers.forget()


os.register_at_fork(after_in_child=_forget_writers)


# reservations of writer numbers


class NoFreeWriter(StoreError):
    """All writer numbers that were tried are held by other processes."""

    def __init__(self, url: str, looked_at: int) -> None:
        super().__init__(
            f"{url}: no writer number is free: all {looked_at} that were tried, of {WRITERS:,}, are held by other "
            f"processes. A process that ends without closing the store keeps its number for {LEASE // 1000} s more: "
            "close the app (`async with app`, or `await app.close()`) in short-lived processes, or start fewer of them "
            "a minute, then try again."
        )


async def hold(objects: Objects, numbers: Numbers, now: int, feed_delay: int) -> None:
    """Renew this process's writer number, or take a new one, so that numbers can be drawn.

    New numbers are higher than all stamps in the feed. Readers may have reached the end of the feed even if the clock
    was set back since.
    """
    held = numbers.held
    steady = 0 if numbers.steady is None else numbers.steady()
    high = max(numbers.high, await _end_of_feed(objects, now))
    start = max(now, high >> COUNT)
    written = None if held is None else await _written(objects, held.seen, start + LEASE)
    if held is not None and written is not None:
        writer, begun = held.writer, held.start
    elif numbers.held is not held:
        return  # another handle of this process has done it
    else:
        writer, begun, written = await _taken(objects, now, start)
    until = decode(written.value or b"", WriterValue).until
    numbers.begin(Holding(writer, begun, until, written, now, steady, max(LEAST_STEP_BACK, feed_delay // 4)), high)


async def give_back(objects: Objects, held: Holding, high: int) -> None:
    """Mark the writer number as free, so that another process can take it before the reservation ends."""
    until = max(held.start, (high >> COUNT) + 1)
    await _written(objects, held.seen, until, free=True)


async def _taken(objects: Objects, now: int, start: int) -> tuple[int, int, SeenObject]:
    """Take a free writer number. Return it, the millisecond in which the new reservation starts, and its record."""
    candidates = random.sample(range(WRITERS), min(WRITERS, sum(ASKED)))
    looked_at = 0
    for many in ASKED:
        some = candidates[looked_at : looked_at + many]
        looked_at += len(some)
        for writer, begun, seen in _free(some, await objects.read([Layout.writer(number) for number in some]), now):
            first = max(begun, start)
            written = await _written(objects, seen, first + LEASE)
            if written is not None:
                return writer, begun, written
    raise NoFreeWriter(objects.blobs.url, len(candidates))


def _free(numbers: Sequence[int], records: Sequence[SeenObject], now: int) -> list[tuple[int, int, SeenObject]]:
    """Return the writer numbers that can be taken, as tuples (number, millisecond from which it is free, record)."""
    free = []
    for number, seen in zip(numbers, records, strict=True):
        kept = value_of(seen, WriterValue) or WriterValue(0, True)
        if kept.free or kept.until + MARGIN <= now:
            free.append((number, kept.until, seen))
    return free


async def _written(objects: Objects, seen: SeenObject, until: int, *, free: bool = False) -> SeenObject | None:
    """Write the record of a writer number with a new end of its reservation, and return the new record.

    Return None if another process has changed the record meanwhile.
    """
    body = encode(WriterValue(until, free))
    committed = await objects.commit([Swap(seen, body)])
    return None if committed.lost else SeenObject(seen.key, committed.tags[seen.key], body)


async def _end_of_feed(objects: Objects, now: int) -> int:
    """Return the highest stamp in the feed that is ahead of the clock; 0 if there is none.

    Such a stamp was drawn before the clock was set back.
    """
    high = 0
    async for page in objects.blobs.pages("feed/", Layout.feed(now << COUNT)):
        if page.entries:
            high = stamp_of(page.entries[-1].key)
    return high
