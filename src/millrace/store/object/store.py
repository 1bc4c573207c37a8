"""The object store: a queue with no server but a bucket, or a directory.

Every method reads what it needs, lets the ledger decide, and swaps the result in (`engine.py`). The job objects are
the truth; everything else is found from them again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

import msgspec

from millrace.domain import operate, scheduling, upkeep
from millrace.domain.change import Change, Verb
from millrace.domain.check import check_specs
from millrace.domain.event import Event
from millrace.domain.job import Job, Lease, Spec, State
from millrace.domain.ledger import Ledger, without_expired_result
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
from millrace.store.object.archive import Archive
from millrace.store.object.blobs import Blobs
from millrace.store.object.claiming import Claimer
from millrace.store.object.compaction import Compaction
from millrace.store.object.driver import Driver
from millrace.store.object.engine import Engine
from millrace.store.object.envelope import sealed
from millrace.store.object.feed import Feed
from millrace.store.object.keys import TASKS, Layout, name_of
from millrace.store.object.log_scan import LogScan, MissingKeys, Pages
from millrace.store.object.numbers import Numbers
from millrace.store.object.objects import Seen
from millrace.store.object.options import ObjectOptions
from millrace.store.object.reading import Reader
from millrace.store.object.ready import ReadyOptions
from millrace.store.object.run import Item, Run
from millrace.store.object.skew import SkewGuard
from millrace.store.object.spans import Spans
from millrace.store.object.sweep import Sweeper
from millrace.store.object.sweep.counters import CounterSweep
from millrace.store.object.sweep.round import Round
from millrace.store.object.sweep.share import shares
from millrace.store.object.values import JobValue, QueueValue, decode, encode, job_value
from millrace.store.object.watching import PollingWatch
from millrace.store.object.writers import give_back, take
from millrace.store.protocol import Target, Watch
from millrace.store.swept import Monitoring, SweepShare, Swept
from millrace.store.waiters import Waiter, Waiters

T = TypeVar("T")
EVERYBODY = 1 << 30


class ObjectStore:
    """At home in one event loop; `beside` gives another."""

    ids: Literal["sorted", "random"] = "random"  # the first characters choose the shard
    steps_overlap = False

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
        self._engine = Engine(
            self.blobs,
            Layout(options.shard_digits),
            self.now,
            inline=options.inline_limit,
            patience=options.lock_patience / 1000,
            ready=ReadyOptions(options.listing_reuse / 1000, options.ready_page_size, options.shards),
            feed_delay=options.feed_delay,
        )
        self._engine.on_news = self._announce
        self._engine.recount = self._recount
        self._claimer = Claimer(self._engine, options.look_every / 1000)
        self._choose_index(options)
        self._skew = SkewGuard(self.blobs, options.max_clock_skew)
        self._reader = Reader(self._engine)
        self._feed = Feed(self._engine.objects, options.feed_delay)
        self._spans = Spans(self._feed)
        self._sweeper = Sweeper(self._engine, young=options.sweep_patience, feed_delay=options.feed_delay)
        self.compaction = Compaction(self._engine)
        self.compacted = Archive(self._engine)
        self._connected = False
        self._waiters = Waiters()
        self._watchers = Waiters()

    def _choose_index(self, options: ObjectOptions) -> None:
        pages = Pages(self.blobs, options.shards, options.log_scan_page_size)
        if options.index_mode == "log-scan":
            self._engine.ready.instead = LogScan(self._engine.objects, pages)
        elif options.index_mode == "hybrid":
            self._claimer.missing_keys = MissingKeys(self._engine.objects, pages, options.log_scan_pace / 1000)

    @property
    def engine(self) -> Engine:
        return self._engine

    async def connect(self) -> None:
        await self.blobs.connect()
        self._engine.numbers = numbers = Numbers.of(self._place)
        numbers.join()  # before it is looked at: others of this process may be leaving
        try:
            if numbers.writer is None:
                await take(self._engine.objects, numbers, self.options.shard_digits, await self.now())
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
            writer = numbers.leave()
            if writer is not None:
                await give_back(self._engine.objects, writer, numbers.high)
        await self.blobs.close()

    def beside(self) -> ObjectStore:
        return ObjectStore(self._make_driver, clock=self._given_clock, options=self.options, place=self._place)

    async def now(self) -> int:
        return self._given_clock() if self._given_clock is not None else await self.blobs.now()

    # ── producer ──────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        run = await self._together(
            lambda ledger, now: ledger.enqueue(specs, now),
            expected=[
                *(self._layout.queue(name) for name in dict.fromkeys(spec.queue for spec in specs)),
                *(self._layout.job(parent) for spec in specs for parent in spec.after),
            ],
            guessed=[Seen(self._layout.job(spec.id), None, None) for spec in specs],
        )
        await self._move_to_lanes(run)
        return run.answers[0]

    async def _move_to_lanes(self, run: Run[list[Enqueued]]) -> None:
        """A queue that became a pool while jobs were put into it: those go back and in again, into their lanes."""
        pools = {
            value.name
            for seen in run.settings.values()
            if seen.key != TASKS and seen.value is not None and (value := decode(seen.value, QueueValue)).settings.lanes
        }
        new = [record.job for record in run.records.values() if record.job is not None and not record.job.spec.hook]
        laneless = [job.id for job in new if job.lane is None and job.queue in pools]
        if laneless:
            answers = await self.cancel(laneless)
            await self.replay([job for job, answer in zip(laneless, answers, strict=True) if answer == "cancelled"])

    # ── consumer ──────────────────────────────────────────────────────────────────────────────

    async def claim(self, request: Claim) -> list[Job]:
        if self._given_clock is None:
            await self._skew.check()
        return await self._claimer.claim(request)

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        for _, change in items:
            check_specs(change.jobs)
        keys = [self._layout.job(lease.job) for lease, _ in items]
        run = await self._engine.carry_out(
            [Item(key, _settling(lease, change)) for key, (lease, change) in zip(keys, items, strict=True)],
            places={lease.seq: key for key, (lease, _) in zip(keys, items, strict=True)},
            guessed=self._engine.guesses(keys),
            expected=[TASKS, *keys, *self._queues_of(keys)],
        )
        await self._engine.dependents.tell(run)
        return [
            receipt if receipt is not Receipt.LOST or key not in run.unsure else await self._told(lease, change)
            for key, (lease, change), receipt in zip(keys, items, run.answers, strict=True)
        ]

    async def _told(self, lease: Lease, change: Change) -> Receipt:
        """An answer was lost, and others have gone on from what may have been ours: the events tell whether it was."""
        history = await self.history(lease.job)
        ends = [event for event in history if event.lease == lease.id and event.state != State.RUNNING]
        if not ends:
            return Receipt.LOST
        as_asked = ends[-1].state == State.CANCELLED and change.verb is not Verb.CANCEL
        return Receipt.CANCELLING if as_asked else Receipt.OK

    def _queues_of(self, keys: Iterable[str]) -> list[str]:
        held = [
            job_value(seen.value, {}) for seen in self._engine.guesses(keys) if b'"data":{' not in (seen.value or b"")
        ]
        return [self._layout.queue(value.job.queue) for value in held if value.job is not None]

    async def extend(self, extensions: Sequence[Extension]) -> list[Receipt]:
        keys = [self._layout.job(extension.lease.job) for extension in extensions]
        run = await self._engine.carry_out(
            [Item(key, _extending(extension)) for key, extension in zip(keys, extensions, strict=True)],
            places={extension.lease.seq: key for key, extension in zip(keys, extensions, strict=True)},
            guessed=self._engine.guesses(keys),
            expected=keys,
            durable=False,
        )
        return run.answers

    async def reclaim(self, request: Reclaim) -> list[Job]:
        claim_id = self._claimer.claim_id()
        run = await self._engine.carry_out(
            [Item(None, lambda ledger, now: ledger.reclaim(request, claim_id, now))],
            looks_at_time=True,
            durable=False,
        )
        return [job for job in run.answers[0] if self._layout.job(job.id) in run.written]

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        waiter = self._waiters.register(queues)
        mark = self.blobs.mark("ready/")
        try:
            due = await self._claimer.next_due(queues, tasks)
            timeout = timeout if due is None else min(timeout, due)
            if timeout > 0:
                await self._sleep(waiter, "ready/", timeout, mark)
        finally:
            self._waiters.forget(waiter)

    async def _sleep(self, waiter: Waiter, prefix: str, timeout: float, mark: int) -> None:
        """Until this process puts something in, or the driver hears that another one did."""
        hint = asyncio.ensure_future(self.blobs.wait_for_change(prefix, timeout, mark))
        mine = asyncio.ensure_future(waiter.sleep(timeout))
        try:
            await asyncio.wait([hint, mine], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (hint, mine):
                task.cancel()
            await asyncio.gather(hint, mine, return_exceptions=True)

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Watch]:
        watch = PollingWatch(self._watchers, job_id)
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
        return await self._asked(lambda ledger, now: operate.position(ledger, job_id, now))

    async def lanes(self, queue: str) -> list[LaneStatus]:
        return await self._asked(lambda ledger, now: operate.lanes(ledger, queue))

    async def history(self, job_id: str) -> list[Event]:
        return await self._asked(lambda ledger, now: ledger.history(job_id))

    async def events(self, cursor: str | None, limit: int) -> EventPage:
        return await self._feed.events(cursor, limit, await self.now())

    async def event_spans(
        self, after: str | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        return await self._spans.spans(after, n, limit, until, await self.now())

    async def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[list[Event]]:
        async for events in self._spans.scan(span, batch):
            yield events

    async def cursor_before(self, at: int) -> str:
        return await self._feed.cursor_before(at)

    def cursor_at(self, at: int) -> str:
        return self._feed.cursor_at(at)

    async def partitions(self, n: int) -> list[Partition]:
        return self._reader.partitions(n)

    async def scan(self, partition: Partition, batch: int = 1_000) -> AsyncIterator[list[Job]]:
        async for jobs in self._reader.scan(partition, batch, await self.now()):
            yield jobs

    def is_in(self, partition: Partition, job_id: str) -> bool:
        """Does a scan of this partition meet that id?"""
        return self._layout.shard_of(name_of(job_id)) in self._reader.shards_in(partition)

    # ── operator ──────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]:
        return await self._each(
            ids, lambda job_id: lambda ledger, now: operate.cancel(ledger, [job_id], running, now)[0]
        )

    async def replay(self, ids: Sequence[str]) -> list[Replayed]:
        return await self._each(ids, lambda job_id: lambda ledger, now: operate.replay(ledger, [job_id], now)[0])

    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]:
        return await self._each(
            ids, lambda job_id: lambda ledger, now: operate.archive(ledger, [job_id], archived, now)[0]
        )

    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        changes_queue = target == "queue" and bool(changes)
        run = await self._engine.carry_out(
            [Item(None, lambda ledger, now: operate.control(ledger, target, name, changes, now))],
            together=True,
            counting=changes_queue,
            pins_lines=changes_queue,  # whoever changes a lane at this moment sees the pause, or is seen
        )
        if changes and target != "store":  # what was counted for it may have moved before it was written
            await self._recount([self._layout.queue(name) if target == "queue" else TASKS])
        if changes:
            self._waiters.wake(dict.fromkeys(self._waiters.asleep()[1], EVERYBODY))
        return run.answers[0]

    async def drain(self, queue: str, limit: int = 1_000, lane: int | None = None) -> int:
        def drained(job: Job | None) -> bool:
            return job is not None and job.state is State.CANCELLED

        return await self._count_up(lambda rest: _draining(queue, rest, lane), limit, drained)

    async def obliterate(self, queue: str, limit: int = 1_000) -> int:
        return await self._count_up(lambda rest: _obliterating(queue, rest), limit, lambda job: job is None)

    async def _count_up(
        self,
        decide: Callable[[int], Callable[[Ledger, int], int]],
        limit: int,
        is_done: Callable[[Job | None], bool],
    ) -> int:
        """In parts, again and again while others are faster: the count says whether there is more."""
        count = 0
        while True:
            run = await self._parts(decide(limit - count))
            if not run.wasted:
                return count + run.answers[0]
            count += sum(is_done(record.job) for record in run.records.values() if record.was.seq)
            if count >= limit:
                return count

    async def maintain(self, limit: int = 1_000) -> Maintained:
        promoted, expired = await self._claimer.let_time_pass(limit)
        passed = Maintained(expired=expired, more=max(promoted, expired) >= limit)
        jobs = await self._parts(lambda ledger, now: upkeep.look_after_jobs(ledger, now, limit), counting=True)
        past = await self._parts(lambda ledger, now: upkeep.forget_the_past(ledger, now, limit))
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
        """Put right what crashes have left: a bounded piece of a round, or with `full` a whole one, whatever has been
        looked at before."""
        return await self._sweeper.sweep(self.options.monitor_sweep_page_size if limit is None else limit, full=full)

    def shares(self, n: int) -> list[SweepShare]:
        return shares(self._layout, n)

    async def sweep_share(self, share: SweepShare) -> Swept:
        return await self._sweeper.sweep_share(share)

    async def sweep_rest(self, began: int) -> Swept:
        return await self._sweeper.sweep_rest(began)

    async def beat(self, info: WorkerInfo, ttl: int) -> None:
        key = self._layout.worker(info.id)
        now = await self.now()
        [seen] = await self._engine.objects.read([key])
        started = now if seen.value is None else decode(seen.value, WorkerRecord).started_at
        info = msgspec.structs.replace(info, shards=self.options.shards or ())
        record = WorkerRecord(info, started, now, ttl, True)
        await self.blobs.put(key, sealed(encode(record)), durable=False)

    async def leave(self, worker_id: str) -> None:
        await self.blobs.delete([self._layout.worker(worker_id)])

    async def workers(self) -> list[WorkerRecord]:
        return await self._asked(operate.workers)

    # ── schedules ─────────────────────────────────────────────────────────────────────────────

    async def schedules(self) -> list[Schedule]:
        return await self._asked(lambda ledger, now: ledger.tables.schedules())

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        check_moves(moves)
        answers = []
        for move in moves:
            run = await self._together(_moving(move))
            answers.append(run.answers[0])
        return answers

    # ── ways of asking ────────────────────────────────────────────────────────────────────────

    @property
    def _layout(self) -> Layout:
        return self._engine.layout

    async def _asked(self, question: Callable[[Ledger, int], T]) -> T:
        answer, _ = await self._engine.decide(self._engine.view(), question)
        return answer

    async def _together(
        self,
        decide: Callable[[Ledger, int], T],
        *,
        counting: bool = False,
        expected: Iterable[str] = (),
        guessed: Iterable[Seen] = (),
    ) -> Run[T]:
        """All of it, or nothing."""
        run = await self._engine.carry_out(
            [Item(None, decide)], together=True, counting=counting, expected=expected, guessed=guessed
        )
        await self._engine.dependents.tell(run)
        return run

    async def _parts(self, decide: Callable[[Ledger, int], T], *, counting: bool = False) -> Run[T]:
        """What can be done in parts; what somebody else has just changed is left for the next time."""
        run = await self._engine.carry_out([Item(None, decide)], counting=counting)
        await self._engine.dependents.tell(run)
        return run

    async def _each(self, ids: Sequence[str], decide: Callable[[str], Callable[[Ledger, int], T]]) -> list[T]:
        """Each id for itself; an id that stands there twice is asked twice, one after the other.

        Who waits for one of them is told before the next one is asked: it may be the next one.
        """
        answers: list[T] = []
        for some in await self._waves(ids):
            run = await self._engine.carry_out(
                [Item(self._layout.job(job_id), decide(job_id)) for job_id in some],
                expected=[self._layout.job(job_id) for job_id in some],
            )
            answers += run.answers
            await self._engine.dependents.tell(run)
        return answers

    async def _waves(self, ids: Sequence[str]) -> list[list[str]]:
        """The ids in their order; each that somebody waits for ends a wave."""
        if len(ids) < 2:
            return [list(ids)]
        unique = [*dict.fromkeys(self._layout.job(job_id) for job_id in ids)]
        seen = {one.key: one for one in await self._engine.objects.read(unique)}
        waves: list[list[str]] = [[]]
        for job_id in ids:
            value = seen[self._layout.job(job_id)].value
            waves[-1].append(job_id)
            if value is not None and decode(value, JobValue).awaited:
                waves.append([])
        return [wave for wave in waves if wave]

    async def _recount(self, keys: Sequence[str]) -> None:
        """Counters that limits go by, from the records, at once."""
        counters = CounterSweep(self._engine, Round(self._engine.objects, await self.now(), None, 0))
        await counters.look_at_queues([key for key in keys if key != TASKS], surely=True)
        if TASKS in keys:
            await counters.look_at_tasks(surely=True)

    def _announce(self, opened: Counter[str], ended: list[str]) -> None:
        if opened:
            self._waiters.wake(opened)
        if ended:
            self._watchers.wake(dict.fromkeys(ended, EVERYBODY))


def _draining(queue: str, limit: int, lane: int | None) -> Callable[[Ledger, int], int]:
    return lambda ledger, now: operate.drain(ledger, queue, limit, now, lane)


def _obliterating(queue: str, limit: int) -> Callable[[Ledger, int], int]:
    return lambda ledger, now: operate.obliterate(ledger, queue, limit, now)


def _moving(move: Move) -> Callable[[Ledger, int], Moved]:
    return lambda ledger, now: scheduling.advance(ledger, [move], now)[0]


def _settling(lease: Lease, change: Change) -> Callable[[Ledger, int], Receipt]:
    return lambda ledger, now: ledger.settle([(lease, change)], now)[0]


def _extending(extension: Extension) -> Callable[[Ledger, int], Receipt]:
    return lambda ledger, now: ledger.extend([extension], now)[0]
