"""The Redis store: every method is one script, which the server runs as one atomic step.

The rules of the ledger are implemented a second time in Lua, because the server can run only Lua in a step. The model
test compares both implementations. Validating input, merging settings and filtering search results need no atomic step:
functions of the domain do this in Python.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import Any, Literal, cast

from redis.asyncio import Redis

from millrace.domain.change import Change
from millrace.domain.event import Event
from millrace.domain.export import Exported, ExportPage
from millrace.domain.job import Job, Lease, Spec
from millrace.domain.ledger import without_expired_result
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
from millrace.domain.rules import operate, transition, upkeep
from millrace.domain.rules.check import check_name, check_specs
from millrace.domain.schedule import DueSchedules, Move, Moved, Schedule, check_moves
from millrace.domain.settings import Limits, QueueSettings, StoreSettings
from millrace.domain.tables import CANCELS
from millrace.store.base import BaseStore
from millrace.store.clock import Clock
from millrace.store.protocol import Store, Target, Watch
from millrace.store.redis import control, feed, finding, scheduling, transfer
from millrace.store.redis.address import RedisAddress
from millrace.store.redis.blocking import BlockingEnqueues
from millrace.store.redis.client_address import ClientAddress
from millrace.store.redis.decode import (
    accepted,
    counts_from,
    event_from,
    jobs_from,
    lane_from,
    receipts,
    worker_from,
)
from millrace.store.redis.encode import (
    encode,
    fast_path_completions,
    packed_changes,
    place_of,
)
from millrace.store.redis.enqueues import RedisEnqueues, enqueued_on_fast_path
from millrace.store.redis.health import ServerHealth, examine
from millrace.store.redis.options import DURABILITY, RedisOptions
from millrace.store.redis.waiting import RedisListener
from millrace.store.redis.wire import RedisWire


class RedisStore(BaseStore):
    small_claims = True  # the server works while this process runs handlers

    def __init__(
        self,
        address: RedisAddress | ClientAddress | str = "redis://localhost:6379/0",
        *,
        client: Redis | None = None,
        options: RedisOptions | None = None,
        clock: Clock | None = None,
        salt: str | None = None,
    ) -> None:
        """Create a store for `address`.

        With `client`, the store uses the server of that client instead. The caller closes the client; the store does
        not use its connections.
        """
        if client is not None:
            address = ClientAddress(client)
        self._address = RedisAddress.parse(address) if isinstance(address, str) else address
        self.options = self._address.options if options is None else options
        self.url = self._address.shown
        self._clock = clock
        self._salt = os.urandom(6).hex() if salt is None else salt
        self._loops = 0
        self._current: _LoopConnections | None = None

    @property
    def durability(self) -> str:
        """A sentence that says which crashes an acknowledged call survives."""
        return DURABILITY[self.options.durability]

    def _here(self) -> _LoopConnections:
        """Return the connections of the running event loop. Another loop, or a forked child, gets its own."""
        current, loop = self._current, asyncio.get_running_loop()
        if current is None or current.loop is not loop or current.pid != os.getpid():
            self._loops += 1
            current = self._current = _LoopConnections(self, loop, f"{self._salt}-{os.getpid():x}-{self._loops:x}")
        return current

    @property
    def _wire(self) -> RedisWire:
        return self._here().wire

    async def connect(self) -> None:
        await self.examine(strict=True)

    async def examine(self, *, strict: bool = False) -> ServerHealth:
        """Return the version and configuration of the server. With `strict`, raise StoreError if this server could lose
        jobs.
        """
        return await examine(self._wire, self.options, strict=strict)

    async def close(self) -> None:
        current, self._current = self._current, None
        if current is not None and current.pid == os.getpid() and current.loop is asyncio.get_running_loop():
            await current.close()

    def for_loop(self) -> RedisStore:
        return type(self)(self._address, options=self.options, clock=self._clock)

    def for_reading(self) -> Store:
        from millrace.store.redis.read_only import ReadOnlyRedisStore

        return ReadOnlyRedisStore(self._address, options=self.options, clock=self._clock)

    async def now(self) -> int:
        if self._clock is not None:
            return self._clock()
        seconds, micros = await self._wire.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    # ── producer and consumer ─────────────────────────────────────────────────────────────────

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        if not specs:
            return []
        return await self._here().enqueues.put(specs)

    def enqueue_blocking(self, specs: Sequence[Spec]) -> list[Enqueued] | None:
        check_specs(specs)
        if not specs:
            return []
        first = self._blocking.enqueue(specs)
        return None if first is None else enqueued_on_fast_path(specs, first)

    def close_blocking(self) -> None:
        if "_blocking" in self.__dict__:
            self._blocking.close()

    @cached_property
    def _blocking(self) -> BlockingEnqueues:
        return BlockingEnqueues(self._address.blocking_connection, self.options, self._clock)

    async def claim(self, request: Claim) -> list[Job]:
        wire = self._wire
        tasks = None if request.tasks is None else list(request.tasks)
        arguments = [request.queues, tasks, request.limit, request.lease, request.worker, wire.claim_id()]
        return list(jobs_from(await wire.change("claim", arguments, durable=False)))

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        for _, change in items:
            check_specs(change.jobs)
        if not items:
            return []
        bodies: list[bytes] = []
        arguments = fast_path_completions(items, bodies) or [packed_changes(items, bodies)]
        return receipts(accepted(await self._wire.change("settle", arguments, bodies)))

    async def extend(self, extensions: Sequence[Extension]) -> list[Receipt]:
        if not extensions:
            return []
        bodies: list[bytes] = []
        items: list[list[Any]] = []
        for extension in extensions:
            progress, log = place_of(extension.progress, bodies), place_of(extension.log, bodies)
            items.append([extension.lease.seq, extension.lease.id, extension.by, progress, log])
        return receipts(await self._wire.change("extend", [items], bodies, durable=False))

    async def reclaim(self, request: Reclaim) -> list[Job]:
        wire = self._wire
        tasks = None if request.tasks is None else list(request.tasks)
        ignored = list(request.ignore)
        arguments = [request.worker, request.limit, request.lease, request.queues, tasks, ignored, wire.claim_id()]
        return list(jobs_from(await wire.change("reclaim", arguments, durable=False)))

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        await self._here().listener.sleep(queues, tasks, timeout)

    async def wait_for_cancel(self, worker: str, timeout: float) -> bool:
        listener = self._here().listener
        if not listener.is_subscribed:
            await listener.ready()
            return listener.is_subscribed  # hints before the subscription were missed
        return await listener.sleep([CANCELS], frozenset({worker}), timeout)

    # ── reader ────────────────────────────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        if not ids:
            return []
        now, rows = await self._wire.ask("get", [list(dict.fromkeys(ids))])
        found = {job.id: job for job in jobs_from(rows)}
        answers: list[Job | None] = []
        for job_id in ids:
            job = found.get(job_id)
            answers.append(None if job is None else without_expired_result(_copied(job), now))
        return answers

    async def find(self, query: Query) -> Page:
        return await finding.find(self._wire, query)

    async def count(self) -> list[QueueCounts]:
        now, *rows = await self._wire.ask("count", [])
        return [counts_from(row, now) for row in rows]

    async def position(self, job_id: str) -> int | None:
        position = await self._wire.ask("position", [job_id])
        return None if position < 0 else int(position)

    async def lanes(self, queue: str) -> list[LaneStatus]:
        return [lane_from(row) for row in await self._wire.ask("lanes", [queue])]

    async def history(self, job_id: str) -> list[Event]:
        return list(map(event_from, await self._wire.ask("history", [job_id])))

    async def events(self, cursor: str | None, limit: int) -> EventPage:
        return await feed.page(self._wire, cursor, limit)

    async def events_before(self, cursor: str | None, limit: int) -> tuple[list[tuple[str, Event]], str | None]:
        return await feed.before(self._wire, cursor, limit)

    async def event_spans(
        self, after: str | int | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        return await feed.spans(self._wire, after, n, limit, until)

    async def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[list[Event]]:
        async for events in feed.scan(self._wire, span, batch):
            yield events

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Watch]:
        async with self._here().listener.watch(job_id) as watch:
            yield watch

    async def partitions(self, n: int) -> list[Partition]:
        first, last = await self._wire.ask("bounds", [])
        return finding.partitions(first, last, n)

    async def scan(
        self, partition: Partition, batch: int = 1_000, selection: JobSelection = EVERYTHING
    ) -> AsyncIterator[list[Job]]:
        after, to = operate.partition_bounds(partition)
        async for jobs in finding.scan(self._wire, after, to, batch, selection.query):
            yield jobs

    # ── operator ──────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]:
        answers = await self._wire.change("cancel", [list(ids), running == "request"])
        return [Cancelled(answer.decode()) for answer in answers]

    async def replay(self, ids: Sequence[str], children: bool = True) -> list[Replayed]:
        answers = await self._wire.change("replay", [list(ids), children])
        return [Replayed(answer.decode()) for answer in answers]

    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]:
        answers = await self._wire.change("archive", [list(ids), archived])
        return [Archived(answer.decode()) for answer in answers]

    async def delete(self, ids: Sequence[str]) -> list[Deleted]:
        answers = await self._wire.change("delete", [list(ids)])
        return [Deleted(answer.decode()) for answer in answers]

    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        if target == "queue":
            check_name("queue", name)
            return await control.queue(self._wire, name, changes)
        if target == "task":
            check_name("task", name)
            return await control.task(self._wire, name, changes)
        return await control.store(self._wire, changes)

    async def drain(self, queue: str, limit: int = 1_000, lane: int | None = None) -> int:
        return int(accepted(await self._wire.change("drain", [queue, limit, lane])))

    async def obliterate(self, queue: str, limit: int = 1_000) -> int:
        return int(await self._wire.change("obliterate", [queue, limit]))

    async def maintain(self, limit: int = 1_000) -> Maintained:
        """Run one round of upkeep and return what was done.

        The round consists of several scripts, so that the server can serve other clients between them.
        """
        wire = self._wire
        promoted, expired, queues = await wire.change("upkeep_time", [limit])
        pruned = evicted = archived = armed = 0
        for name in queues:
            gone, over, hidden, dead = await wire.change("upkeep_queue", [name.decode(), limit])
            pruned, evicted, archived, armed = pruned + gone, evicted + over, archived + hidden, armed + dead
        retried, results, looked_at = await wire.change("upkeep_rest", [limit, transition.RECHECK_RESULT])
        events, workers = await wire.change("upkeep_past", [limit, upkeep.WORKER_MEMORY])
        bounds_met = (promoted, expired, pruned, evicted, archived, armed, retried, looked_at, events)
        more = any(count >= limit for count in bounds_met)
        return Maintained(expired, retried, pruned, evicted, archived, results, events, workers, more)

    async def beat(self, info: WorkerInfo, ttl: int) -> None:
        if ttl == 0:
            await self._wire.command("HDEL", f"{self._wire.prefix}worker", info.id)
        else:
            await self._wire.ask("beat", [info.id, ttl], [encode(info)])

    async def workers(self) -> list[WorkerRecord]:
        wire = self._wire
        now, kept = await self.now(), await wire.command("HGETALL", f"{wire.prefix}worker")
        records = [worker_from(value, now) for value in _values(kept)]
        return sorted(records, key=lambda record: record.info.id)

    # ── scheduling ────────────────────────────────────────────────────────────────────────────

    async def schedules(self, after: str = "", limit: int | None = None) -> list[Schedule]:
        return await scheduling.schedules(self._wire, after, limit)

    async def due_schedules(self, names: Sequence[str], limit: int, skip: int = 0) -> DueSchedules:
        return await scheduling.due_schedules(self._wire, names, limit, skip)

    async def export(self, cursor: str | None, limit: int) -> ExportPage:
        return await transfer.export(self._wire, cursor, limit)

    async def import_records(self, records: Sequence[Exported], move: str) -> int:
        return await transfer.import_records(self._wire, records, move)

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        check_moves(moves)
        return await scheduling.advance(self._wire, moves)


class _LoopConnections:
    """The connections and the waiters of a store on one event loop."""

    def __init__(self, store: RedisStore, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self.loop, self.pid = loop, os.getpid()
        address, options = store._address, store.options
        connect = partial(address.client, options)
        self.wire = RedisWire(connect, options, store._clock, name, on_return=self._server_returned)
        self.listener = RedisListener(self.wire, name)
        self.enqueues = RedisEnqueues(self.wire, self.listener)

    def _server_returned(self) -> None:
        self.listener.follow()
        if self.wire.places.nodes:
            self.listener.send_in_background(self.wire.learn_nodes())

    async def close(self) -> None:
        await self.listener.close()
        await self.wire.close()


def _copied(job: Job) -> Job:
    """Return a copy of the job, for callers that request the same id twice and expect two objects."""
    return cast(Job, job.__copy__())  # type: ignore[attr-defined]


def _values(kept: Any) -> list[bytes]:
    return list(kept[1::2])
