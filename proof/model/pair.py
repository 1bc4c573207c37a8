"""Two stores under one clock: the one under test and the reference ledger, called alike and compared.

Stores choose their own seqs and lease ids, so the answers of the one under test are first translated to the
reference's; everything else must be equal.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from millrace.domain.errors import CursorExpired, DependencyCycle, InvalidInput, PayloadInvalid, QueueError
from millrace.domain.event import Event
from millrace.domain.job import Job, State
from millrace.domain.request import Enqueued, LaneStatus, Query, QueueCounts
from millrace.store.memory import MemoryStore
from millrace.store.protocol import Store
from millrace.testing.clock import VirtualClock

PAGE = 1_000
_replace = msgspec.structs.replace


class Names:
    """Maps seqs and leases of the store under test to those of the reference.

    With `imported`, the payloads of hooks are not mapped: they were copied from the reference.
    """

    def __init__(self, *, imported: bool = False) -> None:
        self._imported = imported
        self._seqs: dict[int, int] = {0: 0}
        self._leases: dict[str | None, str | None] = {None: None}
        self._same_numbers = True

    def learn_seq(self, theirs: int, ours: int) -> None:
        if self._seqs.setdefault(theirs, ours) != ours:
            raise AssertionError(f"seq {theirs} stands for two jobs: {self._seqs[theirs]} and {ours} of the reference")
        self._same_numbers = self._same_numbers and theirs == ours

    def learn_lease(self, theirs: str | None, ours: str | None) -> None:
        if self._leases.setdefault(theirs, ours) != ours:
            raise AssertionError(f"lease {theirs} stands for two claims: {self._leases[theirs]} and {ours}")

    def seqs_keep_their_order(self) -> bool:
        ours = [self._seqs[theirs] for theirs in sorted(self._seqs)]
        return ours == sorted(ours)

    def seq(self, theirs: int) -> int:
        return self._seqs.get(theirs, -theirs)

    def plain(self, answer: Any) -> Any:
        """Translate an answer of the store under test."""
        match answer:
            case Job():
                return self._job(answer)
            case Event():
                lease = self._leases.get(answer.lease, answer.lease)
                return _replace(answer, seq=self.seq(answer.seq), lease=lease)
            case Enqueued():
                return _replace(answer, seq=self.seq(answer.seq))
            case LaneStatus(holder=int(holder)):
                return _replace(answer, holder=self.seq(holder))
            case list() | tuple():
                return [self.plain(item) for item in answer]
            case _:
                return answer

    def _job(self, job: Job) -> Job:
        spec = job.spec
        if spec.hook and not (self._same_numbers or self._imported):
            spec = _replace(spec, payload=self._letter(spec.payload))
        lease = self._leases.get(job.lease_id, job.lease_id)
        return _replace(job, spec=spec, seq=self.seq(job.seq), lease_id=lease)

    def _letter(self, payload: bytes) -> bytes:
        facts = msgspec.json.decode(payload)
        if "letter" in facts:
            facts["letter"]["seq"] = self.seq(facts["letter"]["seq"])
        return msgspec.json.encode(facts)


class Refusal(msgspec.Struct, frozen=True):
    """An error in comparable form: its type and the facts that do not depend on the store."""

    error: str
    facts: tuple[tuple[str, str], ...] = ()


def refusal(error: QueueError) -> Refusal:
    name = type(error).__name__
    match error:
        case InvalidInput() | PayloadInvalid():
            return Refusal(name)
        case CursorExpired(lost=lost):
            return Refusal(name, (("lost", str(lost)),))
        case DependencyCycle(path=path):
            return Refusal(name, (("members", repr(sorted(set(path)))),))
        case _:
            return Refusal(name, tuple((key, repr(value)) for key, value in sorted(vars(error).items())))


class Pair:
    """The store under test (`stores[0]`) and the reference (`stores[1]`)."""

    def __init__(self, store: Store, clock: VirtualClock, reference: MemoryStore | None = None) -> None:
        self.clock = clock
        self.reference = reference or MemoryStore(clock=clock, salt="reference")
        self.stores: list[Store] = [store, self.reference]
        self.names = Names(imported=reference is not None)
        self.known: dict[str, None] = {}
        self._cursors: list[str | None] = [None, None]
        self._changed: set[str] = set()  # jobs with events since the last comparison of everything

    async def both(self, question: Callable[[Store, int], Awaitable[Any]]) -> list[Any]:
        """Both answers, untranslated; a refusal is an answer too."""
        return [await _answer(question, store, side) for side, store in enumerate(self.stores)]

    def same(self, answers: Sequence[Any], what: str) -> Any:
        """The answer, after checking that it is the same on both sides."""
        if isinstance(answers[0], list) and isinstance(answers[1], list):
            self._meet(answers[0], answers[1])
        theirs, ours = self.names.plain(answers[0]), answers[1]
        ours = list(ours) if isinstance(ours, tuple) else ours
        assert theirs == ours, f"{what}: the store and the ledger differ\n{difference(theirs, ours)}"
        return ours

    def _meet(self, theirs: list[Any], ours: list[Any]) -> None:
        """Learn the names of a job whose events were trimmed unread."""
        for their_job, job in zip(theirs, ours, strict=False):
            if isinstance(their_job, Job) and isinstance(job, Job) and their_job.id == job.id:
                self.known[job.id] = None
                self.names.learn_seq(their_job.seq, job.seq)
                self.names.learn_lease(their_job.lease_id, job.lease_id)

    async def ask(self, what: str, question: Callable[[Store, int], Awaitable[Any]]) -> Any:
        return self.same(await self.both(question), what)

    # ── what has happened ─────────────────────────────────────────────────────────────────────

    async def news(self) -> tuple[list[Event], bool]:
        """New events, equal on both sides, and whether some were trimmed unread."""
        (theirs, lost), (ours, ours_lost) = [await self._read(side) for side in (0, 1)]
        assert lost == ours_lost, f"events trimmed unread: the store says {lost}, the ledger {ours_lost}"
        self._learn(theirs, ours)
        for event in ours:
            self.known[event.job] = None
            self._changed.add(event.job)
        self.same([_by_job(self.names.plain(theirs)), _by_job(ours)], "events of this step")
        return ours, lost > 0

    async def _read(self, side: int) -> tuple[list[Event], int]:
        events: list[Event] = []
        lost = 0
        while True:
            try:
                page = await self.stores[side].events(self._cursors[side], PAGE)
            except CursorExpired as expired:
                self._cursors[side] = expired.oldest
                lost += expired.lost
                continue
            events.extend(page.events)
            self._cursors[side] = page.cursor
            if len(page.events) < PAGE:
                return events, lost

    def _learn(self, theirs: Iterable[Event], ours: Iterable[Event]) -> None:
        mine = {(event.job, event.generation, event.n): event for event in ours}
        for event in theirs:
            twin = mine.get((event.job, event.generation, event.n))
            if twin is not None:
                self.names.learn_seq(event.seq, twin.seq)
                self.names.learn_lease(event.lease, twin.lease)

    # ── comparing what is kept ────────────────────────────────────────────────────────────────

    async def jobs(self, wanted: Sequence[str]) -> list[Job | None]:
        """The records of these ids, equal on both sides."""
        answers = await self.both(lambda store, _: store.get(wanted))
        found: list[Job | None] = self.same(answers, f"get {list(wanted)}")
        return found

    async def everything(self, queues: Iterable[str], *, histories: bool = False, is_import: bool = False) -> None:
        """Compare the results of every reading method. `histories`: of all jobs, not only changed ones.

        `is_import`: the store has numbered deleted jobs after the others, and the queues of its source are paused.
        """
        known = list(self.known)
        records = await self.jobs(known)
        waiting = {job.id for job in records if job is not None and job.state is State.WAITING}
        assert is_import or self.names.seqs_keep_their_order(), (
            "seqs of the store do not keep the order of the ledger's"
        )
        counts = await self.both(lambda store, _: store.count())
        self.same([_shown(each, is_import) for each in counts], "count")
        await self.ask("workers", lambda store, _: store.workers())
        await self.ask("schedules", lambda store, _: store.schedules())
        await self._each("lanes", queues, lambda store, queue: store.lanes(queue))
        changed = [job_id for job_id in known if histories or job_id in self._changed]
        waiting_or_changed = [job_id for job_id in known if job_id in waiting or job_id in self._changed or histories]
        await self._each("position", waiting_or_changed, lambda store, job_id: store.position(job_id))

        async def history(store: Store, job_id: str) -> list[Event]:
            events = await store.history(job_id)
            return [_replace(event, seq=0) for event in events] if is_import else events

        await self._each("history", changed, history)
        self._changed.clear()
        await self.ask("find", lambda store, _: collect(store, Query(archived=None, limit=7)))
        await self.ask("scan", lambda store, _: scanned(store))
        if is_import:  # events of jobs that are forgotten are not moved
            return
        feeds = await self.both(lambda store, _: store.events(None, 100 * PAGE))
        self.same([_by_job(self.names.plain(feeds[0].events)), _by_job(feeds[1].events)], "feed of all events")

    async def _each(self, what: str, names: Iterable[str], question: Callable[[Store, str], Awaitable[Any]]) -> None:
        """Ask about each of these ids or queues, the store under test concurrently: nothing changes meanwhile."""
        names = list(names)
        theirs = await asyncio.gather(*(_answer(question, self.stores[0], name) for name in names))
        for name, their_answer in zip(names, theirs, strict=True):
            self.same([their_answer, await _answer(question, self.reference, name)], f"{what} of {name}")


async def _answer(question: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    try:
        return await question(*arguments)
    except QueueError as error:
        return refusal(error)


def difference(theirs: Any, ours: Any) -> str:
    """Only what differs, because whole answers are too long to read."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        return "\n".join(f"of {key!r}:\n{difference(theirs.get(key), ours.get(key))}" for key in keys)
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = [(n, a, b) for n, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b]
        return "\n".join(f"at {n}:\n{difference(a, b)}" for n, a, b in pairs)
    if isinstance(theirs, msgspec.Struct) and type(theirs) is type(ours):
        fields = [name for name in theirs.__struct_fields__ if getattr(theirs, name) != getattr(ours, name)]
        parts = [f"  {name}: {getattr(theirs, name)!r} but in the ledger {getattr(ours, name)!r}" for name in fields]
        return f"  {getattr(ours, 'id', '')}\n" + "\n".join(parts)
    return f"  store:  {theirs!r}\n  ledger: {ours!r}"


def _shown(counts: list[QueueCounts], is_import: bool) -> list[QueueCounts]:
    """Counts without unused queues, which a store may or may not list."""
    if is_import:
        counts = [_replace(row, paused=False) for row in counts]
    return sorted((row for row in counts if row != QueueCounts(row.queue)), key=lambda row: row.queue)


def _by_job(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Events by job. Stores order jobs that change in one step differently, but not the events of one job."""
    grouped: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        grouped[event.job].append(event)
    return grouped


async def collect(store: Store, query: Query) -> list[Job]:
    """All pages of a query."""
    found: list[Job] = []
    while True:
        page = await store.find(query)
        found.extend(page.jobs)
        if page.cursor is None:
            return found
        query = _replace(query, cursor=page.cursor)


async def scanned(store: Store) -> list[Job]:
    """Every job, by partitions, in the order of seq."""
    found = [job for part in await store.partitions(3) async for batch in store.scan(part, 5) for job in batch]
    return sorted(found, key=lambda job: job.seq)
