"""The PostgreSQL store. A fast-path call is one statement; any other call is a step of the ledger in a transaction."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar, cast

from millrace.domain import feed
from millrace.domain.change import Change
from millrace.domain.errors import StoreError
from millrace.domain.event import Event
from millrace.domain.export import Exported, ExportPage
from millrace.domain.job import Job, Lease, Spec
from millrace.domain.ledger import Ledger, without_expired_result
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
from millrace.domain.rules.fast_path import is_simple
from millrace.domain.rules.outlook import Outlook
from millrace.domain.schedule import EVERY_SCHEDULE, DueSchedules, Move, Moved, Schedule, check_moves
from millrace.domain.settings import Closing, Limits, QueueSettings, StoreSettings
from millrace.domain.tables import Place
from millrace.store.base import BaseStore
from millrace.store.clock import Clock
from millrace.store.postgres import fast_path
from millrace.store.postgres.abreast import enqueue_behind
from millrace.store.postgres.address import Address, check_isolation
from millrace.store.postgres.errors import code_of, store_error
from millrace.store.postgres.history import NUMBERED_AT_ONCE, FeedPage, events_of_id
from millrace.store.postgres.listen import Listener
from millrace.store.postgres.migrate import migrate
from millrace.store.postgres.session import (
    Before,
    LostReply,
    NotOnFastPath,
    Question,
    Session,
    claimed_before,
    settle_name,
    settled_before,
)
from millrace.store.postgres.tables import PostgresTables
from millrace.store.postgres.within import PostgresWithin
from millrace.store.protocol import Ending, Store, Target, Watch
from millrace.store.shared_enqueues import SharedEnqueues
from millrace.store.sql.ports import Effects
from millrace.store.sql.record import job_from_row, texts
from millrace.store.waiters import Sleepers, Waiter, Waiters

T = TypeVar("T")

_SETTINGS = "settings"  # the lock of the settings of the store
_SLICE = 5.0  # seconds between two checks of a sleeper for the next due job
_FIRST = 0.001  # seconds before a sleeper's first check, so that the jobs just claimed go first
_LARGE = 1_000  # events per batch from which …
_BATCHES = 10  # … several batches are read at once: a row that is read twice is unpacked twice
_LAST = (1 << 31) - 1
_END = (1 << 63) - 1
_RECEIPTS = (Receipt.LOST, Receipt.OK, Receipt.CANCELLING)


class PostgresStore(BaseStore):
    concurrent_writes = True
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
        self.floors = fast_path.Floors()
        self._sleepers = Sleepers()
        self.watchers = Waiters()
        self.watching: Counter[str] = Counter()
        self.endings: dict[str, Ending] = {}  # received results of watched jobs

    # ── opening ───────────────────────────────────────────────────────────────────────────────

    async def connect(self) -> None:
        if self._session is not None and not self._is_left():
            return
        session = self._new_session()
        try:
            async with session.connections.one() as connection:
                await self._prepare(connection)
                session.identity = await connection.fetchval(session.sql["identity"])
                await check_isolation(connection, self.address)
        except BaseException as error:
            await session.close()
            if isinstance(error, OSError | TimeoutError) or code_of(error):
                raise store_error(error, self.url) from error
            raise
        self._begin(session)

    async def _prepare(self, connection: Any) -> None:
        await migrate(connection, self.address.schema)

    def _new_session(self) -> Session:
        shared_enqueues = SharedEnqueues(self._enqueue_alone, self._enqueue_together)
        return Session(self.address, self._clock, self.new_effects, shared_enqueues)

    def _begin(self, session: Session) -> None:
        if self._session is not None:
            self._left.append((self._session, self._listener))  # of another process or loop: must not even be closed
            if self._pid == os.getpid():
                self._session.leave()
            self._salt = secrets.token_hex(6)  # the old process or loop continues to use the old one in claim ids
        self._pid = os.getpid()
        self._listener = Listener(
            session.connections,
            self.address.schema,
            self.address.notify,
            session.given,
            self._sleepers,
            on_ended=self._tell_watchers,
            on_gap=self._wake_all,
        )
        self._session = session

    def _is_left(self) -> bool:
        """Return whether the connections are unusable: they belong to the parent process or to a closed event loop."""
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

    def for_loop(self) -> PostgresStore:
        return type(self)(self.address, clock=self._clock)

    def for_reading(self) -> Store:
        from millrace.store.postgres.read_only import ReadOnlyPostgresStore

        return ReadOnlyPostgresStore(self.address, clock=self._clock)

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
        """Return the properties of the server that `millrace doctor` checks."""
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

    # ── notifying ─────────────────────────────────────────────────────────────────────────────

    def new_effects(self) -> Effects:
        """Return new `Effects` for one step, and make the next claim read the whole index.

        The step may return jobs to the queue. A claim that starts at the floor would miss them (see `Floors`).
        """
        self.floors.forget()
        return Effects(self.watching, lambda: self.listener().mine)

    def announce(self, opened: Mapping[Place, int], ended: Sequence[str], replies: Sequence[tuple[str, str]]) -> None:
        """Wake idle workers for claimable jobs, and callers that wait for ended jobs: first in this process, then in
        others.
        """
        left = self._sleepers.wake(opened) if opened else {}
        if ended and self.watching:
            self._tell_watchers(ended)
        if (left or replies) and self._listener is not None:
            self._listener.notify(left, replies)

    def _tell_watchers(self, ids: Sequence[str], ending: Ending | None = None) -> None:
        if ending is not None:
            self.endings.update((job_id, ending) for job_id in ids if job_id in self.watching)
        self.watchers.wake(ids)

    def _wake_all(self) -> None:
        """Wake every idle worker and every waiting caller, because notifications may have been missed."""
        self._sleepers.wake_all()
        self.watchers.wake_all()

    async def _write(
        self,
        question: Question[T],
        lost_reply: LostReply[T] | None = None,
        queues: Iterable[str] = (),
        call: str | None = None,
    ) -> T:
        self.floors.forget()
        answer, news = await self.session().write(question, queues=queues, call=call, again=lost_reply)
        self.announce(*news)
        return answer

    async def _read(self, question: Question[T]) -> T:
        return await self.session().read(question)

    # ── producer and consumer ─────────────────────────────────────────────────────────────────

    async def enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        check_specs(specs)
        if not specs:
            return []
        session = self.session()
        if len(specs) == 1 and specs[0].token and is_simple(specs[0]):
            return [await session.shared_enqueues.put(specs[0])]
        return await self._enqueue(specs)

    async def _enqueue(self, specs: Sequence[Spec]) -> list[Enqueued]:
        repeated = False
        try:
            answer = await self._enqueue_plain(specs)
        except NotOnFastPath as error:
            answer, repeated = None, error.may_have_committed
        if answer is None:
            answer = await self._write(
                lambda ledger, now: ledger.enqueue(specs, now), queues={spec.queue for spec in specs}
            )
        if repeated:  # the step found the jobs that the fast path has stored, and opened none
            self.announce(fast_path.opened(specs), (), ())
        return answer

    async def _enqueue_alone(self, spec: Spec) -> Enqueued:
        [enqueued] = await self._enqueue([spec])
        return enqueued

    async def _enqueue_together(self, specs: Sequence[Spec]) -> Sequence[Enqueued | None]:
        """Enqueue the specs of several callers on the fast path. If it does not apply to all, return None for each."""
        answers: Sequence[Enqueued | None] | None = None
        try:
            answers = await self._enqueue_plain(specs, brief=True)
        except NotOnFastPath as error:
            if error.may_have_committed:
                self.announce(fast_path.opened(specs), (), ())
        return [None] * len(specs) if answers is None else answers

    async def enqueue_behind(
        self, specs: Sequence[Spec], before: asyncio.Future[list[Enqueued]] | None
    ) -> asyncio.Future[list[Enqueued]]:
        check_specs(specs)
        return await enqueue_behind(self, specs, before)

    async def plain_arguments(
        self, specs: Sequence[Spec], arguments_of: fast_path.ArgumentsOf = fast_path.enqueue_arguments
    ) -> list[Any] | None:
        """Return the arguments of `enqueue_plain`, or of `enqueue_one`; None if a spec is not on the fast path."""
        session, mine = self.session(), self.listener().mine
        arguments = arguments_of(specs, session.combo_ids, self.watching, mine)
        if arguments is None and await session.learn_combos((spec.queue, spec.task, spec.priority) for spec in specs):
            arguments = arguments_of(specs, session.combo_ids, self.watching, mine)
        return arguments

    async def _enqueue_plain(self, specs: Sequence[Spec], *, brief: bool = False) -> list[Enqueued] | None:
        """Enqueue jobs in one statement. Return None if the call must run as a step of the ledger.

        A `brief` call waits only for a short time for locks. Raise NotOnFastPath if it does not get them.
        """
        session = self.session()
        if len(specs) == 1 and is_simple(specs[0]):
            names = "enqueue_one_and_tell", "enqueue_one"
            arguments = await self.plain_arguments(specs, fast_path.enqueue_one_arguments)
        else:
            names = "enqueue_and_tell", "enqueue_plain"
            arguments = await self.plain_arguments(specs)
            if arguments is not None:
                arguments += None, brief
        if arguments is None:
            return None
        opened = fast_path.opened(specs)
        notification = None
        if opened and session.may_notify and not self._sleepers:
            notification = self.listener().notification_for(opened)
        given = session.given(), *arguments
        if notification is None:
            rows = await session.call(names[1], *given, numbered=True, brief=brief)
        else:
            rows = await session.call_and_notify(*names, given, notification, numbered=True, brief=brief)
        seqs: Sequence[int] | None = rows[0][0]
        if seqs is None:
            return None
        if notification is None:
            self.announce(opened, (), ())
        return fast_path.enqueued(specs, seqs)

    def within(self, connection: object) -> PostgresWithin:
        return PostgresWithin(self, connection)

    def claim_id(self) -> str:
        return f"{self._salt}-{next(self._claims):x}"

    async def claim(self, request: Claim) -> list[Job]:
        session, claim_id = self.session(), self.claim_id()
        before = claimed_before(session, claim_id)
        floor = self.floors.at(session.loop.time())
        arguments = fast_path.claim_arguments(request, claim_id, floor)
        rows = await session.call("claim_plain", session.given(), *arguments, again=before)
        if isinstance(rows, Before):
            return cast("list[Job]", rows.answer)
        jobs = fast_path.claimed(rows, request)
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
        before = settled_before(self.session(), items)
        found = await self._complete(items, before)
        if found is None:
            found = await self._write(lambda ledger, now: ledger.settle(items, now), before, call=settle_name(items))
        return found

    async def _complete(self, items: Sequence[tuple[Lease, Change]], before: Any) -> list[Receipt] | None:
        wanted = fast_path.complete_arguments(items)
        if wanted is None:
            return None
        session = self.session()
        order, arguments = wanted
        given, tells = (session.given(), *arguments), session.may_notify and self.address.notify
        try:
            if tells:
                mine = [self.listener().mine]
                rows = await session.call_and_notify("complete_and_tell", "complete_plain", given, mine, before)
            else:
                rows = await session.call("complete_plain", *given, again=before)
        except NotOnFastPath:
            return None
        if isinstance(rows, Before):
            self.announce({}, rows.ended, rows.replies)
            return cast("list[Receipt]", rows.answer)
        if not rows or rows[0][0] is None:
            return None
        [(held, channels, *opened)] = rows
        receipts = fast_path.receipts(held, order, len(items))
        ended = [items[order[n - 1]][0].job for n in held]
        replies = [(channel, job) for channel, job in zip(channels, ended, strict=True) if channel is not None]
        places = fast_path.opened_by_ends(*opened)
        if places:
            self.floors.forget()  # the next members of groups may be due since before the floor
        self.announce(places, ended, () if tells else replies)
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
        found = [_RECEIPTS[answer] for answer in rows[0][0]]
        return found if all(extension.log is None for extension in extensions) else await self._log(extensions, found)

    async def _log(self, extensions: Sequence[Extension], found: Sequence[Receipt]) -> list[Receipt]:
        """Write the logs of leases that were extended. A step writes records; only the statement writes leases."""
        receipts = list(found)
        kept = [n for n, one in enumerate(extensions) if one.log is not None and receipts[n] is not Receipt.LOST]
        if kept:
            logged = [extensions[n] for n in kept]
            written = await self._write(lambda ledger, now: ledger.extend(logged, now))
            for n, receipt in zip(kept, written, strict=True):
                receipts[n] = receipt
        return receipts

    async def reclaim(self, request: Reclaim) -> list[Job]:
        if not (await self.session().call("overdue", self.session().given()))[0][0]:
            return []
        claim_id = self.claim_id()
        before = claimed_before(self.session(), claim_id)
        return await self._write(lambda ledger, now: ledger.reclaim(request, claim_id, now), before, call=claim_id)

    async def wait(self, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self.session()
        await self.listener().listen()
        sleeper = self._sleepers.register(queues, tasks)
        try:
            await sleeper.sleep(_FIRST)
            while not sleeper.woken:
                found, now = await self._outlook(queues, tasks)
                self._sleepers.looked(sleeper, found.held_by)
                left = deadline - loop.time()
                if found.until is not None:
                    left = min(left, (found.until - now) / 1000)
                if left <= 0:
                    return
                await sleeper.sleep(min(left, _SLICE))
                if left <= _SLICE:
                    return
        except asyncio.CancelledError:
            left_over = self._sleepers.pass_on(sleeper)
            if left_over and self._listener is not None:
                self._listener.notify(left_over, ())
            raise
        finally:
            self._sleepers.forget(sleeper)

    async def wait_for_cancel(self, worker: str, timeout: float) -> bool:
        self.session()
        if not self.listener().is_listening:
            await self.listener().listen()
            return self.listener().is_listening  # earlier notifications were missed
        return await self._sleepers.cancelled(worker, timeout)

    async def _outlook(self, queues: Sequence[str], tasks: frozenset[str] | None) -> tuple[Outlook, int]:
        session, known = self.session(), None if tasks is None else list(tasks)
        [(is_plain, due, now)] = await session.call("next_due", session.given(), list(queues), known)
        if is_plain:
            return Outlook(due), now
        return await self._read(lambda ledger, now: (ledger.outlook(queues, tasks, now), now))

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
            tables_of(ledger).look_at_lanes(queue)
            return operate.lanes(ledger, queue)

        return await self._read(look)

    async def history(self, job_id: str) -> list[Event]:
        session = self.session()
        rows = await session.call("history", job_id) if texts([job_id]) else []
        await session.know_combos(number for row in rows for number in row[5])
        return events_of_id(rows, session.combo_names.__getitem__)

    async def _number(self) -> None:
        """Number all committed events that have no number in the feed yet."""
        while (await self.session().call("number_events", NUMBERED_AT_ONCE))[0][0] == NUMBERED_AT_ONCE:
            pass

    async def _read_feed(self, question: Question[T], *_cursors: str | None, numbered: bool = False) -> T:
        """Read the feed in a step. `cursors` are those that the question names. With `numbered`, the events that are
        read have numbers already.
        """
        if not numbered:
            await self._number()
        return await self._read(question)

    async def events(self, cursor: str | None, limit: int) -> EventPage:
        """Return a page of events after a cursor.

        One statement reads the page and the event that the cursor points to. If the cursor is the end of the feed, or
        has the mark of another event (see `feed.parse`), a step reads the page instead.
        """
        session = self.session()
        start = feed.START if cursor is None or cursor == feed.END else feed.parse(cursor)
        if cursor == feed.END or start.witness != start.at:
            return await self._read_feed(lambda ledger, _: feed.events(ledger.tables, cursor, limit), cursor)
        after = None if cursor is None else max(0, start.at - 1)
        most = max(0, min(limit, _LAST)) + 1
        while (rows := await session.call("feed_page", after, most, NUMBERED_AT_ONCE))[0][0]:
            pass  # there are more events to number
        await session.know_combos(number for row in rows if row[4] is not None for number in row[9])
        return feed.events(FeedPage(rows, session.combo_names.__getitem__), cursor, most - 1)

    async def events_before(self, cursor: str | None, limit: int) -> tuple[list[tuple[str, Event]], str | None]:
        return await self._read_feed(lambda ledger, _: feed.events_before(ledger.tables, cursor, limit), cursor)

    async def event_spans(
        self, after: str | int | None, n: int, limit: int | None = None, until: str | None = None
    ) -> list[EventSpan]:
        start = None if isinstance(after, int) else after
        return await self._read_feed(
            lambda ledger, _: feed.event_spans(ledger.tables, after, n, limit, until), start, until
        )

    async def scan_events(self, span: EventSpan, batch: int = 1_000) -> AsyncIterator[list[Event]]:
        start, until = feed.span_bounds(span)
        after = start.at
        while after < until.at:
            size = batch * _BATCHES if batch >= _LARGE else batch
            events = await self._read_feed(_span(after, until, size), span.until, numbered=True)
            after += len(events)
            for first in range(0, len(events), batch):
                yield events[first : first + batch]

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

    async def scan(
        self, partition: Partition, batch: int = 1_000, selection: JobSelection = EVERYTHING
    ) -> AsyncIterator[list[Job]]:
        after, to = operate.partition_bounds(partition)
        if selection.query is not None:
            async for jobs in self._scan_matching(selection.query, after, to, batch):
                yield jobs
            return
        session = self.session()
        while rows := await session.call("scan", session.given(), after, min(to, _END), min(batch, _LAST)):
            after = rows[-1][1]
            yield [without_expired_result(job_from_row(row[1:]), row[0]) for row in rows]

    async def _scan_matching(self, query: Query, start: int, to: int, batch: int) -> AsyncIterator[list[Job]]:
        after: int | None = start
        while after is not None:
            jobs, after = await self._read(_scan(after, to, batch, query))
            if jobs:
                yield jobs

    # ── operator ──────────────────────────────────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[str], running: Literal["refuse", "request"] = "refuse") -> list[Cancelled]:
        return await self._write(lambda ledger, now: operate.cancel(ledger, ids, running, now))

    async def replay(self, ids: Sequence[str], children: bool = True) -> list[Replayed]:
        return await self._write(lambda ledger, now: replaying.replay(ledger, ids, now, children))

    async def archive(self, ids: Sequence[str], archived: bool = True) -> list[Archived]:
        return await self._write(lambda ledger, now: operate.archive(ledger, ids, archived, now))

    async def delete(self, ids: Sequence[str]) -> list[Deleted]:
        return await self._write(lambda ledger, now: operate.delete(ledger, ids, now))

    async def control(
        self, target: Target, name: str, changes: Mapping[str, Any]
    ) -> QueueSettings | Limits | StoreSettings:
        def change(ledger: Ledger, now: int) -> QueueSettings | Limits | StoreSettings:
            if target == "queue" and changes:
                tables_of(ledger).registry.alone_in.add(name)
            if target != "store" or not changes:
                return operate.control(ledger, target, name, changes, now)
            tables = tables_of(ledger)
            tables.locks.lock([_SETTINGS])
            old = tables.settings().closed
            operate.control(ledger, target, name, changes, now)
            new = tables.settings()
            if _refusal(old) != _refusal(new.closed):
                _close_or_open(tables, new.closed)
            return new

        return await (self._write(change) if changes else self._read(change))

    async def drain(self, queue: str, limit: int = 1_000, lane: int | None = None) -> int:
        return await self._write(lambda ledger, now: operate.drain(ledger, queue, limit, now, lane))

    async def obliterate(self, queue: str, limit: int = 1_000) -> int:
        return await self._write(lambda ledger, now: operate.obliterate(ledger, queue, limit, now))

    async def maintain(self, limit: int = 1_000) -> Maintained:
        await self._number()  # so that readers that may not write see new events

        def round_of_upkeep(ledger: Ledger, now: int) -> Maintained:
            tables_of(ledger).locks.lock(["upkeep"])  # two at once would both delete what exceeds a limit
            tables_of(ledger).statements.rows("fold_tally")
            return upkeep.maintain(ledger, now, limit)

        return await self._write(round_of_upkeep)

    async def beat(self, info: WorkerInfo, ttl: int) -> None:
        await self._write(lambda ledger, now: operate.beat(ledger, info, ttl, now))

    async def workers(self) -> list[WorkerRecord]:
        return await self._read(operate.workers)

    # ── scheduling ────────────────────────────────────────────────────────────────────────────

    async def schedules(self, after: str = "", limit: int | None = None) -> list[Schedule]:
        most = EVERY_SCHEDULE if limit is None else limit
        return await self._read(lambda ledger, _: ledger.tables.schedules(after, most))

    async def due_schedules(self, names: Sequence[str], limit: int, skip: int = 0) -> DueSchedules:
        return await self._read(lambda ledger, now: scheduling.due_schedules(ledger, names, limit, skip, now))

    async def advance(self, moves: Sequence[Move]) -> list[Moved]:
        check_moves(moves)
        return await self._write(lambda ledger, now: scheduling.advance(ledger, moves, now))

    # ── transfer ──────────────────────────────────────────────────────────────────────────────

    async def export(self, cursor: str | None, limit: int) -> ExportPage:
        return await self._read(lambda ledger, _: exporting.export(ledger.tables, cursor, limit))

    async def import_records(self, records: Sequence[Exported], move: str) -> int:
        def step(ledger: Ledger, _now: int) -> int:
            tables_of(ledger).locks.lock([_SETTINGS])  # the store is not opened meanwhile
            tables_of(ledger).statements.rows("allow_import")
            return importing.import_records(ledger.tables, records, move)

        return await self._write(step)


def _refusal(closed: Closing | None) -> tuple[str, str] | None:
    """Return what the triggers of a closed store answer. How far an import is does not change it."""
    return None if closed is None or not closed.refuses else (closed.stage, closed.peer)


def _close_or_open(tables: PostgresTables, closed: Closing | None) -> None:
    """Create or drop the triggers with which a closed store refuses changes, so that an open store checks nothing."""
    if closed is not None and closed.refuses:
        tables.statements.rows("close_store", closed.stage, closed.peer)
    else:
        tables.statements.rows("open_store")


def tables_of(ledger: Ledger) -> PostgresTables:
    assert isinstance(ledger.tables, PostgresTables)
    return ledger.tables


def _span(after: int, until: feed.Cursor, batch: int) -> Callable[[Ledger, int], list[Event]]:
    return lambda ledger, _now: feed.span_events(ledger.tables, after, until, batch)


def _scan(after: int, to: int, batch: int, query: Query) -> Callable[[Ledger, int], tuple[list[Job], int | None]]:
    return lambda ledger, now: operate.scan(ledger, after, to, batch, now, query)


class _Watch:
    """A watch on one job. It is registered when it is created, and again after each wake-up."""

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
