"""The Redis store: every method is one script, which the server carries out as one atomic step.

The rules of the ledger are said a second time, in Lua, because nothing else can run inside the server's step; the model
test compares them with the ledger. What needs no atomic step (checking input, putting settings together, judging what a
query finds) stays in Python, in the domain's own functions.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

from millrace.domain import operate, upkeep
from millrace.domain.change import Change
from millrace.domain.check import check_name, check_specs
from millrace.domain.errors import CursorExpired
from millrace.domain.event import Event
from millrace.domain.job import Job, Lease, Spec, State
from millrace.domain.ledger import without_expired_result
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
from millrace.store.clock import Clock
from millrace.store.protocol import Target, Watch
from millrace.store.redis import control, feed, finding, scheduling
from millrace.store.redis.address import Address
from millrace.store.redis.answers import counts_from, enqueued_from, lane_from, worker_from
from millrace.store.redis.health import Health, examine
from millrace.store.redis.listen import Listener
from millrace.store.redis.options import DURABILITY, RedisOptions
from millrace.store.redis.question import BODIES, encode, packed_changes, packed_specs, plain_ends, plain_groups
from millrace.store.redis.record import event_from, jobs_from
from millrace.store.redis.refusal import refusal
from millrace.store.redis.waiting import WATCHED, sleep, watching
from millrace.store.redis.wire import Wire

_RECEIPTS = {"O": Receipt.OK, "L": Receipt.LOST, "C": Receipt.CANCELLING}


class RedisStore:
    ids: Literal["sorted", "random"] = "sorted"
    steps_overlap = False
    works_apart: Literal[True] = True

    def __init__(
        self,
        address: Address | str = "redis://localhost:6379/0",
        *,
        options: RedisOptions | None = None,
        clock: Clock | None = None,
        salt: str | None = None,
    ) -> None:
        self._address = Address.parse(address) if isinstance(address, str) else address
        self.options = self._address.options if options is None else options
        self.url = self._address.shown
        self._clock = clock
        self._salt = os.urandom(6).hex() if salt is None else salt
        self._homes = 0
        self._home: _Home | None = None

    @property
    def durability(self) -> str:
        """What an answer survives, in words."""
        return DURABILITY[self.options.durability]

    def _here(self) -> _Home:
        """This event loop's connections; a forked child, or another loop, must not touch those."""
        home, loop = self._home, asyncio.get_running_loop()
        if home is None or home.loop is not loop or home.pid != os.getpid():
            self._homes += 1
            home = self._home = _Home(self, loop, f"{self._salt}-{os.getpid():x}-{self._homes:x}")
        return home

    @property
    def _wire(self) -> Wire:
        return self._here().wire

    async def connect(self) -> None:
        await self.examine(strict=True)

    async def examine(self, *, strict: bool = False) -> Health:
        """What the server is and how it is set up; with `strict`, a StoreError where that endangers jobs."""
        return await examine(self._wire, self.options, strict=strict)

    async def close(self) -> None:
        home, self._home = self._home, None
        if home is not None and home.pid == os.getpid() and home.loop is asyncio.get_running_loop():
            await home.close()

    def beside(self) -> RedisStore:
        return RedisStore(self._address, options=self.options, clock=self._clock)

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
        bodies: list[bytes] = []
        groups = plain_groups(specs, bodies)
        if groups is not None:
            home = self._here()
            watched = home.listener.unregistered(spec.id for spec in specs)
            question = [groups, [watched, home.listener.name, WATCHED] if watched else None]
            if all(spec.token for spec in specs):  # then a call that is sent again is known by its tokens
                first = await home.wire.ask("enqueue_plain", question, bodies, durable=True)
            else:
                first = await home.wire.change("enqueue_plain", question, bodies)
            if first >= 0:
                home.listener.registered.update(watched)
                waiting = State.WAITING
                return [Enqueued("queued", spec.id, seq, 1, waiting) for seq, spec in enumerate(specs, first)]
        bodies = []
        items = packed_specs(specs, bodies)
        answers = _accepted(await self._wire.change("enqueue", [items], bodies))
        return [enqueued_from(answer, spec) for answer, spec in zip(answers, specs, strict=True)]

    async def claim(self, request: Claim) -> list[Job]:
        wire = self._wire
        tasks = None if request.tasks is None else list(request.tasks)
        question = [request.queues, tasks, request.limit, request.lease, request.worker, wire.claim_id()]
        return list(jobs_from(await wire.change("claim", question, durable=False)))

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        for _, change in items:
            check_specs(change.jobs)
        if not items:
            return []
        bodies: list[bytes] = []
        question = plain_ends(items, bodies) or [packed_changes(items, bodies)]
        return _receipts(_accepted(await self._wire.change("settle", question, bodies)))

    async def extend(self, extensions: Sequence[Extension]) -> list[Receipt]:
        if not extensions:
            return []
        bodies: list[bytes] = []
        items: list[list[Any]] = []
        for extension in extensions:
            number: int | None = None
            if extension.progress is not None:
                number = BODIES + len(bodies)
                bodies.append(extension.progress)
            items.append([extension.lease.seq, extension.lease.id, extension.by, number])
        return _receipts(await self._wire.change("extend", [items], bodies, durable=False))

    async def reclaim(self, request: Reclaim) -> list[Job]:
        wire = self._wire
        tasks = None if request.tasks is None else list(request.tasks)
        ignored = list(request.ignore)
        question = [request.worker, request.limit, request.lease, request.queues, tasks, ignored, wire.claim_id()]
        return list(jobs_from(await wire.change("reclaim", question, durable=False)))

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        home = self._here()
        await sleep(home.wire, home.listener, queues, tasks, timeout)

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

    async def event_spans(
        self, after: str | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        return await feed.spans(self._wire, after, n, limit, until)

    async def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[list[Event]]:
        after, until = operate.span_bounds(span)
        while after < until:
            trimmed, _, events = await self._wire.ask("feed", [after, min(batch, until - after)])
            if after < trimmed:
                raise CursorExpired(str(after), trimmed - after, str(trimmed))
            if not events:
                return
            after += len(events)
            yield list(map(event_from, events))

    async def cursor_before(self, at: int) -> str:
        return str(await self._wire.ask("cursor_before", [at]))

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Watch]:
        home = self._here()
        async with watching(home.wire, home.listener, job_id) as watch:
            yield watch

    async def partitions(self, n: int) -> list[Partition]:
        first, last = await self._wire.ask("bounds", [])
        return finding.partitions(first, last, n)

    async def scan(self, partition: Partition, batch: int = 1_000) -> AsyncIterator[list[Job]]:
        after, to = operate.partition_bounds(partition)
        async for jobs in finding.scan(self._wire, after, to, batch):
            yield jobs

    # ── operator ──────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]:
        answers = await self._wire.change("cancel", [list(ids), running == "request"])
        return [Cancelled(answer.decode()) for answer in answers]

    async def replay(self, ids: Sequence[str]) -> list[Replayed]:
        answers = await self._wire.change("replay", [list(ids)])
        return [Replayed(answer.decode()) for answer in answers]

    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]:
        answers = await self._wire.change("archive", [list(ids), archived])
        return [Archived(answer.decode()) for answer in answers]

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
        return int(_accepted(await self._wire.change("drain", [queue, limit, lane])))

    async def obliterate(self, queue: str, limit: int = 1_000) -> int:
        return int(await self._wire.change("obliterate", [queue, limit]))

    async def maintain(self, limit: int = 1_000) -> Maintained:
        """In pieces, so that the server answers others in between."""
        wire = self._wire
        promoted, expired, queues = await wire.change("upkeep_time", [limit])
        pruned = evicted = archived = 0
        for name in queues:
            gone, over, hidden = await wire.change("upkeep_queue", [name.decode(), limit])
            pruned, evicted, archived = pruned + gone, evicted + over, archived + hidden
        retried, results = await wire.change("upkeep_rest", [limit])
        events, workers = await wire.change("upkeep_past", [limit, upkeep.WORKER_MEMORY])
        bounds_met = (promoted, expired, pruned, evicted, archived, retried, results, events)
        more = any(count >= limit for count in bounds_met)
        return Maintained(expired, retried, pruned, evicted, archived, results, events, workers, more)

    async def beat(self, info: WorkerInfo, ttl: int) -> None:
        await self._wire.ask("beat", [info.id, ttl], [encode(info)])

    async def leave(self, worker_id: str) -> None:
        await self._wire.command("HDEL", f"{self._wire.prefix}worker", worker_id)

    async def workers(self) -> list[WorkerRecord]:
        wire = self._wire
        now, kept = await self.now(), await wire.command("HGETALL", f"{wire.prefix}worker")
        records = [worker_from(value, now) for value in _values(kept)]
        return sorted(records, key=lambda record: record.info.id)

    # ── scheduling ────────────────────────────────────────────────────────────────────────────

    async def schedules(self) -> list[Schedule]:
        wire = self._wire
        kept = await wire.command("HGETALL", f"{wire.prefix}schedule")
        return sorted(map(scheduling.schedule_from, _values(kept)), key=lambda schedule: schedule.name)

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        check_moves(moves)
        return await scheduling.advance(self._wire, moves)


class _Home:
    """What a store has open on one event loop."""

    def __init__(self, store: RedisStore, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self.loop, self.pid = loop, os.getpid()
        address, options = store._address, store.options
        self.wire = Wire(lambda place: address.client(options, place), options, store._clock, name)
        self.listener = Listener(lambda: address.client(options, self.wire.place), self.wire.prefix, name)

    async def close(self) -> None:
        await self.listener.close()
        await self.wire.close()


def _accepted(answer: Any) -> Any:
    """The answer, or the error that a script refused with."""
    if isinstance(answer, list) and answer and answer[0] == b"refused":
        raise refusal(answer[1])
    return answer


def _receipts(letters: bytes) -> list[Receipt]:
    return [_RECEIPTS[letter] for letter in letters.decode()]


def _copied(job: Job) -> Job:
    """An id that is asked for twice gets two copies: each is its receiver's own."""
    return cast(Job, job.__copy__())  # type: ignore[attr-defined]


def _values(kept: Any) -> list[bytes]:
    return list(kept.values()) if isinstance(kept, dict) else list(kept[1::2])
