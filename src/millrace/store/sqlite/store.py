"""The SQLite store: every method is one step of the ledger, run by the writer's thread or by the reader's.

Correct from several processes, threads and event loops at once. Writes of all callers of a process share commits;
reads go by a connection of their own and never wait for a writer.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

from millrace.domain import operate, scheduling, upkeep
from millrace.domain.change import Change
from millrace.domain.check import check_specs
from millrace.domain.event import Event
from millrace.domain.job import Job, Lease, Spec
from millrace.domain.ledger import Ledger
from millrace.domain.request import (
    Archived,
    Cancelled,
    Claim,
    Enqueued,
    EventPage,
    EventSpan,
    Extension,
    LaneStatus,
    Maintained,
    Page,
    Partition,
    Query,
    QueueCounts,
    Receipt,
    Reclaim,
    Replayed,
    WorkerInfo,
    WorkerRecord,
)
from millrace.domain.schedule import Move, Moved, Schedule, check_moves
from millrace.domain.settings import Limits, QueueSettings, StoreSettings
from millrace.store.clock import Clock, system_clock
from millrace.store.protocol import Target, Watch
from millrace.store.sqlite.history import History, unpacked
from millrace.store.sqlite.home import Home
from millrace.store.sqlite.io import Io
from millrace.store.sqlite.within import SqliteWithin
from millrace.store.waiters import Waiter

T = TypeVar("T")

_BREATH = 0.005  # seconds between a claim and the look for what is due next: what was claimed goes first
_SLICE = 5.0  # seconds; how long a sleeper goes without looking when the next job is due (see writer.SOON)

_DURABILITY = {
    "full": "an answer survives a killed process and a crash of the machine; what was claimed may then wait again",
    "relaxed": "an answered call survives a killed process; a crash of the machine may take the last moments back",
}


class SqliteStore:
    ids: Literal["sorted", "random"] = "sorted"
    steps_overlap = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        url: str | None = None,
        durability: Literal["full", "relaxed"] = "full",
        shared: bool = False,
        clock: Clock = system_clock,
        salt: str | None = None,
        io: Io | None = None,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.url = f"sqlite:///{self.path}" if url is None else url
        self._level = durability
        self._shared = shared
        self._clock = clock
        self._salt = salt
        self._io = Io() if io is None else io
        self._home = self._new_home()

    @property
    def durability(self) -> str:
        """What an answer survives, in words."""
        return _DURABILITY[self._level]

    def _new_home(self) -> Home:
        return Home(self.path, self._io, self._clock, self._level, self._salt, shared=self._shared)

    def _here(self) -> Home:
        """This process's threads and connections; a forked child must not touch its parent's."""
        if self._home.pid != os.getpid():
            self._home.abandon()
            self._home = self._new_home()
        return self._home

    def _open_here(self) -> Home:
        if self._here().closed:
            self._home = self._new_home()
        return self._home

    async def connect(self) -> None:
        await self._open_here().open()

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._here().close)

    def close_now(self) -> None:
        self._here().close()

    def beside(self) -> SqliteStore:
        return self

    async def now(self) -> int:
        return self._clock()

    async def check(self) -> list[str]:
        """Look through the whole file; what is wrong with it, in SQLite's words, or an empty list."""
        return await self._here().check()

    # ── producer and consumer ─────────────────────────────────────────────────────────────────

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        return await self._here().write(lambda ledger, now: ledger.enqueue(specs, now))

    def enqueue_now(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        return self._here().write_now(lambda ledger, now: ledger.enqueue(specs, now))

    def within(self, connection: object) -> SqliteWithin:
        return SqliteWithin(self._open_here(), connection)

    async def claim(self, request: Claim) -> list[Job]:
        home = self._here()

        def look(ledger: Ledger, now: int) -> list[Job]:
            home.about_to_look()
            return ledger.claim(request, home.claim_id(), now)

        return await home.write(look, durable=False)

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        for _, change in items:
            check_specs(change.jobs)
        return await self._here().write(lambda ledger, now: ledger.settle(items, now))

    async def extend(self, extensions: Sequence[Extension]) -> list[Receipt]:
        return await self._here().write(lambda ledger, now: ledger.extend(extensions, now), durable=False)

    async def reclaim(self, request: Reclaim) -> list[Job]:
        home = self._here()
        return await home.write(lambda ledger, now: ledger.reclaim(request, home.claim_id(), now), durable=False)

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        home, loop = self._here(), asyncio.get_running_loop()
        deadline = loop.time() + timeout
        waiter = await home.fall_asleep(queues)
        try:
            if home.has_just_looked():
                await waiter.sleep(min(timeout, _BREATH))
            while not waiter.woken:
                due, now = await home.read(lambda ledger, now: (ledger.next_due(queues, tasks, now), now))
                left = deadline - loop.time()
                if due is not None:
                    left = min(left, (due - now) / 1000)
                if left <= 0:
                    return
                await waiter.sleep(min(left, _SLICE))
                if left <= _SLICE:
                    return
        finally:
            home.wake_up(waiter)

    # ── reader ────────────────────────────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._here().read(lambda ledger, now: ledger.get(ids, now))

    async def find(self, query: Query) -> Page:
        return await self._here().read(lambda ledger, now: operate.find(ledger, query, now))

    async def count(self) -> list[QueueCounts]:
        return await self._here().read(operate.counts)

    async def position(self, job_id: str) -> int | None:
        return await self._here().read(lambda ledger, now: operate.position(ledger, job_id, now))

    async def lanes(self, queue: str) -> list[LaneStatus]:
        return await self._here().read(lambda ledger, _: operate.lanes(ledger, queue))

    async def history(self, job_id: str) -> list[Event]:
        return await self._here().read(lambda ledger, _: ledger.history(job_id))

    async def events(self, cursor: str | None, limit: int) -> EventPage:
        return await self._here().read_durable(lambda ledger, _: operate.events(ledger, cursor, limit))

    async def event_spans(
        self, after: str | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        return await self._here().read_durable(lambda ledger, _: operate.event_spans(ledger, after, n, limit, until))

    async def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[list[Event]]:
        async for packed in self.scan_raw_events(span, batch):
            yield list(map(unpacked, packed))

    async def scan_raw_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[Sequence[Event]]:
        after, until = operate.span_bounds(span)
        while after < until:
            packed = await self._here().read(_packed(after, until, batch))
            after += len(packed)
            yield packed

    async def cursor_before(self, at: int) -> str:
        return await self._here().read(lambda ledger, _: operate.cursor_before(ledger, at))

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Watch]:
        await self._here().open()
        watch = _Watch(self._here(), job_id)
        try:
            yield watch
        finally:
            watch.close()

    async def partitions(self, n: int) -> list[Partition]:
        return await self._here().read(lambda ledger, _: operate.partitions(ledger, n))

    async def scan(self, partition: Partition, batch: int = 1_000) -> AsyncIterator[list[Job]]:
        after, to = operate.partition_bounds(partition)
        while jobs := await self._here().read(_scan(after, to, batch)):
            after = jobs[-1].seq
            yield jobs

    # ── operator ──────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]:
        return await self._here().write(lambda ledger, now: operate.cancel(ledger, ids, running, now))

    async def replay(self, ids: Sequence[str]) -> list[Replayed]:
        return await self._here().write(lambda ledger, now: operate.replay(ledger, ids, now))

    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]:
        return await self._here().write(lambda ledger, now: operate.archive(ledger, ids, archived, now))

    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        return await self._here().write(lambda ledger, now: operate.control(ledger, target, name, changes, now))

    async def drain(self, queue: str, limit: int = 1_000, lane: int | None = None) -> int:
        return await self._here().write(lambda ledger, now: operate.drain(ledger, queue, limit, now, lane))

    async def obliterate(self, queue: str, limit: int = 1_000) -> int:
        return await self._here().write(lambda ledger, now: operate.obliterate(ledger, queue, limit, now))

    async def maintain(self, limit: int = 1_000) -> Maintained:
        return await self._here().write(lambda ledger, now: upkeep.maintain(ledger, now, limit))

    async def beat(self, info: WorkerInfo, ttl: int) -> None:
        await self._here().write(lambda ledger, now: operate.beat(ledger, info, ttl, now), durable=False)

    async def leave(self, worker_id: str) -> None:
        await self._here().write(lambda ledger, _: ledger.tables.drop_worker(worker_id))

    async def workers(self) -> list[WorkerRecord]:
        return await self._here().read(operate.workers)

    # ── scheduling ────────────────────────────────────────────────────────────────────────────

    async def schedules(self) -> list[Schedule]:
        return await self._here().read(lambda ledger, _: ledger.tables.schedules())

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        check_moves(moves)
        return await self._here().write(lambda ledger, now: scheduling.advance(ledger, moves, now))


def _scan(after: int, to: int, batch: int) -> Callable[[Ledger, int], list[Job]]:
    return lambda ledger, now: operate.scan(ledger, after, to, batch, now)


def _packed(after: int, until: int, batch: int) -> Callable[[Ledger, int], Sequence[Event]]:
    def look(ledger: Ledger, _now: int) -> Sequence[Event]:
        operate.check_not_trimmed(ledger, after)
        tables = ledger.tables
        assert isinstance(tables, History)
        return tables.packed(after, min(batch, until - after))

    return look


class _Watch:
    """Registered from the moment it exists; registers anew before each further wait."""

    def __init__(self, home: Home, job_id: str) -> None:
        self._home = home
        self._job_id = job_id
        home.watching[job_id] += 1
        self._waiter: Waiter = home.watchers.register([job_id])

    async def wait(self, timeout: float) -> None:
        await self._waiter.sleep(timeout)
        if self._waiter.woken:
            self._waiter = self._home.watchers.register([self._job_id])

    def close(self) -> None:
        watching: Counter[str] = self._home.watching
        watching[self._job_id] -= 1
        if watching[self._job_id] <= 0:
            del watching[self._job_id]
        self._home.watchers.forget(self._waiter)
