"""Fault injection: a store whose calls fail before or after their effect, are delayed, or are executed twice.

An error after the effect simulates a lost reply: the store has made the change, but the caller does not know this. Only
a client whose calls are idempotent handles it correctly. A plan is a function that selects the fault for each call.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Any, Literal, TypeVar

from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.event import Event
from millrace.domain.export import Exported, ExportPage
from millrace.domain.job import Job, Lease, Spec
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
from millrace.domain.schedule import DueSchedules, Move, Moved, Schedule
from millrace.domain.settings import Limits, QueueSettings, StoreSettings
from millrace.store.base import BaseStore
from millrace.store.protocol import Store, Target, Watch

T = TypeVar("T")
F = TypeVar("F")
Plan = Callable[[str, int], "Fault | None"]  # (method, number of this call, from 1) → the fault, or None


class Fault(StrEnum):
    BEFORE = "before"  # an error, and nothing was done
    AFTER = "after"  # it was done, but the reply is lost
    DELAY = "delay"
    TWICE = "twice"  # the request runs twice, and the second reply is returned


class InjectedFault(StoreError):
    """The error that a `FaultyStore` raises for a planned fault."""

    def __init__(self, method: str, number: int, fault: Fault) -> None:
        self.method, self.number, self.fault = method, number, fault
        super().__init__(f"injected fault: {method}, call {number}, fails {fault.value} its effect")


def never(method: str, number: int) -> Fault | None:
    """Return None for every call: a plan without faults."""
    return None


def scripted(*faults: tuple[str, int, Fault]) -> Plan:
    """Return a plan with exactly these faults. Each is a method, the number of the call and the fault:
    `scripted(("settle", 2, Fault.AFTER))`.
    """
    script = {(method, number): fault for method, number, fault in faults}
    return lambda method, number: script.get((method, number))


def drawn(draw: float, chances: Mapping[F, float]) -> F | None:
    """Return the fault that the random number `draw`, between 0 and 1, selects; None for no fault.

    `chances` maps each fault to its probability. With the remaining probability, there is no fault.
    """
    for fault, share in chances.items():
        draw -= share
        if draw < 0:
            return fault
    return None


def seeded(seed: int, chances: Mapping[Fault, float], methods: frozenset[str] | None = None) -> Plan:
    """Return a plan with random faults. `chances` maps each fault to its probability. The same seed gives the same
    faults.

    If `methods` is given, only calls of these methods fail.
    """
    chance = random.Random(seed)

    def plan(method: str, number: int) -> Fault | None:
        if methods is not None and method not in methods:
            return None
        return drawn(chance.random(), chances)

    return plan


class FaultyStore:
    """Wraps a store and injects the faults of a plan. `calls` counts the calls by method; `faults` counts the injected
    faults by kind.
    """

    def __init__(self, store: Store, plan: Plan = never, *, delay: float = 0.001) -> None:
        self.store = store
        self.plan = plan
        self.delay = delay
        self.calls: Counter[str] = Counter()
        self.faults: Counter[Fault] = Counter()
        self.url = store.url
        self.ids: Literal["sorted", "random"] = store.ids
        self.concurrent_writes = store.concurrent_writes
        self.small_claims = store.small_claims
        self.closes_after = store.closes_after

    async def _call(self, method: str, action: Callable[[], Awaitable[T]]) -> T:
        self.calls[method] += 1
        number = self.calls[method]
        fault = self.plan(method, number)
        if fault is None:
            return await action()
        self.faults[fault] += 1
        if fault is Fault.BEFORE:
            raise InjectedFault(method, number, fault)
        if fault is Fault.DELAY:
            await asyncio.sleep(self.delay)
        answer = await action()
        if fault is Fault.AFTER:
            raise InjectedFault(method, number, fault)
        return await action() if fault is Fault.TWICE else answer

    async def connect(self) -> None:
        await self.store.connect()

    async def close(self) -> None:
        await self.store.close()

    def for_loop(self) -> Store:
        other = self.store.for_loop()
        return self if other is self.store else FaultyStore(other, self.plan, delay=self.delay)

    def for_reading(self) -> Store:
        return FaultyStore(self.store.for_reading(), self.plan, delay=self.delay)

    async def now(self) -> int:
        return await self.store.now()

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        return await self._call("enqueue", lambda: self.store.enqueue(specs))

    enqueue_behind = BaseStore.enqueue_behind

    async def claim(self, request: Claim) -> list[Job]:
        return await self._call("claim", lambda: self.store.claim(request))

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        return await self._call("settle", lambda: self.store.settle(items))

    async def extend(self, extensions: Sequence[Extension]) -> list[Receipt]:
        return await self._call("extend", lambda: self.store.extend(extensions))

    async def reclaim(self, request: Reclaim) -> list[Job]:
        return await self._call("reclaim", lambda: self.store.reclaim(request))

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        await self._call("wait", lambda: self.store.wait(queues, tasks, timeout))

    async def wait_for_cancel(self, worker: str, timeout: float) -> bool:
        return await self._call("wait_for_cancel", lambda: self.store.wait_for_cancel(worker, timeout))

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._call("get", lambda: self.store.get(ids))

    async def find(self, query: Query) -> Page:
        return await self._call("find", lambda: self.store.find(query))

    async def count(self) -> list[QueueCounts]:
        return await self._call("count", self.store.count)

    async def position(self, job_id: str) -> int | None:
        return await self._call("position", lambda: self.store.position(job_id))

    async def lanes(self, queue: str) -> list[LaneStatus]:
        return await self._call("lanes", lambda: self.store.lanes(queue))

    async def history(self, job_id: str) -> list[Event]:
        return await self._call("history", lambda: self.store.history(job_id))

    async def events(self, cursor: str | None, limit: int) -> EventPage:
        return await self._call("events", lambda: self.store.events(cursor, limit))

    async def events_before(self, cursor: str | None, limit: int) -> tuple[list[tuple[str, Event]], str | None]:
        return await self._call("events_before", lambda: self.store.events_before(cursor, limit))

    async def event_spans(
        self, after: str | int | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        return await self._call("event_spans", lambda: self.store.event_spans(after, n, limit, until))

    async def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[Sequence[Event]]:
        async for events in self.store.scan_events(span, batch):
            yield await self._call("scan_events", lambda events=events: _returned(events))  # type: ignore[misc]

    def watch(self, job_id: str) -> AbstractAsyncContextManager[Watch]:
        self.calls["watch"] += 1  # notifications are hints; callers poll anyway
        return self.store.watch(job_id)

    async def partitions(self, n: int) -> list[Partition]:
        return await self._call("partitions", lambda: self.store.partitions(n))

    async def scan(
        self, partition: Partition, batch: int = 1_000, selection: JobSelection = EVERYTHING
    ) -> AsyncIterator[list[Job]]:
        async for jobs in self.store.scan(partition, batch, selection):
            yield await self._call("scan", lambda jobs=jobs: _returned(jobs))  # type: ignore[misc]

    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]:
        return await self._call("cancel", lambda: self.store.cancel(ids, running))

    async def replay(self, ids: Sequence[str], children: bool = True) -> list[Replayed]:
        return await self._call("replay", lambda: self.store.replay(ids, children))

    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]:
        return await self._call("archive", lambda: self.store.archive(ids, archived))

    async def delete(self, ids: Sequence[str]) -> list[Deleted]:
        return await self._call("delete", lambda: self.store.delete(ids))

    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        return await self._call("control", lambda: self.store.control(target, name, changes))

    async def drain(self, queue: str, limit: int = 1_000, lane: int | None = None) -> int:
        return await self._call("drain", lambda: self.store.drain(queue, limit, lane))

    async def obliterate(self, queue: str, limit: int = 1_000) -> int:
        return await self._call("obliterate", lambda: self.store.obliterate(queue, limit))

    async def maintain(self, limit: int = 1_000) -> Maintained:
        return await self._call("maintain", lambda: self.store.maintain(limit))

    async def beat(self, info: WorkerInfo, ttl: int) -> None:
        await self._call("beat", lambda: self.store.beat(info, ttl))

    async def workers(self) -> list[WorkerRecord]:
        return await self._call("workers", self.store.workers)

    async def schedules(self, after: str = "", limit: int | None = None) -> list[Schedule]:
        return await self._call("schedules", lambda: self.store.schedules(after, limit))

    async def due_schedules(self, names: Sequence[str], limit: int, skip: int = 0) -> DueSchedules:
        return await self._call("due_schedules", lambda: self.store.due_schedules(names, limit, skip))

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        return await self._call("advance", lambda: self.store.advance(moves))

    async def export(self, cursor: str | None, limit: int) -> ExportPage:
        return await self._call("export", lambda: self.store.export(cursor, limit))

    async def import_records(self, records: Sequence[Exported], move: str) -> int:
        return await self._call("import_records", lambda: self.store.import_records(records, move))


async def _returned(part: T) -> T:
    return part
