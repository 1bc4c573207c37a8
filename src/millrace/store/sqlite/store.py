"""The SQLite store: every method is one step of the ledger, which runs in the thread of the caller, writer or reader.

Several processes, threads and event loops can use a store at once. Concurrent writes of one process share a commit.
Reads use a separate connection and never wait for a writer.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

from millrace.domain import feed
from millrace.domain.change import Change
from millrace.domain.event import Event
from millrace.domain.export import Exported, ExportPage
from millrace.domain.job import Job, Lease, Spec
from millrace.domain.ledger import Ledger
from millrace.domain.request import (
    EVERYTHING,
    Archived,
    Cancelled,
    Claim,
    Deleted,
    Enqueued,
    EventPage,
    EventSpan,
    Extension,
    JobSelection,
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
from millrace.domain.rules import exporting, importing, operate, replaying, scheduling, upkeep
from millrace.domain.rules.check import check_specs
from millrace.domain.schedule import EVERY_SCHEDULE, DueSchedules, Move, Moved, Schedule, check_moves
from millrace.domain.settings import Limits, QueueSettings, StoreSettings
from millrace.domain.tables import CANCELS
from millrace.store.base import BaseStore
from millrace.store.clock import Clock, system_clock
from millrace.store.protocol import Store, Target, Watch
from millrace.store.sqlite.connection import Io
from millrace.store.sqlite.process import ProcessState
from millrace.store.sqlite.tables import SqliteTables
from millrace.store.sqlite.within import SqliteWithin
from millrace.store.waiters import Waiter

T = TypeVar("T")

SMALL = 8  # jobs; a call for up to so many may run on the thread of the event loop
_BREATH = 0.005  # seconds between a claim and the next check for due jobs: the claimed jobs go first
_SLICE = 5.0  # seconds between two checks of a sleeper for the next due job (see `writer.SOON`)

_DURABILITY = {
    "full": "an answer survives a killed process and a crash of the machine; what was claimed may then wait again",
    "relaxed": "an answered call survives a killed process; a crash of the machine may take the last moments back",
}


class SqliteStore(BaseStore):
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
        self._process = self._new_process()

    @property
    def durability(self) -> str:
        """A sentence that says which crashes an acknowledged call survives."""
        return _DURABILITY[self._level]

    def _new_process(self) -> ProcessState:
        return ProcessState(self.path, self._io, self._clock, self._level, self._salt, shared=self._shared)

    def _here(self) -> ProcessState:
        """Return the state of the store in this process. A forked child gets a new state, because it cannot use its
        parent's.
        """
        if self._process.pid != os.getpid():
            self._process.abandon()
            self._process = self._new_process()
        return self._process

    def _open_here(self) -> ProcessState:
        if self._here().closed:
            self._process = self._new_process()
        return self._process

    async def connect(self) -> None:
        await self._open_here().open()

    async def close(self) -> None:
        process = self._here()
        if not process.closed:
            process.write_on_thread()
        await asyncio.get_running_loop().run_in_executor(None, process.close)

    def close_now(self) -> None:
        self._here().close()

    def for_reading(self) -> Store:
        from millrace.store.sqlite.read_only import ReadOnlySqliteStore

        return ReadOnlySqliteStore(
            self.path, url=self.url, durability=self._level, shared=self._shared, clock=self._clock, io=self._io
        )

    async def now(self) -> int:
        return self._clock()

    async def check(self) -> list[str]:
        """Check the whole file and return the errors that SQLite finds; an empty list if there are none."""
        return await self._here().check()

    # ── producer and consumer ─────────────────────────────────────────────────────────────────

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        return await self._here().write(lambda ledger, now: ledger.enqueue(specs, now), small=len(specs) <= SMALL)

    def enqueue_now(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        return self._here().write_now(lambda ledger, now: ledger.enqueue(specs, now))

    def within(self, connection: object) -> SqliteWithin:
        return SqliteWithin(self._open_here(), connection)

    async def claim(self, request: Claim) -> list[Job]:
        process = self._here()
        jobs = await process.write(
            lambda ledger, now: ledger.claim(request, process.begin_claim(), now),
            durable=False,
            small=min(request.limit, process.last_claim) <= SMALL,
        )
        process.last_claim = len(jobs)
        return jobs

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        for _, change in items:
            check_specs(change.jobs)
        return await self._here().write(lambda ledger, now: ledger.settle(items, now), small=len(items) <= SMALL)

    async def extend(self, extensions: Sequence[Extension]) -> list[Receipt]:
        return await self._here().write(lambda ledger, now: ledger.extend(extensions, now), durable=False)

    async def reclaim(self, request: Reclaim) -> list[Job]:
        process = self._here()
        return await process.write(lambda ledger, now: ledger.reclaim(request, process.claim_id(), now), durable=False)

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        process, loop = self._here(), asyncio.get_running_loop()
        deadline = loop.time() + timeout
        sleeper = await process.fall_asleep(queues, tasks)
        try:
            if process.has_just_looked():
                await sleeper.sleep(min(timeout, _BREATH))
            while not sleeper.woken:
                found, now = await process.read(lambda ledger, now: (ledger.outlook(queues, tasks, now), now))
                process.looked(sleeper, found.held_by)
                left = deadline - loop.time()
                if found.until is not None:
                    left = min(left, (found.until - now) / 1000)
                if left <= 0:
                    return
                await sleeper.sleep(min(left, _SLICE))
                if left <= _SLICE:
                    return
        except asyncio.CancelledError:
            process.pass_on(sleeper)
            raise
        finally:
            process.wake_up(sleeper)

    async def wait_for_cancel(self, worker: str, timeout: float) -> bool:
        process = self._here()
        sleeper = await process.fall_asleep((CANCELS,), frozenset({worker}))
        process.looked(sleeper, frozenset())
        try:
            await sleeper.sleep(timeout)
            return sleeper.woken
        finally:
            process.wake_up(sleeper)

    # ── reader ────────────────────────────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._here().read(lambda ledger, now: ledger.get(ids, now), small=len(ids) <= SMALL)

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
        return await self._here().read_durable(lambda ledger, _: feed.events(ledger.tables, cursor, limit))

    async def events_before(self, cursor: str | None, limit: int) -> tuple[list[tuple[str, Event]], str | None]:
        return await self._here().read_durable(lambda ledger, _: feed.events_before(ledger.tables, cursor, limit))

    async def event_spans(
        self, after: str | int | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        return await self._here().read_durable(
            lambda ledger, _: feed.event_spans(ledger.tables, after, n, limit, until)
        )

    async def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[Sequence[Event]]:
        start, until = feed.span_bounds(span)
        after = start.at
        while after < until.at:
            packed = await self._here().read(_packed(after, until, batch))
            after += len(packed)
            yield packed

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

    async def scan(
        self, partition: Partition, batch: int = 1_000, selection: JobSelection = EVERYTHING
    ) -> AsyncIterator[list[Job]]:
        position, to = operate.partition_bounds(partition)
        after: int | None = position
        while after is not None:
            jobs, after = await self._here().read(_scan(after, to, batch, selection.query))
            if jobs:
                yield jobs

    # ── operator ──────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]:
        return await self._here().write(lambda ledger, now: operate.cancel(ledger, ids, running, now))

    async def replay(self, ids: Sequence[str], children: bool = True) -> list[Replayed]:
        return await self._here().write(lambda ledger, now: replaying.replay(ledger, ids, now, children))

    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]:
        return await self._here().write(lambda ledger, now: operate.archive(ledger, ids, archived, now))

    async def delete(self, ids: Sequence[str]) -> list[Deleted]:
        return await self._here().write(lambda ledger, now: operate.delete(ledger, ids, now))

    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        run = self._here().write if changes else self._here().read
        return await run(lambda ledger, now: operate.control(ledger, target, name, changes, now))

    async def drain(self, queue: str, limit: int = 1_000, lane: int | None = None) -> int:
        return await self._here().write(lambda ledger, now: operate.drain(ledger, queue, limit, now, lane))

    async def obliterate(self, queue: str, limit: int = 1_000) -> int:
        return await self._here().write(lambda ledger, now: operate.obliterate(ledger, queue, limit, now))

    async def maintain(self, limit: int = 1_000) -> Maintained:
        return await self._here().write(lambda ledger, now: upkeep.maintain(ledger, now, limit))

    async def beat(self, info: WorkerInfo, ttl: int) -> None:
        await self._here().write(lambda ledger, now: operate.beat(ledger, info, ttl, now), durable=ttl == 0)

    async def workers(self) -> list[WorkerRecord]:
        return await self._here().read(operate.workers)

    # ── scheduling ────────────────────────────────────────────────────────────────────────────

    async def schedules(self, after: str = "", limit: int | None = None) -> list[Schedule]:
        most = EVERY_SCHEDULE if limit is None else limit
        return await self._here().read(lambda ledger, _: ledger.tables.schedules(after, most))

    async def due_schedules(self, names: Sequence[str], limit: int, skip: int = 0) -> DueSchedules:
        return await self._here().read(lambda ledger, now: scheduling.due_schedules(ledger, names, limit, skip, now))

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        check_moves(moves)
        return await self._here().write(lambda ledger, now: scheduling.advance(ledger, moves, now))

    # ── transfer ──────────────────────────────────────────────────────────────────────────────

    async def export(self, cursor: str | None, limit: int) -> ExportPage:
        return await self._here().read(lambda ledger, _: exporting.export(ledger.tables, cursor, limit))

    async def import_records(self, records: Sequence[Exported], move: str) -> int:
        return await self._here().write(lambda ledger, _: importing.import_records(ledger.tables, records, move))


def _scan(
    after: int, to: int, batch: int, query: Query | None
) -> Callable[[Ledger, int], tuple[list[Job], int | None]]:
    return lambda ledger, now: operate.scan(ledger, after, to, batch, now, query)


def _packed(after: int, until: feed.Cursor, batch: int) -> Callable[[Ledger, int], Sequence[Event]]:
    def look(ledger: Ledger, _now: int) -> Sequence[Event]:
        tables = ledger.tables
        assert isinstance(tables, SqliteTables)
        feed.check_not_trimmed(tables, after)
        found = tables.events.packed(after, min(batch, until.at - after))
        feed.check_span(tables, after + len(found), until, found[-1] if found else None, bool(found))
        return found

    return look


class _Watch:
    """A watch on one job. It is registered when it is created, and again after each wake-up."""

    def __init__(self, process: ProcessState, job_id: str) -> None:
        self._process = process
        self._job_id = job_id
        process.watching[job_id] += 1
        self._waiter: Waiter = process.watchers.register([job_id])

    async def wait(self, timeout: float) -> None:
        await self._waiter.sleep(timeout)
        if self._waiter.woken:
            self._waiter = self._process.watchers.register([self._job_id])

    def close(self) -> None:
        watching: Counter[str] = self._process.watching
        watching[self._job_id] -= 1
        if watching[self._job_id] <= 0:
            del watching[self._job_id]
        self._process.watchers.forget(self._waiter)
