"""The memory store: every method is one step of the ledger under one lock.

One lock, not one per shard: a step may touch jobs of several queues (dependencies, chains), and under the
interpreter's own lock several would not run side by side anyway.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

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
from millrace.store.forks import tell_of_forks
from millrace.store.memory.tables import MemoryTables
from millrace.store.memory.transaction import MemoryTransaction, MemoryWithin, Step, copied, within
from millrace.store.protocol import Target, Watch
from millrace.store.waiters import Waiter, Waiters

MAX_SHARDS = 64


def shard_count(cores: int) -> int:
    """A power of two for the cores there are, at most 64 (E-02)."""
    return min(MAX_SHARDS, 1 << max(0, cores - 1).bit_length())


class MemoryStore:
    """Correct from several threads and event loops; keeps nothing beyond its process."""

    ids: Literal["sorted", "random"] = "sorted"
    steps_overlap = False

    def __init__(self, url: str = "memory://", *, clock: Clock = system_clock, salt: str | None = None) -> None:
        self.url = url
        self._clock = clock
        self._salt = os.urandom(6).hex() if salt is None else salt
        self._claims = 0
        self._lock = threading.Lock()
        self._tables = MemoryTables(shard_count(os.cpu_count() or 1))
        self._ledger = Ledger(self._tables)
        self._waiters = Waiters()
        self._watchers = Waiters()
        tell_of_forks(self)

    async def connect(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close; the jobs stay as long as the object does."""

    def beside(self) -> MemoryStore:
        return self

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
        """Nothing to close."""

    async def claim(self, request: Claim) -> list[Job]:
        with self._lock:
            jobs = self._ledger.claim(request, self._claim_id(), self._clock())
        self._announce()  # it may have buried what had expired, and opened lines
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
        waiter = self._waiters.register(queues)
        try:
            with self._lock:
                now = self._clock()
                due = self._ledger.next_due(queues, tasks, now)
            if due is not None:
                timeout = min(timeout, (due - now) / 1000)
            if timeout > 0:
                await waiter.sleep(timeout)
        finally:
            self._waiters.forget(waiter)

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
            return operate.events(self._ledger, cursor, limit)

    async def event_spans(
        self, after: str | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        with self._lock:
            return operate.event_spans(self._ledger, after, n, limit, until)

    async def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[list[Event]]:
        after, until = operate.span_bounds(span)
        while True:
            with self._lock:
                events = operate.span_events(self._ledger, after, until, batch)
            if not events:
                return
            after += len(events)
            yield events

    async def cursor_before(self, at: int) -> str:
        with self._lock:
            return operate.cursor_before(self._ledger, at)

    async def partitions(self, n: int) -> list[Partition]:
        with self._lock:
            return operate.partitions(self._ledger, n)

    async def scan(self, partition: Partition, batch: int = 1_000) -> AsyncIterator[list[Job]]:
        after, to = operate.partition_bounds(partition)
        while True:
            with self._lock:
                jobs = operate.scan(self._ledger, after, to, batch, self._clock())
            if not jobs:
                return
            after = jobs[-1].seq
            yield jobs

    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]:
        with self._lock:
            answers = operate.cancel(self._ledger, ids, running, self._clock())
        self._announce()
        return answers

    async def replay(self, ids: Sequence[str]) -> list[Replayed]:
        with self._lock:
            answers = operate.replay(self._ledger, ids, self._clock())
        self._announce()
        return answers

    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]:
        with self._lock:
            return operate.archive(self._ledger, ids, archived, self._clock())

    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        with self._lock:
            settings = operate.control(self._ledger, target, name, changes, self._clock())
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

    async def leave(self, worker_id: str) -> None:
        with self._lock:
            self._tables.drop_worker(worker_id)

    async def workers(self) -> list[WorkerRecord]:
        with self._lock:
            return operate.workers(self._ledger, self._clock())

    async def schedules(self) -> list[Schedule]:
        with self._lock:
            return self._tables.schedules()

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        check_moves(moves)
        with self._lock:
            answers = scheduling.advance(self._ledger, moves, self._clock())
        self._announce()
        return answers

    # ── transactions of callers ───────────────────────────────────────────────────────────────

    def transaction(self, connection: object = None) -> MemoryTransaction:
        """Stands in, in tests, for the connection that code under test enqueues `within`."""
        return MemoryTransaction(self, self._clock, connection)

    def within(self, connection: object) -> MemoryWithin:
        return within(self, connection)

    def copied(self) -> Ledger:
        with self._lock:
            return copied(self._tables)

    def carry_out(self, steps: Sequence[Step], commit: Callable[[], object] | None) -> None:
        """All steps and the caller's own commit, or none of it."""
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
        """No step is half done at the fork: the child has a whole copy, and goes its own way from there."""
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:  # who waits, waits in the parent
            self._waiters, self._watchers = Waiters(), Waiters()
        self._lock.release()

    def _claim_id(self) -> str:
        self._claims += 1
        return f"{self._salt}-{self._claims:x}"

    def _announce(self) -> None:
        """Wake who waits for what this step made claimable or brought to an end."""
        with self._lock:
            opened, ended = self._tables.take_news()
        if opened:
            self._waiters.wake(opened)
        if ended:
            self._watchers.wake(dict.fromkeys(ended, 1 << 30))


class _Watch:
    """Registered from the moment it exists; registers anew before each further wait."""

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
