"""What one process holds of a store: its two threads, its slot for being woken, and who waits in it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from millrace.domain.errors import StoreError
from millrace.domain.ledger import Ledger
from millrace.store.clock import Clock
from millrace.store.forks import tell_of_forks
from millrace.store.sqlite.connection import check
from millrace.store.sqlite.io import Io
from millrace.store.sqlite.lookout import Awaited, Lookout, News
from millrace.store.sqlite.reader import Reader
from millrace.store.sqlite.standoff import bounded, bounded_now, may_wait_for_itself
from millrace.store.sqlite.tables import SqliteTables
from millrace.store.sqlite.wake import Wake, mask_of
from millrace.store.sqlite.writer import Writer
from millrace.store.waiters import Waiter, Waiters

T = TypeVar("T")

FORK_PATIENCE = 5.0  # seconds for the calls in hand; then the fork goes on, and its child is refused the store


class Home:
    def __init__(self, path: str, io: Io, clock: Clock, durability: str, salt: str | None, *, shared: bool) -> None:
        self.pid = os.getpid()
        self.closed = False
        self.rested = False  # nothing is open: a fork carries nothing over
        self.clock = clock
        self._ready = False
        self._opening = False
        self.watchers = Waiters()
        self.watching: Counter[str] = Counter()
        self._path = path
        self._io = io
        self._durability = durability
        self._waiters = Waiters()
        self._wake: Wake | None = None
        self._seen: int | None = None  # how often jobs had become claimable anywhere when a claim last looked
        self._salt = os.urandom(6).hex() if salt is None else salt
        self._claims = itertools.count(1)
        self._writer = Writer(
            path,
            io,
            clock,
            durability=durability,
            shared=shared,
            prepare=self._prepare,
            announce=self._announce,
            enter=self._open_wake,
            leave=self._close_wake,
        )
        self._reader = Reader(path, io, clock)
        self._lookout = Lookout(path, io, self._announce_all)
        tell_of_forks(self)

    @property
    def path(self) -> str:
        return self._path

    @property
    def io(self) -> Io:
        return self._io

    @property
    def ready(self) -> bool:
        """The file has its tables, made or seen by this process."""
        return self._ready

    def write(self, run: Callable[[Ledger, int], T], *, durable: bool = True) -> asyncio.Future[T]:
        """One step of the ledger. One that need not be `durable` outlives the process, but not the machine."""
        if joined := may_wait_for_itself(self):
            return asyncio.ensure_future(bounded(joined, self._writer.submit, run))
        return self._writer.submit(run, durable)

    def write_now(self, run: Callable[[Ledger, int], T]) -> T:
        """The same for a thread without an event loop: it blocks."""
        if joined := may_wait_for_itself(self):
            return bounded_now(joined, self._writer.submit_blocking, run)
        return self._writer.submit_blocking(run).result()

    async def read(self, run: Callable[[Ledger, int], T]) -> T:
        if not self._ready:
            await self.open()
        return await self._reader.submit(run)

    async def read_durable(self, run: Callable[[Ledger, int], T]) -> T:
        """As `read`, for answers by which somebody goes on after a crash of the machine: it must be in them too."""
        if self._durability != "full":
            return await self.read(run)

        def run_and_sync(ledger: Ledger, now: int) -> T:
            answer = run(ledger, now)
            self._io.sync(self._path + "-wal")
            return answer

        return await self.read(run_and_sync)

    async def open(self) -> None:
        """The writer makes the file and its tables, so it goes first."""
        if self._ready and not self.closed:
            return  # nothing to wait for: the caller may hold the lock that the writer would wait for
        await self._writer.submit(lambda _ledger, _now: None)

    def open_now(self) -> None:
        self._writer.submit_blocking(lambda _ledger, _now: None).result()

    async def check(self) -> list[str]:
        return await self.read(
            lambda _ledger, _now: check(self._reader.connection, self._io, self._path, thorough=True)
        )

    def claim_id(self) -> str:
        return f"{self._salt}-{next(self._claims):x}"

    def close(self) -> None:
        self.closed = True
        self._lookout.rest()
        self._reader.close()
        self._writer.close()
        self._close_wake()

    def abandon(self) -> None:
        """In a forked child: leave the parent's handles alone, and never let them be closed from here.

        Nothing was open when the fork happened, or the store cannot be used in this process: closing SQLite's
        handles would let go of locks that the parent believes it holds.
        """
        if self._ready and not self.rested:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            raise StoreError(
                f"{self._path}: this process was forked while its parent had the database open: in the middle of a "
                "call, or by a program that does not tell Python of its forks. SQLite's locks cannot be carried over. "
                "Close the app before the fork, or start processes by spawn instead."
            )
        self.closed = True

    # ── forks ─────────────────────────────────────────────────────────────────────────────────

    def before_fork(self) -> None:
        """Close all that is open. It would not be enough that a child leaves its parent's connections alone: SQLite
        remembers locks in one table for the whole process, so a connection that the child opens would believe in
        locks that its process does not hold."""
        if self.pid != os.getpid():
            return
        self._lookout.rest()
        self.rested = self._reader.rest(FORK_PATIENCE) and self._writer.rest(FORK_PATIENCE)
        if self.rested:
            self._close_wake()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child or self.closed:  # a child opens its own, at first use
            return
        self.rested = False
        self._writer.resume()
        self._reader.resume()
        self._lookout.resume()

    # ── steps in transactions of callers ──────────────────────────────────────────────────────

    def fit_out(self, tables: SqliteTables) -> None:
        tables.watched = self.watching
        tables.reply_to = self._reply_to

    def joined(self, awaited: Awaited) -> None:
        """Tell who waits, as soon as the caller's transaction has committed."""
        if not self._ready and not self._opening:
            self._opening = True
            self._writer.submit_blocking(lambda _ledger, _now: None)  # not waited for: it needs the caller's lock
        if any(awaited.news):
            self._lookout.expect(awaited)

    def _announce_all(self, news: News) -> None:
        self._announce(*news)

    # ── on the writer's thread ────────────────────────────────────────────────────────────────

    def _open_wake(self) -> bool:
        self._wake = Wake(self._path, self._io, self._woken, self._ended)
        if len(self._waiters):
            self._publish()  # who slept through a fork of this process is listed again
        return self._wake.alone

    def _close_wake(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake.close()

    def _prepare(self, tables: SqliteTables) -> None:
        self.fit_out(tables)
        self._ready = True

    def _reply_to(self) -> str | None:
        slot = None if self._wake is None else self._wake.slot()
        return None if slot is None else str(slot)

    def _announce(self, opened: Counter[str], ended: list[str], replies: list[tuple[str, str]]) -> None:
        """Wake who waits for what a commit made claimable or brought to an end: here first, then elsewhere."""
        if opened:
            if self._wake is not None:
                self._wake.stir()
            left = self._waiters.wake(opened)
            if left and self._wake is not None:
                self._wake.wake(left)
        if ended and self.watching:
            self.watchers.wake(dict.fromkeys(ended, 1 << 30))
        if replies and self._wake is not None:
            for slot, job_id in replies:
                self._wake.tell(int(slot), job_id)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────

    def about_to_look(self) -> None:
        """Called by a claim in its transaction, before it looks."""
        self._seen = None if self._wake is None else self._wake.stirs()

    def has_just_looked(self) -> bool:
        """Has nothing become claimable since a claim looked? As far as is known: who is told so should look later."""
        wake = self._wake
        with contextlib.suppress(ValueError):  # closed meanwhile
            return wake is not None and wake.stirs() == self._seen
        return False

    async def fall_asleep(self, queues: Sequence[str]) -> Waiter:
        if not self._ready:
            await self.open()
        waiter = self._waiters.register(queues)
        self._publish()
        return waiter

    def wake_up(self, waiter: Waiter) -> None:
        self._waiters.forget(waiter)
        self._publish()

    def _publish(self) -> None:
        wake = self._wake
        if wake is None or self.closed:
            return
        sleepers, queues = self._waiters.asleep()
        mask = 0
        for queue in queues:
            mask |= mask_of(queue)
        with contextlib.suppress(ValueError):  # closed meanwhile: the next one publishes again
            wake.publish(sleepers, mask)

    def _woken(self, queue: str, jobs: int) -> None:
        """Another process has work for a sleeper of this one; what nobody here takes goes on to the next."""
        left = self._waiters.wake({queue: jobs})
        self._publish()
        if left and self._wake is not None:
            self._wake.wake(left)

    def _ended(self, job_id: str) -> None:
        self.watchers.wake({job_id: 1 << 30})
