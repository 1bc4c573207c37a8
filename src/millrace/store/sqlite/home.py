"""What one process holds of a store: its two threads, its slot for being woken, and who waits in it."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from millrace.domain.ledger import Ledger
from millrace.store.clock import Clock
from millrace.store.sqlite.connection import check
from millrace.store.sqlite.io import Io
from millrace.store.sqlite.reader import Reader
from millrace.store.sqlite.tables import SqliteTables
from millrace.store.sqlite.wake import Wake, mask_of
from millrace.store.sqlite.writer import Writer
from millrace.store.waiters import Waiter, Waiters

T = TypeVar("T")


class Home:
    def __init__(self, path: str, io: Io, clock: Clock, durability: str, salt: str | None) -> None:
        self.pid = os.getpid()
        self.closed = False
        self._ready = False
        self.watchers = Waiters()
        self.watching: Counter[str] = Counter()
        self._path = path
        self._io = io
        self._waiters = Waiters()
        self._wake: Wake | None = None
        self._salt = os.urandom(6).hex() if salt is None else salt
        self._claims = itertools.count(1)
        self._writer = Writer(
            path,
            io,
            clock,
            durability=durability,
            prepare=self._prepare,
            announce=self._announce,
            enter=self._open_wake,
            leave=self._close_wake,
        )
        self._reader = Reader(path, io, clock)

    def write(self, run: Callable[[Ledger, int], T]) -> asyncio.Future[T]:
        return self._writer.submit(run)

    async def read(self, run: Callable[[Ledger, int], T]) -> T:
        if not self._ready:
            await self.open()
        return await self._reader.submit(run)

    async def open(self) -> None:
        """The writer makes the file and its tables, so it goes first."""
        await self._writer.submit(lambda _ledger, _now: None)

    async def check(self) -> list[str]:
        return await self.read(
            lambda _ledger, _now: check(self._reader.connection, self._io, self._path, thorough=True)
        )

    def claim_id(self) -> str:
        return f"{self._salt}-{next(self._claims):x}"

    def close(self) -> None:
        self.closed = True
        self._reader.close()
        self._writer.close()
        self._close_wake()

    def abandon(self) -> None:
        """In a forked child: leave the parent's handles alone, and never let them be closed from here.

        Closing SQLite's would let go of locks that the parent believes it holds.
        """
        self.closed = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    # ── on the writer's thread ────────────────────────────────────────────────────────────────

    def _open_wake(self) -> bool:
        self._wake = Wake(self._path, self._io, self._woken, self._ended)
        return self._wake.alone

    def _close_wake(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake.close()

    def _prepare(self, tables: SqliteTables) -> None:
        tables.watched = self.watching
        tables.reply_to = self._reply_to
        self._ready = True

    def _reply_to(self) -> str | None:
        slot = None if self._wake is None else self._wake.slot()
        return None if slot is None else str(slot)

    def _announce(self, opened: Counter[str], ended: list[str], replies: list[tuple[str, str]]) -> None:
        """Wake who waits for what a commit made claimable or brought to an end: here first, then elsewhere."""
        if opened:
            left = self._waiters.wake(opened)
            if left and self._wake is not None:
                self._wake.wake(left)
        if ended and self.watching:
            self.watchers.wake(dict.fromkeys(ended, 1 << 30))
        if replies and self._wake is not None:
            for slot, job_id in replies:
                self._wake.tell(int(slot), job_id)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────

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
        if self._wake is None or self.closed:
            return
        sleepers, queues = self._waiters.asleep()
        mask = 0
        for queue in queues:
            mask |= mask_of(queue)
        self._wake.publish(sleepers, mask)

    def _woken(self, queue: str, jobs: int) -> None:
        """Another process has work for a sleeper of this one; what nobody here takes goes on to the next."""
        left = self._waiters.wake({queue: jobs})
        self._publish()
        if left and self._wake is not None:
            self._wake.wake(left)

    def _ended(self, job_id: str) -> None:
        self.watchers.wake({job_id: 1 << 30})
