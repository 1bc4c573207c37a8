"""The object store: a queue in a bucket or a directory, without a server.

Every method reads the objects that it needs, lets the ledger decide, and swaps in the result (`engine/engine.py`). Job
objects are authoritative; indexes and counters can be rebuilt from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar, cast

import msgspec

from millrace.domain.change import Change, Verb
from millrace.domain.errors import StoreError
from millrace.domain.event import Event
from millrace.domain.export import Exported, ExportPage
from millrace.domain.job import Job, Lease, Spec, State
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
from millrace.domain.rules import operate, replaying, scheduling, upkeep
from millrace.domain.rules.check import check_specs
from millrace.domain.schedule import EVERY_SCHEDULE, DueSchedules, Move, Moved, Schedule, check_moves
from millrace.domain.settings import Limits, QueueSettings, StoreSettings, updated
from millrace.store.base import BaseStore
from millrace.store.clock import Clock, boot_clock
from millrace.store.object.archive.compaction import Compaction
from millrace.store.object.archive.files import Archive
from millrace.store.object.blobs import Blobs
from millrace.store.object.claims.claiming import Claimer
from millrace.store.object.driver import Driver
from millrace.store.object.engine.closing import refuse_if_closed
from millrace.store.object.engine.commit import EngineRun
from millrace.store.object.engine.engine import Engine, Question
from millrace.store.object.engine.job_table import TableOptions
from millrace.store.object.engine.numbers import Numbers, give_back
from millrace.store.object.engine.objects import Objects, SeenObject, Swap, sealed
from millrace.store.object.engine.values import LayoutValue, LineValue, QueueValue, encode, job_value, value_of
from millrace.store.object.engine.view import View
from millrace.store.object.events.feed import Feed
from millrace.store.object.events.spans import Spans
from millrace.store.object.keys import LAYOUT, TASKS, Layout
from millrace.store.object.options import ObjectOptions
from millrace.store.object.reading import JobReader
from millrace.store.object.schedules import due_schedules, list_schedules
from millrace.store.object.sweep import Sweeper
from millrace.store.object.sweep.counters import CounterSweep
from millrace.store.object.sweep.round import Round, shares
from millrace.store.object.transfer import ObjectTransfer
from millrace.store.object.waiting import Waiting
from millrace.store.protocol import Store, Target, Watch
from millrace.store.sweep_report import Monitoring, SweepShare, Swept

T = TypeVar("T")
ADVANCES = 16  # schedules that are written at the same time


class ObjectStore(BaseStore):
    """The store. Each instance belongs to one event loop; `for_loop` returns a handle for another loop."""

    ids: Literal["sorted", "random"] = "random"  # the first characters determine the shard
    concurrent_writes = True
    closes_after = 10.0  # a change that was decided before may be written as late

    def __init__(
        self,
        make_driver: Callable[[], Driver],
        *,
        clock: Clock | None = None,
        options: ObjectOptions | None = None,
        place: str | None = None,
    ) -> None:
        self._make_driver = make_driver
        self._given_clock = clock
        self.options = options = options or ObjectOptions()
        driver = make_driver()
        self.blobs = Blobs(driver)
        self.url = driver.url
        self._place = place or driver.url
        self._waiting = Waiting(self.blobs)
        self._engine = Engine(
            self.blobs,
            Layout(options.shard_digits),
            self.now,
            options,
            on_news=self._waiting.announce,
            recount=self._recount,
        )
        self._claimer = Claimer(self._engine, options, compares_clocks=clock is None)
        self._reader = JobReader(self._engine)
        self._transfer = ObjectTransfer(self._engine, self._reader)
        self._feed = Feed(self._engine.objects, options.feed_delay)
        self._spans = Spans(self._feed)
        self._sweeper = Sweeper(self._engine, young=options.sweep_patience)
        self.compaction = Compaction(self._engine)
        self.compacted = Archive(self._engine)
        self._connected = False

    @property
    def engine(self) -> Engine:
        return self._engine

    async def connect(self) -> None:
        await self.blobs.connect()
        self._engine.numbers = numbers = Numbers.of(self._place)
        numbers.join()  # first: other handles of this process may be closing
        if self._given_clock is None:
            numbers.steady = boot_clock
        try:
            await _check_layout(self._engine.objects, self.options.shard_digits)
        except BaseException:
            numbers.leave()
            await self.blobs.close()
            raise
        self._connected = True

    async def close(self) -> None:
        connected, self._connected = self._connected, False
        if connected:
            numbers = self._engine.numbers
            await self._engine.ready.close()
            held = numbers.leave()
            if held is not None:
                await give_back(self._engine.objects, held, numbers.high)
        await self.blobs.close()

    def for_loop(self) -> ObjectStore:
        return type(self)(self._make_driver, clock=self._given_clock, options=self.options, place=self._place)

    def for_reading(self) -> Store:
        from millrace.store.object.read_only import ReadOnlyObjectStore

        return ReadOnlyObjectStore(self._make_driver, clock=self._given_clock, options=self.options, place=self._place)

    async def now(self) -> int:
        return self._given_clock() if self._given_clock is not None else await self.blobs.now()

    # ── producer ──────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        run = await self._engine.together(
            lambda ledger, now: ledger.enqueue(specs, now),
            expected=[
                *(self._layout.queue(name) for name in dict.fromkeys(spec.queue for spec in specs)),
                *(self._layout.job(parent) for spec in specs for parent in spec.after),
            ],
            guessed=[SeenObject(self._layout.job(spec.id), None, None) for spec in specs],
        )
        await self._move_to_lanes(run)
        return run.answers[0]

    async def _move_to_lanes(self, run: EngineRun[list[Enqueued]]) -> None:
        """Move jobs into lanes, if their queue became a pool while they were being enqueued."""
        pools = {
            value.name
            for seen in run.settings.values()
            if seen.key != TASKS and (value := value_of(seen, QueueValue)) is not None and value.settings.lanes
        }
        new = [record.job for record in run.records.values() if record.job is not None and not record.job.spec.hook]
        laneless = [job.id for job in new if job.lane is None and job.queue in pools]
        if laneless:
            answers = await self.cancel(laneless)
            await self.replay([job for job, answer in zip(laneless, answers, strict=True) if answer == "cancelled"])

    # ── consumer ──────────────────────────────────────────────────────────────────────────────

    async def claim(self, request: Claim) -> list[Job]:
        return await self._claimer.claim(request)

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        for _, change in items:
            check_specs(change.jobs)
        keys = [self._layout.job(lease.job) for lease, _ in items]
        guessed = self._engine.guesses(keys)
        view = self._engine.view()
        await view.begin([TASKS, *keys, *self._needed_to_settle(guessed)], guessed)
        run = await self._engine.carry_out(
            [(key, _settling(lease, change)) for key, (lease, change) in zip(keys, items, strict=True)],
            options=TableOptions(keys_by_seq={lease.seq: key for key, (lease, _) in zip(keys, items, strict=True)}),
            expected=_next_members(view),
            view=view,
        )
        await self._engine.dependents.update(run)
        return [
            receipt
            if receipt is not Receipt.LOST or key not in run.unsure
            else await self._receipt_from_events(lease, change)
            for key, (lease, change), receipt in zip(keys, items, run.answers, strict=True)
        ]

    async def _receipt_from_events(self, lease: Lease, change: Change) -> Receipt:
        """Return the receipt for a settle whose answer was lost and whose job has changed since.

        The job's events show whether the settle was written.
        """
        history = await self.history(lease.job)
        ends = [event for event in history if event.lease == lease.id and event.state != State.RUNNING]
        if not ends:
            return Receipt.LOST
        as_asked = ends[-1].state == State.CANCELLED and change.verb is not Verb.CANCEL
        return Receipt.CANCELLING if as_asked else Receipt.OK

    def _needed_to_settle(self, records: Iterable[SeenObject]) -> list[str]:
        """Return the keys of the queues, lines and unique keys of these running jobs."""
        keys: list[str] = []
        for job in [job_value(seen.value, {}).job for seen in records]:
            if job is not None:
                keys.append(self._layout.queue(job.queue))
                keys += [] if job.line is None else [self._layout.line(job.queue, job.line)]
                keys += [] if job.spec.key is None else [self._layout.unique_key(job.queue, job.spec.key)]
        return keys

    async def extend(self, extensions: Sequence[Extension]) -> list[Receipt]:
        keys = [self._layout.job(extension.lease.job) for extension in extensions]
        run = await self._engine.carry_out(
            [(key, _extending(extension)) for key, extension in zip(keys, extensions, strict=True)],
            options=TableOptions(keys_by_seq={one.lease.seq: key for key, one in zip(keys, extensions, strict=True)}),
            guessed=self._engine.guesses(keys),
            expected=keys,
            durable=False,
        )
        return run.answers

    async def reclaim(self, request: Reclaim) -> list[Job]:
        claim_id = self._claimer.claim_id()
        run = await self._engine.carry_out(
            [(None, lambda ledger, now: ledger.reclaim(request, claim_id, now))],
            options=TableOptions(looks_at_time=True),
            durable=False,
        )
        return [job for job in run.answers[0] if self._layout.job(job.id) in run.written]

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        await self._waiting.wait(self._claimer, queues, tasks, timeout)

    async def wait_for_cancel(self, worker: str, timeout: float) -> bool:
        return await self._waiting.wait_for_cancel(worker, timeout)

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Watch]:
        watch = self._waiting.watch(job_id)
        try:
            yield watch
        finally:
            watch.close()

    # ── reader ────────────────────────────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        unique = [*dict.fromkeys(self._layout.job(job_id) for job_id in ids)]
        jobs = dict(zip(unique, await self._engine.jobs(unique), strict=True))
        now = await self.now()
        found = [jobs[self._layout.job(job_id)] for job_id in ids]
        return [None if job is None else without_expired_result(msgspec.structs.replace(job), now) for job in found]

    async def find(self, query: Query) -> Page:
        return await self._reader.find(query, await self.now())

    async def find_in_shard(self, query: Query, shard: str) -> Page:
        return await self._reader.find(query, await self.now(), shard)

    async def count(self) -> list[QueueCounts]:
        return await self._reader.count(await self.now())

    async def position(self, job_id: str) -> int | None:
        return await self._engine.answer(lambda ledger, now: operate.position(ledger, job_id, now))

    async def lanes(self, queue: str) -> list[LaneStatus]:
        return await self._engine.answer(lambda ledger, now: operate.lanes(ledger, queue))

    async def history(self, job_id: str) -> list[Event]:
        return await self._engine.answer(lambda ledger, now: ledger.history(job_id))

    async def events(self, cursor: str | None, limit: int) -> EventPage:
        return await self._feed.events(cursor, limit, await self.now())

    async def events_before(self, cursor: str | None, limit: int) -> tuple[list[tuple[str, Event]], str | None]:
        return await self._feed.before(cursor, limit, await self.now())

    async def event_spans(
        self, after: str | int | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        return await self._spans.spans(after, n, limit, until, await self.now())

    async def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[list[Event]]:
        async for events in self._spans.scan(span, batch, await self.now()):
            yield events

    async def partitions(self, n: int) -> list[Partition]:
        return self._reader.partitions(n)

    async def scan(
        self, partition: Partition, batch: int = 1_000, selection: JobSelection = EVERYTHING
    ) -> AsyncIterator[list[Job]]:
        async for jobs in self._reader.scan(partition, batch, await self.now(), selection):
            yield jobs

    def is_in(self, partition: Partition, job_id: str) -> bool:
        """Return whether a scan of this partition includes the job with this id."""
        return self._reader.parse(partition).has(self._layout.job(job_id))

    # ── operator ──────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]:
        return await self._engine.each(
            ids, lambda job_id: lambda ledger, now: operate.cancel(ledger, [job_id], running, now)[0]
        )

    async def replay(self, ids: Sequence[str], children: bool = True) -> list[Replayed]:
        def decide(job_id: str) -> Question[Replayed]:
            return lambda ledger, now: replaying.replay(ledger, [job_id], now, children)[0]

        return await self._engine.each(ids, decide)

    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]:
        return await self._engine.each(
            ids, lambda job_id: lambda ledger, now: operate.archive(ledger, [job_id], archived, now)[0]
        )

    async def delete(self, ids: Sequence[str]) -> list[Deleted]:
        return await self._engine.each(ids, lambda job_id: lambda ledger, now: operate.delete(ledger, [job_id], now)[0])

    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        if not changes:
            return await self._engine.answer(lambda ledger, now: operate.control(ledger, target, name, {}, now))
        if target != "store":
            await refuse_if_closed(self._engine.objects)
        elif "closed" in changes:
            return await self._close(changes)
        changes_queue = target == "queue"
        run = await self._engine.carry_out(
            [(None, lambda ledger, now: operate.control(ledger, target, name, changes, now))],
            together=True,
            # Lines are pinned so that a pause and concurrent changes of a lane detect each other.
            options=TableOptions(counting=changes_queue, pins_lines=changes_queue),
        )
        if target != "store":  # the counted jobs may have changed before the write
            await self._recount([self._layout.queue(name) if target == "queue" else TASKS])
        self._waiting.wake_all()
        return run.answers[0]

    async def _close(self, changes: Mapping[str, Any]) -> StoreSettings:
        """Close or open the store. The store's object says last that it is open, and first that it is closed."""
        old = await self._engine.answer(lambda ledger, _: ledger.tables.settings())
        new = updated(old, changes)  # refused before anything is written
        opens = new.closed is None or new.closed.stage == "opened"
        if opens:
            await self._transfer.close(old.closed, new.closed)
        run = await self._engine.carry_out(
            [(None, lambda ledger, now: operate.control(ledger, "store", "", changes, now))], together=True
        )
        if not opens:
            await self._transfer.close(old.closed, new.closed)
        self._waiting.wake_all()
        return cast("StoreSettings", run.answers[0])

    # ── transfer ──────────────────────────────────────────────────────────────────────────────

    async def export(self, cursor: str | None, limit: int) -> ExportPage:
        return await self._transfer.export(cursor, limit)

    async def import_records(self, records: Sequence[Exported], move: str) -> int:
        return await self._transfer.import_records(records, move)

    # ── operator ──────────────────────────────────────────────────────────────────────────────

    async def drain(self, queue: str, limit: int = 1_000, lane: int | None = None) -> int:
        def drained(job: Job | None) -> bool:
            return job is not None and job.state is State.CANCELLED

        return await self._count_up(lambda rest: _draining(queue, rest, lane), limit, drained)

    async def obliterate(self, queue: str, limit: int = 1_000) -> int:
        return await self._count_up(lambda rest: _obliterating(queue, rest), limit, lambda job: job is None)

    async def _count_up(
        self,
        decide: Callable[[int], Question[int]],
        limit: int,
        is_done: Callable[[Job | None], bool],
    ) -> int:
        """Carry out a decision that may be written for only some of its jobs, and repeat it while races are lost.

        Return the number of jobs for which it was done. A number below `limit` means that no job is left.
        """
        count = 0
        while True:
            run = await self._engine.in_parts(decide(limit - count))
            if not run.wasted:
                return count + run.answers[0]
            count += sum(is_done(record.job) for record in run.records.values() if record.was.seq)
            if count >= limit:
                return count

    async def maintain(self, limit: int = 1_000) -> Maintained:
        await refuse_if_closed(self._engine.objects)
        promoted, expired = await self._claimer.admit_and_expire(limit)
        passed = Maintained(expired=expired, more=max(promoted, expired) >= limit)
        jobs = await self._engine.in_parts(lambda ledger, now: upkeep.maintain_jobs(ledger, now, limit), counting=True)
        past = await self._engine.in_parts(lambda ledger, now: upkeep.trim(ledger, now, limit))
        return upkeep.add_up(passed, jobs.answers[0], past.answers[0])

    @property
    def monitoring(self) -> Monitoring:
        options = self.options
        return Monitoring(
            options.monitor,
            options.monitor_check_interval / 1000,
            options.monitor_worker_health_threshold / 1000,
            options.monitor_sweep_interval / 1000,
        )

    async def sweep(self, limit: int | None = None, *, full: bool = False) -> Swept:
        """Repair what crashes have left incomplete, in a part of the store. With `full`, check the whole store."""
        return await self._sweeper.sweep(self.options.monitor_sweep_page_size if limit is None else limit, full=full)

    def shares(self, n: int) -> list[SweepShare]:
        return shares(self._layout, n)

    async def sweep_share(self, share: SweepShare) -> Swept:
        return await self._sweeper.sweep_share(share)

    async def sweep_rest(self, began: int) -> Swept:
        return await self._sweeper.sweep_rest(began)

    async def beat(self, info: WorkerInfo, ttl: int) -> None:
        key = self._layout.worker(info.id)
        if ttl == 0:
            await self.blobs.delete([key])
            return
        now = await self.now()
        [seen] = await self._engine.objects.read([key])
        known = value_of(seen, WorkerRecord)
        info = msgspec.structs.replace(info, shards=self.options.shards or ())
        record = WorkerRecord(info, now if known is None else known.started_at, now, ttl, True)
        await self.blobs.put(key, sealed(encode(record)), durable=False)

    async def workers(self) -> list[WorkerRecord]:
        return await self._engine.answer(operate.workers)

    # ── schedules ─────────────────────────────────────────────────────────────────────────────

    async def schedules(self, after: str = "", limit: int | None = None) -> list[Schedule]:
        return await list_schedules(self._engine.objects, after, EVERY_SCHEDULE if limit is None else limit)

    async def due_schedules(self, names: Sequence[str], limit: int, skip: int = 0) -> DueSchedules:
        repairs = not self.blobs.reads_only
        now = await self.now()
        return await due_schedules(self._engine.objects, self._layout, names, limit, skip, now, repairs=repairs)

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        check_moves(moves)
        await refuse_if_closed(self._engine.objects)
        answers: list[Moved] = []
        some = ADVANCES if len({move.name for move in moves}) == len(moves) else 1
        for first in range(0, len(moves), some):
            part = moves[first : first + some]
            runs = await asyncio.gather(*(self._engine.together(_moving(move)) for move in part))
            answers += [run.answers[0] for run in runs]
        return answers

    @property
    def _layout(self) -> Layout:
        return self._engine.layout

    async def _recount(self, keys: Sequence[str]) -> None:
        """Recompute the counters that limits use, from the records of the jobs."""
        counters = CounterSweep(self._engine, Round(self._engine.objects, await self.now(), None, 0))
        await counters.check_queues([key for key in keys if key != TASKS], exactly=True)
        if TASKS in keys:
            await counters.check_tasks(exactly=True)


