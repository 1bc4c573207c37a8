"""The PostgreSQL store: plain work is one statement, everything else is a step of the ledger in one transaction."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar, cast

from millrace.domain import operate, scheduling, upkeep
from millrace.domain.change import Change
from millrace.domain.check import check_specs
from millrace.domain.errors import StoreError
from millrace.domain.event import Event
from millrace.domain.job import Job, Lease, Spec
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
from millrace.domain.tables import Tables
from millrace.store.clock import Clock
from millrace.store.postgres import again, plain
from millrace.store.postgres.abreast import enqueue_behind
from millrace.store.postgres.address import Address
from millrace.store.postgres.history import NUMBERED_AT_ONCE, FeedPage, events_of_id, texts
from millrace.store.postgres.listen import Listener
from millrace.store.postgres.migrate import migrate
from millrace.store.postgres.record import job_from_row
from millrace.store.postgres.session import Before, LongWay, Question, Session
from millrace.store.postgres.tables import PostgresTables
from millrace.store.postgres.trouble import code_of, store_error
from millrace.store.postgres.within import PostgresWithin
from millrace.store.protocol import Ending, Target, Watch
from millrace.store.waiters import Waiter, Waiters

T = TypeVar("T")

_SLICE = 5.0  # seconds; how long a sleeper goes without looking when the next job is due
_FIRST = 0.001  # seconds that a sleeper leaves to the jobs just claimed: the question when more is due can wait
_EVERYBODY = 1 << 30
_LARGE = 1_000  # events of a batch, from which on several …
_BATCHES = 10  # … are read in one go: a row that is read twice is unpacked twice
_LAST = (1 << 31) - 1
_END = (1 << 63) - 1
_RECEIPTS = (Receipt.LOST, Receipt.OK, Receipt.CANCELLING)


class PostgresStore:
    ids: Literal["sorted", "random"] = "sorted"
    steps_overlap = True
    durability = (
        "an answer survives a crash of the server and of its machine, where the server's fsync and synchronous_commit "
        "are on"
    )

    def __init__(self, url: str | Address, *, clock: Clock | None = None, salt: str | None = None) -> None:
        self.address = Address.from_url(url) if isinstance(url, str) else url
        self.url = self.address.url
        self._clock = clock
        self._salt = secrets.token_hex(6) if salt is None else salt
        self._claims = itertools.count(1)
        self._session: Session | None = None
        self._listener: Listener | None = None
        self._left: list[object] = []
        self._pid = os.getpid()
        self.floors = plain.Floors()
        self._waiters = Waiters()
        self.watchers = Waiters()
        self.watching: Counter[str] = Counter()
        self.endings: dict[str, Ending] = {}  # what was heard of those that are watched

    # ── opening ───────────────────────────────────────────────────────────────────────────────

    async def connect(self) -> None:
        if self._session is not None and not self._is_left():
            return
        session = self._new_session()
        try:
            async with session.connections.one() as connection:
                await migrate(connection, self.address.schema)
                session.identity = await connection.fetchval(session.sql["identity"])
        except BaseException as error:
            await session.close()
            if isinstance(error, OSError | TimeoutError) or code_of(error):
                raise store_error(error, self.url) from error
            raise
        self._begin(session)

    def _new_session(self) -> Session:
        return Session(self.address, self._clock)

    def _begin(self, session: Session) -> None:
        if self._session is not None:
            self._left.append((self._session, self._listener))  # somebody else's: not even to be closed from here
            if self._pid == os.getpid():
                self._session.leave()
            self._salt = secrets.token_hex(6)  # who was there before goes on counting claims under the old one
        self._pid = os.getpid()
        self._listener = Listener(session.connections, self.address.schema, self.address.notify)
        self._listener.on_jobs = self._waiters.wake
        self._listener.on_ended = self._tell_watchers
        self._listener.on_gap = self._wake_all
        self._listener.asleep = lambda: self._waiters.asleep()[0]
        session.fit_out = self.fit_out
        self._session = session

    def _is_left(self) -> bool:
        """Are the connections those of a parent process, or of an event loop that is over?"""
        return self._pid != os.getpid() or (self._session is not None and self._session.loop.is_closed())

    async def close(self) -> None:
        session, listener = self._session, self._listener
        self._session = self._listener = None
        if self._pid != os.getpid() or (session is not None and session.loop.is_closed()):
            return
        if listener is not None:
            await listener.close()
        if session is not None:
            await session.close()

    def beside(self) -> PostgresStore:
        return PostgresStore(self.address, clock=self._clock)

    def session(self) -> Session:
        if self._session is None:
            raise StoreError(f"{self.url}: not connected. Call connect() first, or use `async with app:`")
        if self._is_left():
            session = self._new_session()
            session.identity = self._session.identity
            self._begin(session)
            return session
        return self._session

    def listener(self) -> Listener:
        assert self._listener is not None
        return self._listener

    async def facts(self) -> dict[str, Any]:
        """What the doctor wants to know of the server."""
        session = self.session()
        [row] = await session.call("server_facts", self.address.schema)
        tables = await session.call("table_facts", self.address.schema)
        if self.address.notify:
            await self.listener().listen()
        works = await self.listener().probed() if self.address.notify else None
        return {
            **dict(row),
            "schema": self.address.schema,
            "notify": works,
            "tables": [tuple(table) for table in tables],
        }

    async def now(self) -> int:
        return int((await self.session().call("clock", self.session().given()))[0][0])

    # ── telling ───────────────────────────────────────────────────────────────────────────────

    def fit_out(self, tables: PostgresTables) -> None:
        self.floors.forget()
        tables.watched = self.watching
        tables.reply_to = self.listener().mine

    def announce(self, opened: Mapping[str, int], ended: Sequence[str], replies: Sequence[tuple[str, str]]) -> None:
        """Wake who waits for what a commit made claimable or brought to an end: here first, then elsewhere."""
        left = self._waiters.wake(opened) if opened else {}
        if ended and self.watching:
            self._tell_watchers(ended)
        if (left or replies) and self._listener is not None:
            self._listener.tell(left, replies)

    def _tell_watchers(self, ids: Sequence[str], ending: Ending | None = None) -> None:
        if ending is not None:
            self.endings.update((job_id, ending) for job_id in ids if job_id in self.watching)
        self.watchers.wake(dict.fromkeys(ids, _EVERYBODY))

    def _wake_all(self) -> None:
        """Word may have been missed: everybody looks for themselves."""
        for waiters in (self._waiters, self.watchers):
            waiters.wake(dict.fromkeys(waiters.asleep()[1], _EVERYBODY))

    async def _write(
        self,
        question: Question[T],
        lost_reply: Callable[[], Awaitable[Before[T] | None]] | None = None,
        queues: Iterable[str] = (),
        call: str | None = None,
    ) -> T:
        self.floors.forget()
        answer, tables = await self.session().write(question, queues=queues, call=call, again=lost_reply)
        if tables is not None:
            self.announce(tables.opened, tables.ended, tables.replies)
        return answer

    async def _read(self, question: Question[T]) -> T:
        return await self.session().read(question)

    # ── producer and consumer ─────────────────────────────────────────────────────────────────

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        if not specs:
            return []
        session = self.session()
        arguments = await self.plain_arguments(specs)
        if arguments is not None:
            opened = plain.opened(specs)
            word = self.listener().word_of(opened) if opened and session.may_tell and not self._waiters else None
            try:
                seqs = await self._enqueue_plain(session, arguments, word)
            except LongWay:
                seqs = None
            if seqs is not None:
                if word is None:
                    self.announce(opened, (), ())
                return plain.enqueued(specs, seqs)
        return await self._write(lambda ledger, now: ledger.enqueue(specs, now), queues={spec.queue for spec in specs})

    async def enqueue_behind(
        self, specs: Sequence[Spec], before: asyncio.Future[list[Enqueued]] | None
    ) -> asyncio.Future[list[Enqueued]]:
        check_specs(specs)
        return await enqueue_behind(self, specs, before)

    async def plain_arguments(self, specs: Sequence[Spec]) -> list[Any] | None:
        """For `enqueue_plain`; None when one of the specs is not plain."""
        session = self.session()
        arguments = plain.enqueue_arguments(specs, session.combo_ids, self.watching, self.listener().mine)
        if arguments is None and await session.learn_combos((spec.queue, spec.task, spec.priority) for spec in specs):
            arguments = plain.enqueue_arguments(specs, session.combo_ids, self.watching, self.listener().mine)
        return arguments

    async def _enqueue_plain(
        self, session: Session, arguments: Sequence[Any], word: tuple[str, str] | None
    ) -> Sequence[int] | None:
        """Their seqs; None when it takes the long way."""
        given = session.given(), *arguments, None
        if word is None:
            rows = await session.call("enqueue_plain", *given)
        else:
            rows = await session.call_and_tell("enqueue_and_tell", "enqueue_plain", given, word)
        return cast("Sequence[int] | None", rows[0][0])

    def within(self, connection: object) -> PostgresWithin:
        return PostgresWithin(self, connection)

    def claim_id(self) -> str:
        return f"{self._salt}-{next(self._claims):x}"

    async def claim(self, request: Claim) -> list[Job]:
        session, claim_id = self.session(), self.claim_id()
        before = again.claimed_before(session, claim_id)
        floor = self.floors.at(session.loop.time())
        arguments = plain.claim_arguments(request, claim_id, floor)
        rows = await session.call("claim_plain", session.given(), *arguments, again=before)
        if isinstance(rows, Before):
            return cast("list[Job]", rows.answer)
        jobs = plain.claimed(rows, request)
        if jobs is not None:
            self.floors.taken(jobs, request.limit, session.combo_ids, floor, session.loop.time())
            return jobs
        return await self._write(
            lambda ledger, now: ledger.claim(request, claim_id, now), before, request.queues, claim_id
        )

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        for _, change in items:
            check_specs(change.jobs)
        if not items:
            return []
        before = again.settled_before(self.session(), items)
        found = await self._complete(items, before)
        if found is None:
            found = await self._write(lambda ledger, now: ledger.settle(items, now), before, call=again.name_of(items))
        return found

    async def _complete(self, items: Sequence[tuple[Lease, Change]], before: Any) -> list[Receipt] | None:
        wanted = plain.complete_arguments(items)
        if wanted is None:
            return None
        session = self.session()
        order, arguments = wanted
        given, tells = (session.given(), *arguments), session.may_tell and self.address.notify
        try:
            if tells:
                mine = [self.listener().mine]
                rows = await session.call_and_tell("complete_and_tell", "complete_plain", given, mine, before)
            else:
                rows = await session.call("complete_plain", *given, again=before)
        except LongWay:
            return None
        if isinstance(rows, Before):
            return cast("list[Receipt]", rows.answer)
        if not rows or rows[0][0] is None:
            return None
        [(held, channels)] = rows
        receipts = plain.receipts(held, order)
        ended = [items[order[n - 1]][0].job for n in held]
        replies = [(channel, job) for channel, job in zip(channels, ended, strict=True) if channel is not None]
        self.announce({}, ended, () if tells else replies)
        return receipts

    async def extend(self, extensions: Sequence[Extension]) -> list[Receipt]:
        if not extensions:
            return []
        session = self.session()
        rows = await session.call(
            "extend_leases",
            session.given(),
            [extension.lease.seq for extension in extensions],
            [extension.lease.id for extension in extensions],
            [extension.by for extension in extensions],
            [extension.progress for extension in extensions],
        )
        return [_RECEIPTS[answer] for answer in rows[0][0]]

    async def reclaim(self, request: Reclaim) -> list[Job]:
        if not (await self.session().call("overdue", self.session().given()))[0][0]:
            return []
        claim_id = self.claim_id()
        before = again.claimed_before(self.session(), claim_id)
        return await self._write(lambda ledger, now: ledger.reclaim(request, claim_id, now), before, call=claim_id)

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self.session()
        await self.listener().listen()
        waiter = self._waiters.register(queues)
        try:
            await waiter.sleep(_FIRST)
            while not waiter.woken:
                due, now = await self._next_due(queues, tasks)
                left = deadline - loop.time()
                if due is not None:
                    left = min(left, (due - now) / 1000)
                if left <= 0:
                    return
                await waiter.sleep(min(left, _SLICE))
                if left <= _SLICE:
                    return
        finally:
            self._waiters.forget(waiter)

    async def _next_due(self, queues: Sequence[str], tasks: frozenset[str] | None) -> tuple[int | None, int]:
        session, known = self.session(), None if tasks is None else list(tasks)
        [(is_plain, due, now)] = await session.call("next_due", session.given(), list(queues), known)
        if is_plain:
            return due, now
        return await self._read(lambda ledger, now: (ledger.next_due(queues, tasks, now), now))

    # ── reader ────────────────────────────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        session = self.session()
        rows = await session.call("look_at_ids", session.given(), texts(ids))
        found = {row[-1]: row for row in rows}
        return [
            without_expired_result(job_from_row(found[job_id][1:]), found[job_id][0]) if job_id in found else None
            for job_id in ids
        ]

    async def find(self, query: Query) -> Page:
        return await self._read(lambda ledger, now: operate.find(ledger, query, now))

    async def count(self) -> list[QueueCounts]:
        return await self._read(operate.counts)

    async def position(self, job_id: str) -> int | None:
        if not texts([job_id]):
            return None
        session = self.session()
        found: int | None = (await session.call("position_of", session.given(), job_id, operate.MOST_AHEAD))[0][0]
        return found

    async def lanes(self, queue: str) -> list[LaneStatus]:
        def look(ledger: Ledger, _now: int) -> list[LaneStatus]:
            _tables(ledger).look_at_lanes(queue)
            return operate.lanes(ledger, queue)

        return await self._read(look)

    async def history(self, job_id: str) -> list[Event]:
        session = self.session()
        rows = await session.call("history", job_id) if texts([job_id]) else []
        await session.know_combos(number for row in rows for number in row[5])
        return events_of_id(rows, session.combo_names.__getitem__)

    async def _number(self) -> None:
        """What is committed now gets its numbers in the feed."""
        while (await self.session().call("number_events", NUMBERED_AT_ONCE))[0][0] == NUMBERED_AT_ONCE:
            pass

    async def events(self, cursor: str | None, limit: int) -> EventPage:
        session = self.session()
        after = int(cursor) if cursor is not None and cursor.isascii() and cursor.isdigit() else None
        wanted = None if after is None else min(after, 1 << 62), max(0, min(limit, _LAST))
        while (rows := await session.call("feed_page", *wanted, NUMBERED_AT_ONCE))[0][0]:
            pass  # there is more to be numbered
        await session.know_combos(number for row in rows if row[3] is not None for number in row[8])
        page = FeedPage(rows, session.combo_names.__getitem__)
        return operate.events(Ledger(cast("Tables", page)), cursor, limit)

    async def event_spans(
        self, after: str | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        await self._number()
        return await self._read(lambda ledger, _: operate.event_spans(ledger, after, n, limit, until))

    async def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[list[Event]]:
        after, until = operate.span_bounds(span)
        while after < until:
            events = await self._read(_span(after, until, batch * _BATCHES if batch >= _LARGE else batch))
            if not events:
                return
            after += len(events)
            for start in range(0, len(events), batch):
                yield events[start : start + batch]

    async def cursor_before(self, at: int) -> str:
        await self._number()
        return await self._read(lambda ledger, _: operate.cursor_before(ledger, at))

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncIterator[Watch]:
        self.session()
        await self.listener().listen()
        watch = _Watch(self, job_id)
        try:
            yield watch
        finally:
            watch.close()

    async def partitions(self, n: int) -> list[Partition]:
        return await self._read(lambda ledger, _: operate.partitions(ledger, n))

    async def scan(self, partition: Partition, batch: int = 1_000) -> AsyncIterator[list[Job]]:
        after, to = operate.partition_bounds(partition)
        session = self.session()
        while rows := await session.call("scan", session.given(), after, min(to, _END), min(batch, _LAST)):
            after = rows[-1][1]
            yield [without_expired_result(job_from_row(row[1:]), row[0]) for row in rows]

    # ── operator ──────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]:
        return await self._write(lambda ledger, now: operate.cancel(ledger, ids, running, now))

    async def replay(self, ids: Sequence[str]) -> list[Replayed]:
        return await self._write(lambda ledger, now: operate.replay(ledger, ids, now))

    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]:
        return await self._write(lambda ledger, now: operate.archive(ledger, ids, archived, now))

    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        def change(ledger: Ledger, now: int) -> QueueSettings | Limits | StoreSettings:
            if target == "queue" and changes:
                _tables(ledger).alone_in.add(name)
            return operate.control(ledger, target, name, changes, now)

        return await (self._write(change) if changes else self._read(change))

    async def drain(self, queue: str, limit: int = 1_000, lane: int | None = None) -> int:
        return await self._write(lambda ledger, now: operate.drain(ledger, queue, limit, now, lane))

    async def obliterate(self, queue: str, limit: int = 1_000) -> int:
        return await self._write(lambda ledger, now: operate.obliterate(ledger, queue, limit, now))

    async def maintain(self, limit: int = 1_000) -> Maintained:
        def round_of_upkeep(ledger: Ledger, now: int) -> Maintained:
            _tables(ledger).lock(["upkeep"])  # two at once would each take away what is over a bound
            _tables(ledger).rows("fold_tally")
            return upkeep.maintain(ledger, now, limit)

        return await self._write(round_of_upkeep)

    async def beat(self, info: WorkerInfo, ttl: int) -> None:
        await self._write(lambda ledger, now: operate.beat(ledger, info, ttl, now))

    async def leave(self, worker_id: str) -> None:
        await self._write(lambda ledger, _: ledger.tables.drop_worker(worker_id))

    async def workers(self) -> list[WorkerRecord]:
        return await self._read(operate.workers)

    # ── scheduling ────────────────────────────────────────────────────────────────────────────

    async def schedules(self) -> list[Schedule]:
        return await self._read(lambda ledger, _: ledger.tables.schedules())

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        check_moves(moves)
        return await self._write(lambda ledger, now: scheduling.advance(ledger, moves, now))


def _tables(ledger: Ledger) -> PostgresTables:
    assert isinstance(ledger.tables, PostgresTables)
    return ledger.tables


def _span(after: int, until: int, batch: int) -> Callable[[Ledger, int], list[Event]]:
    return lambda ledger, _now: operate.span_events(ledger, after, until, batch)


class _Watch:
    """Registered from the moment it exists; registers anew before each further wait."""

    def __init__(self, store: PostgresStore, job_id: str) -> None:
        self._store = store
        self._job_id = job_id
        store.watching[job_id] += 1
        self._waiter: Waiter = store.watchers.register([job_id])

    async def wait(self, timeout: float) -> Ending | None:
        await self._waiter.sleep(timeout)
        if self._waiter.woken:
            self._waiter = self._store.watchers.register([self._job_id])
        return self._store.endings.get(self._job_id)

    def close(self) -> None:
        watching = self._store.watching
        watching[self._job_id] -= 1
        if watching[self._job_id] <= 0:
            del watching[self._job_id]
            self._store.endings.pop(self._job_id, None)
        self._store.watchers.forget(self._waiter)
