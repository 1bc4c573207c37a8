"""The engine: evaluates the ledger's rules over objects, swaps in the result, and repeats what lost a race.

    read (`view.py`) → decide (the ledger over `tables.py`) → plan (`plan.py`) → write (`commit.py`)

A question is a function that asks the ledger for a decision. An operation over many items is split into independent
swap groups, which are written concurrently. Only items whose group lost a race are decided again, from the current
objects.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from millrace.domain.errors import QueueError, StoreError
from millrace.domain.job import Job
from millrace.domain.ledger import Ledger
from millrace.domain.tables import Place
from millrace.store.object.blobs import Blobs
from millrace.store.object.claims.log_scan import LogScan
from millrace.store.object.claims.ready import ReadyIndex
from millrace.store.object.engine.closing import refuse_if_closed
from millrace.store.object.engine.commit import Commit, EngineRun
from millrace.store.object.engine.dependents import Dependents
from millrace.store.object.engine.job_table import TableOptions
from millrace.store.object.engine.numbers import NumberNeeded, Numbers, hold
from millrace.store.object.engine.objects import Committed, Objects, SeenObject, Swap
from millrace.store.object.engine.plan import SwapGroup, WritePlan
from millrace.store.object.engine.settings_locks import HeldSettings, SettingsLocks
from millrace.store.object.engine.tables import ObjectTables
from millrace.store.object.engine.values import (
    LARGE_PARTS,
    JobValue,
    QueueValue,
    TasksValue,
    decode,
    encode,
    job_value,
    value_of,
)
from millrace.store.object.engine.view import Need, View
from millrace.store.object.events.publishing import EventPublisher
from millrace.store.object.keys import TASKS, Layout
from millrace.store.object.options import ObjectOptions

T = TypeVar("T")
Question: TypeAlias = Callable[[Ledger, int], T]  # of the ledger and the store's time
Item: TypeAlias = tuple[str | None, Question[T]]  # the object that shows whether it was done, and what to decide
MOST_ATTEMPTS = 60
MOST_RUNS = 10_000
HELD_AT_MOST = 10_000
LATE = 1_000  # milliseconds between deciding and writing
NO_OPTIONS = TableOptions()


class Crowded(StoreError):
    """Raised after too many lost races in a row."""


class Engine:
    """Carries out operations.

    `on_news` is called with the places where jobs can be claimed now and with the ids of ended jobs. `recount` is
    called with the keys of settings objects whose counters may be wrong.
    """

    def __init__(
        self,
        blobs: Blobs,
        layout: Layout,
        clock: Callable[[], Awaitable[int]],
        options: ObjectOptions,
        *,
        on_news: Callable[[Counter[Place], list[str]], None],
        recount: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        self.objects = Objects(blobs, options.lock_patience / 1000, self._manifest_key)
        self.blobs = blobs
        self.layout = layout
        scan = LogScan(self.objects, options) if options.index_mode == "log-scan" else None
        self.ready = ReadyIndex(blobs, layout, options, scan)
        self.clock = clock
        self.feed_delay = options.feed_delay
        self.numbers = Numbers()
        self.on_news = on_news
        self.tally: Counter[str] = Counter()  # counts of lost races and of repairs
        self.dependents = Dependents(self)
        self.publisher = EventPublisher(self.objects, clock, self.draw_stamp, options.feed_delay, self.tally)
        self.busy: set[str] = set()  # names of jobs that are being written
        self._recount = recount
        self._inline = options.inline_limit
        self._held: dict[str, SeenObject] = {}  # jobs that run here, as this process wrote them
        self._known_queues: set[str] = set()
        self._settings_locks = SettingsLocks()

    def _manifest_key(self, tx: str) -> str:
        return self.layout.batch(self.numbers.stamps.last, tx)

    # reading and deciding

    def view(self) -> View:
        return View(self.objects, self.layout, self.ready, self.busy)

    async def jobs(self, keys: Sequence[str], parts: frozenset[str] = LARGE_PARTS) -> list[Job | None]:
        """Return the jobs of these keys. Of payloads and results that have their own objects, only `parts` are read."""
        view = self.view()
        await view.load(keys, parts)
        return [job_value(view.seen[key].value, view.large, parts).job for key in keys]

    async def decide(
        self, view: View, question: Question[T], options: TableOptions = NO_OPTIONS
    ) -> tuple[T, ObjectTables]:
        """Evaluate a question over the view, again and again, until no object is missing. Nothing is written.

        Return the answer, and the tables with the changes.
        """
        now = await self.clock()
        for _ in range(MOST_RUNS):
            tables = ObjectTables(view, now, self.numbers, options)
            try:
                return question(Ledger(tables), now), tables
            except Need as need:
                await view.fetch(need)
            except NumberNeeded:
                await hold(self.objects, self.numbers, now, self.feed_delay)
        raise StoreError(f"{self.blobs.url}: an operation could not be decided after {MOST_RUNS} reads; report this")

    async def draw_stamp(self, now: int) -> int:
        for _ in range(MOST_RUNS):
            try:
                return self.numbers.stamps.draw(now)
            except NumberNeeded:
                await hold(self.objects, self.numbers, now, self.feed_delay)
        raise StoreError(f"{self.blobs.url}: no number could be drawn after {MOST_RUNS} attempts; report this")

    # deciding and writing

    async def carry_out(
        self,
        items: Sequence[Item[T]],
        *,
        together: bool = False,
        durable: bool = True,
        options: TableOptions = NO_OPTIONS,
        expected: Iterable[str] = (),
        guessed: Iterable[SeenObject] = (),
        view: View | None = None,
    ) -> EngineRun[T]:
        """Decide the items and write the changes.

        The `expected` objects are read first, in one request. The `guessed` objects are used as they are in the cache.
        An item is (key of its object, question). Without a key, it is not repeated after a lost race, so it may be
        written in part. With `together`, all items are written or none.
        """
        view = self.view() if view is None else view
        await view.begin(expected, guessed)
        run: EngineRun[T] = EngineRun()
        with self._settings_locks.none_held() as held:
            first_seen = await self._carry_out(items, view, run, held, together, durable, options)
        await self._recount_if_asked(first_seen, {**view.seen, **run.settings})
        return run

    async def _carry_out(
        self,
        items: Sequence[Item[T]],
        view: View,
        run: EngineRun[T],
        held: HeldSettings,
        together: bool,
        durable: bool,
        options: TableOptions,
    ) -> dict[str, frozenset[str]]:
        """Attempt to write the items until all are written. Return what the settings counted when they were first
        read.
        """
        answers: dict[int, T] = {}
        todo = list(range(len(items)))
        first_seen: dict[str, frozenset[str]] = {}
        redated = False
        for attempt in range(MOST_ATTEMPTS):
            await _back_off(attempt)
            planned = await self._plan(view, _each_of(items, todo, together), together, options)
            if planned is None:
                continue
            decided, plan = planned
            if await held.lock(plan.settings):
                await view.load(plan.settings)  # another operation of this process has just written them
                continue
            if not redated and await self.clock() - plan.tables.now > LATE:
                redated = True  # decide again with the current time; now nothing has to be read
                continue
            first_seen = _counted(view) | first_seen
            lost = await Commit(self, plan, run, durable).write()
            if lost is None:
                view.forget()
                continue
            answers.update({number: decided[number] for number in todo if items[number][0] not in lost})
            todo = list(range(len(items))) if together and lost else [n for n in todo if items[n][0] in lost]
            if not todo:
                run.answers = [answers[number] for number in sorted(answers)]
                return first_seen
            view.forget()
        raise Crowded(
            f"{self.blobs.url}: too many processes change the same jobs or the same line at once: "
            f"gave up after {MOST_ATTEMPTS} attempts. Nothing is lost; try again."
        )

    async def _plan(
        self, view: View, question: Question[dict[int, T]], together: bool, options: TableOptions
    ) -> tuple[dict[int, T], WritePlan] | None:
        """Return the answers and the plan of what to write. Return None if the question must be decided again."""
        try:
            decided, tables = await self.decide(view, question, options)
        except QueueError:
            if not view.guessed:
                raise
            view.forget()
            return None
        try:
            plan = WritePlan(tables, self._inline, together=together)
        except NumberNeeded:
            await hold(self.objects, self.numbers, tables.now, self.feed_delay)
            return None
        if plan.groups and not options.imports:
            await refuse_if_closed(self.objects, [(seen, value) for seen, value, _ in tables.rows.values()])
        return None if await self._not_yet(view, plan.groups) else (decided, plan)

    async def _not_yet(self, view: View, groups: Sequence[SwapGroup]) -> bool:
        """Return True if the operation must be decided again.

        That is the case if objects from the cache had to be read again to check them, or if this call has waited for
        the transaction of another process.
        """
        written = {key for group in groups for key in group.keys}
        unproved = [key for key in view.guessed if key not in written]
        if unproved:
            await view.load(unproved)
            return True
        locked = [change.seen for group in groups for change in group.changes if change.seen.lock is not None]
        for seen in locked:
            await self.objects.unlock(seen)
        if locked:
            view.forget()
        return bool(locked)

    async def _recount_if_asked(self, first: Mapping[str, frozenset[str]], last: Mapping[str, SeenObject]) -> None:
        """Recompute the counters of queues and tasks for which another process enabled exact counting during this
        operation.

        It is unknown whether such counters include the jobs of this operation. `first` maps the key of each settings
        object to what the object counted exactly when this operation first read it; `last` has the settings objects as
        last read or written.
        """
        changed = [key for key, counted in first.items() if key in last and _counted_in(last[key]) - counted]
        if changed:
            await self._recount(changed)

    # ways to carry out an operation

    async def answer(self, question: Question[T]) -> T:
        """Return the answer to a question that changes nothing."""
        answer, _ = await self.decide(self.view(), question)
        return answer

    async def together(
        self, decide: Question[T], *, expected: Iterable[str] = (), guessed: Iterable[SeenObject] = ()
    ) -> EngineRun[T]:
        """Carry out one decision, completely or not at all, and update dependents."""
        run = await self.carry_out([(None, decide)], together=True, expected=expected, guessed=guessed)
        await self.dependents.update(run)
        return run

    async def in_parts(self, decide: Question[T], *, counting: bool = False) -> EngineRun[T]:
        """Carry out a decision that may be written in part, and then update dependents.

        Objects that other processes have just changed are left for the next call.
        """
        run = await self.carry_out([(None, decide)], options=TableOptions(counting=counting))
        await self.dependents.update(run)
        return run

    async def each(self, ids: Sequence[str], decide: Callable[[str], Question[T]]) -> list[T]:
        """Decide each id in its own transaction, and return the answers in order. An id may occur more than once.

        The dependents of an id are updated before the next id is decided, because the next id may be one of them. The
        dependents of replayed jobs are replayed at the end, because they may be among the ids too.
        """
        answers: list[T] = []
        runs: list[EngineRun[T]] = []
        for some in await self._waves(ids):
            run = await self.carry_out(
                [(self.layout.job(job_id), decide(job_id)) for job_id in some],
                expected=[self.layout.job(job_id) for job_id in some],
            )
            answers += run.answers
            runs.append(run)
            await self.dependents.update(run, recall=False)
        await self.dependents.recall(runs)
        return answers

    async def _waves(self, ids: Sequence[str]) -> list[list[str]]:
        """Split the ids after each id that other jobs wait for. The order is kept."""
        if len(ids) < 2:
            return [list(ids)]
        keys = [self.layout.job(job_id) for job_id in ids]
        values = {seen.key: value_of(seen, JobValue) for seen in await self.objects.read([*dict.fromkeys(keys)])}
        waves: list[list[str]] = [[]]
        for job_id, key in zip(ids, keys, strict=True):
            waves[-1].append(job_id)
            value = values[key]
            if value is not None and value.awaited:
                waves.append([])
        return [wave for wave in waves if wave]

    # what this process knows

    def guesses(self, keys: Iterable[str]) -> list[SeenObject]:
        """Return the cached objects that have these keys. Records with a large payload or result are left out."""
        held = [seen for key in keys if (seen := self._held.get(key)) is not None]
        return [seen for seen in held if b'"data":{' not in (seen.value or b"")]

    def remember(self, group: SwapGroup, committed: Committed) -> None:
        """Cache the running jobs that this process has written, so that its next step on these jobs needs no read."""
        for change in group.changes:
            tag = committed.tags.get(change.key)
            if change.key.startswith("tasks/"):
                self._held.pop(change.key, None)
                if tag is not None and change.value is not None and b'"state":"running"' in change.value[:4096]:
                    self._held[change.key] = SeenObject(change.key, tag, change.value)
        while len(self._held) > HELD_AT_MOST:
            del self._held[next(iter(self._held))]

    async def register_queues(self, names: Iterable[str]) -> int:
        """Write a settings object for each queue that has none, so that listings include the queue. Return the number
        of new queues.
        """
        new = [name for name in names if name not in self._known_queues]
        if not new:
            return 0
        keys = [self.layout.queue(name) for name in new]
        seen = await self.objects.read(keys)
        missing = [(name, one) for name, one in zip(new, seen, strict=True) if one.value is None and one.lock is None]
        for name, one in missing:
            await self.objects.commit([Swap(one, encode(QueueValue(name)))], durable=False)
        self._known_queues.update(name for name, one in zip(new, seen, strict=True) if one.lock is None)
        return len(missing)


def _each_of(items: Sequence[Item[T]], todo: Sequence[int], together: bool) -> Question[dict[int, T]]:
    """Return a question that decides the items with the indexes `todo` one after the other. Its answer maps index to
    answer.

    If an item needs an object that has not been read, the items after it are evaluated too, only to find what they
    need. So the objects of all items are read together. All items are then decided again from the start.
    """

    def question(ledger: Ledger, now: int) -> dict[int, T]:
        decided = {}
        needs: list[Need] = []
        for number in todo:
            key, decide = items[number]
            if isinstance(ledger.tables, ObjectTables) and not together:
                ledger.tables.carriers.clear()
                ledger.tables.item = key
            try:
                decided[number] = decide(ledger, now)
            except Need as need:
                needs.append(need)
            except Exception:
                if not needs:
                    raise  # otherwise an earlier item is half decided, which may be the cause
        if needs:
            raise Need.of_all(needs)
        return decided

    return question


def _counted(view: View) -> dict[str, frozenset[str]]:
    return {key: _counted_in(seen) for key, seen in view.seen.items() if key.startswith("control/")}


def _counted_in(settings: SeenObject) -> frozenset[str]:
    """Return what this settings object counts exactly: the names of tasks with limits, or "row" for a queue with
    counters.
    """
    if settings.value is None:
        return frozenset()
    if settings.key == TASKS:
        return frozenset(decode(settings.value, TasksValue).rows)
    return frozenset({"row"} if b'"row":{' in settings.value else ())


async def _back_off(attempt: int) -> None:
    """Wait before the next attempt. The wait grows with each attempt and has jitter."""
    if attempt:
        await asyncio.sleep(min(0.2, 0.002 * 2 ** min(attempt, 7)) * random.random())