def _draining(queue: str, limit: int, lane: int | None) -> Question[int]:
    return lambda ledger, now: operate.drain(ledger, queue, limit, now, lane)


def _obliterating(queue: str, limit: int) -> Question[int]:
    return lambda ledger, now: operate.obliterate(ledger, queue, limit, now)


def _moving(move: Move) -> Question[Moved]:
    return lambda ledger, now: scheduling.advance(ledger, [move], now)[0]


def _next_members(view: View) -> list[str]:
    """Return the keys of the jobs that are next in the lines that were read."""
    lines = [value_of(seen, LineValue) for key, seen in view.seen.items() if key.startswith("lines/")]
    return [member.key for line in lines if line is not None for member in line.head.members[:1]]


def _settling(lease: Lease, change: Change) -> Question[Receipt]:
    return lambda ledger, now: ledger.settle([(lease, change)], now)[0]


def _extending(extension: Extension) -> Question[Receipt]:
    return lambda ledger, now: ledger.extend([extension], now)[0]


async def _check_layout(objects: Objects, shard_digits: int) -> None:
    """Raise StoreError if the store was created with another number of shards. For a new store, record this number."""
    while True:
        [seen] = await objects.read([LAYOUT])
        made = value_of(seen, LayoutValue)
        if made is None:
            await objects.commit([Swap(seen, encode(LayoutValue(shard_digits)))])
        else:
            check_shard_digits(objects.blobs.url, made, shard_digits)
            return


def check_shard_digits(url: str, made: LayoutValue, shard_digits: int) -> None:
    if made.shard_digits != shard_digits:
        raise StoreError(
            f"{url} was made with {made.shard_digits} shard digits, and here are {shard_digits}: its jobs would not be "
            f"found. Set MILLRACE_SHARD_DIGITS={made.shard_digits}."
        )
