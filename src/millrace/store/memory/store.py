"""The memory store: every method is one step of the ledger under one lock.

There is one lock, not one per shard, because a step may change jobs of several queues (dependencies, chains). Also, the
global interpreter lock would not let several steps run in parallel.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

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
from millrace.store.base import BaseStore
from millrace.store.clock import Clock, system_clock
from millrace.store.forks import register_for_forks
from millrace.store.memory.tables import MemoryTables
from millrace.store.memory.transaction import MemoryTransaction, MemoryWithin, Step, copied, within
from millrace.store.protocol import Target, Watch
from millrace.store.waiters import Sleepers, Waiter, Waiters

MAX_SHARDS = 64


def shard_count(cores: int) -> int:
    """Return the smallest power of two that is at least the number of cores, but not more than 64."""
    return min(MAX_SHARDS, 1 << max(0, cores - 1).bit_length())


class MemoryStore(BaseStore):
    """A store in memory, safe to use from several threads and event loops. Its jobs are lost when the process ends."""

    def __init__(self, url: str = "memory://", *, clock: Clock = system_clock, salt: str | None = None) -> None:
        self.url = url
        self._clock = clock
        self._salt = os.urandom(6).hex() if salt is None else salt
        self._claims = 0
        self._lock = threading.Lock()
        self._tables = MemoryTables(shard_count(os.cpu_count() or 1))
        self._ledger = Ledger(self._tables)
        self._sleepers = Sleepers()
        self._watchers = Waiters()
        register_for_forks(self)

    async def now(self) -> int:
        return self._clock()

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        return self.enqueue_now(specs)

    def enqueue_now(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        with self._lock:
            answers = self._ledger.enqueue(specs, self._clock())
        self._announce()
        return answers

    def close_now(self) -> None:
        """Do nothing: the store has nothing to close."""

    async def claim(self, request: Claim) -> list[Job]:
        with self._lock:
            jobs = self._ledger.claim(request, self._claim_id(), self._clock())
        self._announce()  # the claim may have buried expired jobs and opened other jobs of their lines
        return jobs

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        for _, change in items:
            check_specs(change.jobs)
        with self._lock:
            receipts = self._ledger.settle(items, self._clock())
        self._announce()
        return receipts

    async def extend(self, extensions: Sequence[Extension]) -> list[Receipt]:
        with self._lock:
            return self._ledger.extend(extensions, self._clock())

    async def reclaim(self, request: Reclaim) -> list[Job]:
        with self._lock:
            jobs = self._ledger.reclaim(request, self._claim_id(), self._clock())
        self._announce()
        return jobs

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        sleeper = self._sleepers.register(queues, tasks)
        try:
            with self._lock:
                now = self._clock()
                found = self._ledger.outlook(queues, tasks, now)
            self._sleepers.looked(sleeper, found.held_by)
            if found.until is not None:
                timeout = min(timeout, (found.until - now) / 1000)
            if timeout > 0:
                await sleeper.sleep(timeout)
        except asyncio.CancelledError:
            self._sleepers.pass_on(sleeper)
            raise
        finally:
            self._sleepers.forget(sleeper)

    async def wait_for_cancel(self, worker: str, timeout: float) -> bool:
        return await self._sleepers.cancelled(worker, timeout)

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Watch]:
        watch = _Watch(self._watchers, job_id)
        try:
            yield watch
        finally:
            watch.close()

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        with self._lock:
            return self._ledger.get(ids, self._clock())

    async def find(self, query: Query) -> Page:
        with self._lock:
            return operate.find(self._ledger, query, self._clock())

    async def count(self) -> list[QueueCounts]:
        with self._lock:
            return operate.counts(self._ledger, self._clock())

    async def position(self, job_id: str) -> int | None:
        with self._lock:
            return operate.position(self._ledger, job_id, self._clock())

    async def lanes(self, queue: str) -> list[LaneStatus]:
        with self._lock:
            return operate.lanes(self._ledger, queue)

    async def history(self, job_id: str) -> list[Event]:
        with self._lock:
            return self._ledger.history(job_id)

    async def events(self, cursor: str | None, limit: int) -> EventPage:
        with self._lock:
            return feed.events(self._ledger.tables, cursor, limit)

    async def events_before(self, cursor: str | None, limit: int) -> tuple[list[tuple[str, Event]], str | None]:
        with self._lock:
            return feed.events_before(self._ledger.tables, cursor, limit)

    async def event_spans(
        self, after: str | int | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        with self._lock:
            return feed.event_spans(self._ledger.tables, after, n, limit, until)

    async def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[list[Event]]:
        start, until = feed.span_bounds(span)
        after = start.at
        while after < until.at:
            with self._lock:
                events = feed.span_events(self._ledger.tables, after, until, batch)
            after += len(events)
            yield events

    async def partitions(self, n: int) -> list[Partition]:
        with self._lock:
            return operate.partitions(self._ledger, n)

    async def scan(
        self, partition: Partition, batch: int = 1_000, selection: JobSelection = EVERYTHING
    ) -> AsyncIterator[list[Job]]:
        position, to = operate.partition_bounds(partition)
        after: int | None = position
        while after is not None:
            with self._lock:
                jobs, after = operate.scan(self._ledger, after, to, batch, self._clock(), selection.query)
            if jobs:
                yield jobs

    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]:
        with self._lock:
            answers = operate.cancel(self._ledger, ids, running, self._clock())
        self._announce()
        return answers

    async def replay(self, ids: Sequence[str], children: bool = True) -> list[Replayed]:
        with self._lock:
            answers = replaying.replay(self._ledger, ids, self._clock(), children)
        self._announce()
        return answers

    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]:
        with self._lock:
            return operate.archive(self._ledger, ids, archived, self._clock())

    async def delete(self, ids: Sequence[str]) -> list[Deleted]:
        with self._lock:
            return operate.delete(self._ledger, ids, self._clock())

    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        with self._lock:
            settings = operate.control(self._ledger, target, name, changes, self._clock())
            self._ledger.closed = self._tables.settings().closed
        self._announce()
        return settings

    async def drain(self, queue: str, limit: int = 1_000, lane: int | None = None) -> int:
        with self._lock:
            count = operate.drain(self._ledger, queue, limit, self._clock(), lane)
        self._announce()
        return count

    async def obliterate(self, queue: str, limit: int = 1_000) -> int:
        with self._lock:
            count = operate.obliterate(self._ledger, queue, limit, self._clock())
        self._announce()
        return count

    async def maintain(self, limit: int = 1_000) -> Maintained:
        with self._lock:
            done = upkeep.maintain(self._ledger, self._clock(), limit)
        self._announce()
        return done

    async def beat(self, info: WorkerInfo, ttl: int) -> None:
        with self._lock:
            operate.beat(self._ledger, info, ttl, self._clock())

    async def workers(self) -> list[WorkerRecord]:
        with self._lock:
            return operate.workers(self._ledger, self._clock())

    async def schedules(self, after: str = "", limit: int | None = None) -> list[Schedule]:
        with self._lock:
            return self._tables.schedules(after, EVERY_SCHEDULE if limit is None else limit)

    async def due_schedules(self, names: Sequence[str], limit: int, skip: int = 0) -> DueSchedules:
        with self._lock:
            return scheduling.due_schedules(self._ledger, names, limit, skip, self._clock())

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        check_moves(moves)
        with self._lock:
            answers = scheduling.advance(self._ledger, moves, self._clock())
        self._announce()
        return answers

    # ── transfer ──────────────────────────────────────────────────────────────────────────────

    async def export(self, cursor: str | None, limit: int) -> ExportPage:
        with self._lock:
            return exporting.export(self._tables, cursor, limit)

    async def import_records(self, records: Sequence[Exported], move: str) -> int:
        with self._lock:
            return importing.import_records(self._tables, records, move)

    # ── transactions of callers ───────────────────────────────────────────────────────────────

    def transaction(self, connection: object = None) -> MemoryTransaction:
        """Return a transaction for tests. Pass it as `within`, in place of a database connection."""
        return MemoryTransaction(self, self._clock, connection)

    def within(self, connection: object) -> MemoryWithin:
        return within(self, connection)

    def copied(self) -> Ledger:
        with self._lock:
            ledger = copied(self._tables)
            ledger.closed = self._ledger.closed
            return ledger

    def carry_out(self, steps: Sequence[Step], commit: Callable[[], object] | None) -> None:
        """Apply all steps, and call `commit`, the commit of the caller's own connection.

        If a step or the commit fails, raise its error and apply no step.
        """
        with self._lock:
            now = self._clock()
            if steps:
                trial = copied(self._tables)
                for step in steps:
                    step(trial, now)
            if commit is not None:
                commit()
            for step in steps:
                step(self._ledger, now)
        self._announce()

    # ── forks ─────────────────────────────────────────────────────────────────────────────────

    def before_fork(self) -> None:
        """Take the lock before a fork, so that the child's copy of the jobs contains no incomplete step."""
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # all waiters are in the parent
            self._sleepers, self._watchers = Sleepers(), Waiters()
        self._lock.release()

    def _claim_id(self) -> str:
        self._claims += 1
        return f"{self._salt}-{self._claims:x}"

    def _announce(self) -> None:
        """Wake the waiters for jobs that have become claimable or have finished since the last call."""
        with self._lock:
            opened, ended = self._tables.take_wakeups()
        if opened:
            self._sleepers.wake(opened)
        if ended:
            self._watchers.wake(ended)


class _Watch:
    """A watch on one job. It is registered when it is created, and again after each wake-up."""

    def __init__(self, watchers: Waiters, job_id: str) -> None:
        self._watchers = watchers
        self._job_id = job_id
        self._waiter: Waiter = watchers.register([job_id])

    async def wait(self, timeout: float) -> None:
        await self._waiter.sleep(timeout)
        if self._waiter.woken:
            self._waiter = self._watchers.register([self._job_id])

    def close(self) -> None:
        self._watchers.forget(self._waiter)
