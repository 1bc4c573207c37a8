"""The engine: run the ledger's rules over what was read, swap in what they say, and run again what lost a race.

    read → decide (pure) → keys that help to find → swap → feed and index → delete what is no longer so

An operation over many items is carried out in groups that have nothing to do with each other, side by side; an item
whose group lost is decided anew from what is there now, the others are done.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from millrace.domain.errors import QueueError, StoreError
from millrace.domain.job import FINISHED, Job, State
from millrace.domain.ledger import Ledger
from millrace.store.object.blobs import Blobs
from millrace.store.object.dependents import Dependents
from millrace.store.object.driver import Expect, Write
from millrace.store.object.job_table import Facts, Record
from millrace.store.object.keys import TASKS, Layout, is_data, name_in
from millrace.store.object.numbers import COUNT, Numbers
from millrace.store.object.objects import Change as Swap
from millrace.store.object.objects import Committed, Objects, Seen
from millrace.store.object.plan import Group, Planner, feed_part
from millrace.store.object.ready import ReadyIndex, ReadyOptions
from millrace.store.object.run import Item, Run
from millrace.store.object.tables import ObjectTables
from millrace.store.object.values import Filed, QueueValue, TasksValue, decode, encode, job_value
from millrace.store.object.view import Need, View

T = TypeVar("T")
MOST_ATTEMPTS = 60
MOST_RUNS = 10_000
HELD_AT_MOST = 10_000
YOUNG = 10_000  # milliseconds; no write takes that long
LATE = 1_000  # milliseconds between deciding and writing
TELLINGS = 3  # again, of events that came late


class Crowded(StoreError):
    """Others were faster, again and again."""


class Engine:
    def __init__(
        self,
        blobs: Blobs,
        layout: Layout,
        clock: Callable[[], Awaitable[int]],
        *,
        inline: int = 64 << 10,
        patience: float = 2.0,
        ready: ReadyOptions | None = None,
        feed_delay: int = 0,
    ) -> None:
        self.objects = Objects(blobs, patience, self._manifest_key)
        self.blobs = blobs
        self.layout = layout
        self.ready = ReadyIndex(blobs, layout, ready or ReadyOptions())
        self.clock = clock
        self.numbers = Numbers()
        self.on_news: Callable[[Counter[str], list[str]], None] = lambda opened, ended: None
        self.recount: Callable[[Sequence[str]], Awaitable[None]] = _nothing
        self.tally: Counter[str] = Counter()  # swaps that lost a race, and what was repaired on the way
        self.dependents = Dependents(self)
        self._inline = inline
        self._feed_delay = feed_delay
        self._held: dict[str, Seen] = {}
        self._known_queues: set[str] = set()
        self._claiming: set[str] = set()  # names of jobs that are being written right now

    def _manifest_key(self, tx: str) -> str:
        return self.layout.batch(self.numbers.stamps.last, tx)

    # deciding

    def guesses(self, keys: Iterable[str]) -> list[Seen]:
        """Of records whose payload lies in an object of its own there is none: that object is not kept here."""
        held = [seen for key in keys if (seen := self._held.get(key)) is not None]
        return [seen for seen in held if b'"data":{' not in (seen.value or b"")]

    async def decide(
        self,
        view: View,
        question: Callable[[Ledger, int], T],
        *,
        counting: bool = False,
        looks_at_time: bool = False,
        places: Mapping[int, str] | None = None,
        queues: frozenset[str] = frozenset(),
        pins_lines: bool = False,
    ) -> tuple[T, ObjectTables]:
        """Run a question over the view until nothing is missing. Writes nothing."""
        now = await self.clock()
        for _ in range(MOST_RUNS):
            tables = ObjectTables(view, now, self.numbers, looks_at_time, counting)
            tables.pins_lines = pins_lines
            tables.places.update(places or {})
            tables.wanted_queues = queues
            try:
                return question(Ledger(tables), now), tables
            except Need as need:
                await need.fetch()
        raise StoreError(f"{self.blobs.url}: an operation could not be decided after {MOST_RUNS} reads; report this")

    def view(self) -> View:
        return View(self.objects, self.layout, self.ready, self._claiming)

    async def carry_out(
        self,
        items: Sequence[Item[T]],
        *,
        together: bool = False,
        counting: bool = False,
        looks_at_time: bool = False,
        durable: bool = True,
        places: Mapping[int, str] | None = None,
        queues: frozenset[str] = frozenset(),
        pins_lines: bool = False,
        expected: Iterable[str] = (),
        guessed: Iterable[Seen] = (),
        view: View | None = None,
    ) -> Run[T]:
        """Decide and write. `expected` are objects that will be needed, read at once; `guessed` ones not at all."""
        view = self.view() if view is None else view
        await view.begin(expected, guessed)
        answers: dict[int, T] = {}
        todo = list(range(len(items)))
        run: Run[T] = Run([])
        first_seen: dict[str, frozenset[str]] = {}
        dated_anew = False
        for attempt in range(MOST_ATTEMPTS):
            await _breathe(attempt)

            def question(ledger: Ledger, now: int, todo: list[int] = todo) -> dict[int, T]:
                decided = {}
                for number in todo:
                    if isinstance(ledger.tables, ObjectTables) and not together:
                        ledger.tables.carriers.clear()
                        ledger.tables.item = items[number].key
                    decided[number] = items[number].decide(ledger, now)
                return decided

            try:
                decided, tables = await self.decide(
                    view,
                    question,
                    counting=counting,
                    looks_at_time=looks_at_time,
                    places=places,
                    queues=queues,
                    pins_lines=pins_lines,
                )
            except QueueError:
                if not view.guessed:
                    raise
                view.forget()
                continue
            planner = Planner(tables, self._inline)
            groups = planner.groups(together)
            if await self._not_yet(view, groups):
                continue
            if not dated_anew and await self.clock() - tables.now > LATE:
                dated_anew = True  # what is written has the date of its decision: once more, now with nothing to read
                continue
            first_seen = counted(view) | first_seen
            lost = await self._write(planner, groups, tables, durable, run)
            answers.update({number: decided[number] for number in todo if items[number].key not in lost})
            todo = list(range(len(items))) if together and lost else [n for n in todo if items[n].key in lost]
            if not todo:
                break
            view.forget()
        else:
            raise self._crowded()
        run.answers = [answers[number] for number in sorted(answers)]
        await self._recount_if_asked(first_seen, {**view.seen, **run.settings})
        return run

    def _crowded(self) -> Crowded:
        return Crowded(
            f"{self.blobs.url}: too many others change the same jobs or the same line at once: "
            f"given up after {MOST_ATTEMPTS} attempts. Nothing is lost; ask again."
        )

    async def _not_yet(self, view: View, groups: Sequence[Group]) -> bool:
        """Is there a guess to prove by reading, or somebody else's lock to wait for? Then the run is repeated."""
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

    # writing

    async def _write(
        self, planner: Planner, groups: Sequence[Group], tables: ObjectTables, durable: bool, run: Run[T]
    ) -> set[str]:
        """Swap the groups in, side by side; the keys of those that lost. Claims pass over these jobs meanwhile, from
        this very moment on: nobody else has had a turn since they were decided."""
        names = [name_in(key) for group in groups for key in group.keys if key.startswith("tasks/")]
        self._claiming.update(names)
        try:
            return await unbroken(self._swap(planner, groups, tables, durable, run))
        finally:
            self._claiming.difference_update(names)

    async def _swap(
        self, planner: Planner, groups: Sequence[Group], tables: ObjectTables, durable: bool, run: Run[T]
    ) -> set[str]:
        before = {key: body for group in groups for key, body in group.before.items()} | planner.triggers("due")
        await self._put(before, durable=durable)
        commits = await self.objects.commit_all([(group.changes, group.primary) for group in groups], durable=durable)
        lost: set[str] = set()
        done: list[Group] = []
        run.stale += len(tables.stale)
        trouble: BaseException | None = None
        for group, committed in zip(groups, commits, strict=True):
            if isinstance(committed, BaseException):
                trouble = trouble or committed
            elif committed.lost:
                lost.update(group.keys)
                if tables.wanted_queues:  # a claim: somebody else has taken these
                    self.ready.removed([record.was.filed for record in group.records])
                elif group.is_about_waiting:
                    self.ready.forget()
                self.tally["lost"] += 1
                run.wasted += 1
                if committed.unsure:
                    run.unsure.update(group.keys)
                else:
                    await self.blobs.delete(group.mine)
            else:
                done.append(group)
                self._remember(group, committed)
                run.written.update(group.keys)
                run.records.update({record.seen.key: record for record in group.records})
        run.ended.update(
            {parent: how for parent, how in tables.awaited.items() if self.layout.job(parent) in run.written}
        )
        await self._finish(planner, done, tables, run)
        if trouble is not None:
            raise trouble
        return lost

    async def _put(self, bodies: Mapping[str, bytes], *, durable: bool = False) -> None:
        """Index keys can be made again from the jobs; data cannot."""
        await self.blobs.write_many(
            [Write(key, body, Expect.ANYTHING, durable and is_data(key)) for key, body in bodies.items()]
        )

    async def _finish(self, planner: Planner, done: Sequence[Group], tables: ObjectTables, run: Run[T]) -> None:
        after = {key: body for group in done for key, body in group.after.items()}
        filed = sorted((one for group in done for one in group.filed), key=lambda one: one.place)
        if filed:
            after[self.layout.feed(filed[0].stamp)] = feed_part(filed)
        if done:
            after |= planner.triggers("upkeep")
            if await self.clock() - tables.now > YOUNG // 2:
                after |= self._keys_again(planner, done)
        _, run.settings = await asyncio.gather(self._put(after), self._settings_after(done, tables))
        await self._tell_again_if_late(filed)
        deleted = [key for group in done for key in group.deleted]
        deleted += [key for key in tables.stale if key not in after]
        self.ready.removed(deleted)
        self.ready.added(key for group in done for key in group.mine if key.startswith("ready/"))
        deleted += self._spent(tables, {key for group in done for key in group.keys})
        deleted += [] if tables.is_cut_pending(run.written) else tables.feed_parts
        deleted += [self.layout.worker(worker_id) for worker_id in tables.gone_workers]
        if deleted:
            await self.blobs.delete(deleted)
        self._announce(done, tables)
        await self._know_queues(done)

    async def _tell_again_if_late(self, filed: Sequence[Filed]) -> None:
        """Readers stay `feed_delay` behind the clock, so they may have passed by what came later than that.

        Not for ever: where every write takes longer than readers wait, the delay is too short for the store.
        """
        for _ in range(TELLINGS if filed and self._feed_delay else 0):
            now = await self.clock()
            if now - (filed[0].stamp >> COUNT) <= self._feed_delay * 3 // 4:
                return
            self.tally["told_again"] += 1
            stamp = self.numbers.stamps.draw(now)
            filed = [Filed(stamp, place, one.event) for place, one in enumerate(filed)]
            await self._put({self.layout.feed(stamp): feed_part(filed)})

    @staticmethod
    def _keys_again(planner: Planner, done: Sequence[Group]) -> dict[str, bytes]:
        """What was put before a swap that came late: others may have taken it for a leftover, and deleted it."""
        return planner.triggers("due") | {key: b"" for group in done for key in group.mine if not is_data(key)}

    async def _settings_after(self, done: Sequence[Group], tables: ObjectTables) -> dict[str, Seen]:
        """The settings that were only read, as they are after the swap: it may have come under others than it saw."""
        written = {key for group in done for key in group.keys}
        names = {queue for group in done for record in group.records for queue in (record.was.queue, _queue(record))}
        keys = {self.layout.queue(name) for name in names if name} | {TASKS}
        wanted = [key for key in keys if key in tables.view.seen and key not in written] if done else []
        return {seen.key: seen for seen in await self.objects.read(wanted)}

    async def _recount_if_asked(self, first: Mapping[str, frozenset[str]], last: Mapping[str, Seen]) -> None:
        """Exact counting was switched on while this operation, which did not count at first, was under way: its keys
        may have been counted, or not. So count again."""
        changed = [key for key, counted in first.items() if key in last and counted_in(last[key]) - counted]
        if changed:
            await self.recount(changed)

    def _spent(self, tables: ObjectTables, written: Container[str]) -> list[str]:
        """Triggers that were looked at and have nothing left to say. A young one may be ahead of what it speaks of."""
        spent = []
        for family, triggers in tables.view.looked_at.items():
            for key, trigger in triggers:
                age = tables.now - (int(key.rsplit(".", 2)[1]) >> COUNT)
                if age > YOUNG and not any(_still_wanted(tables, family, at, job, written) for at, job in trigger.jobs):
                    spent.append(key)
        return spent

    def _remember(self, group: Group, committed: Committed) -> None:
        """Keep what this process holds, so that its next step needs no read."""
        for change in group.changes:
            tag = committed.tags.get(change.key)
            if change.key.startswith("tasks/"):
                self._held.pop(change.key, None)
                if tag is not None and change.value is not None and b'"state":"running"' in change.value[:4096]:
                    self._held[change.key] = Seen(change.key, tag, change.value)
        while len(self._held) > HELD_AT_MOST:
            del self._held[next(iter(self._held))]

    def _announce(self, done: Sequence[Group], tables: ObjectTables) -> None:
        opened = tables.opened
        ended: list[str] = []
        for group in done:
            for record in group.records:
                job = record.job
                if job is None:
                    continue
                if job.state is State.WAITING and record.value.filed != record.was.filed:
                    opened[job.queue] += 1
                if job.state in FINISHED:
                    ended.append(job.id)
        self.on_news(opened, ended)

    async def _know_queues(self, done: Sequence[Group]) -> None:
        jobs = [record.job for group in done for record in group.records]
        await self.know_queues({job.queue for job in jobs if job is not None})

    async def know_queues(self, names: Iterable[str]) -> int:
        """A queue exists once something was put into it: its settings object says so. How many did not say it yet."""
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

    # reading

    async def jobs(self, keys: Sequence[str]) -> list[Job | None]:
        view = self.view()
        await view.load(keys)
        return [job_value(view.seen[key].value, view.large).job for key in keys]


def _still_wanted(tables: ObjectTables, family: str, at: int, key: str, written: Container[str]) -> bool:
    record = tables.records.get(key)
    if record is None or record.seen.lock is not None or (record.dirty and key not in written):
        return True
    facts = Facts.of(record.value)
    return at in ((facts.outside, facts.expires) if family == "due" else (facts.retry, facts.result))


def counted(view: View) -> dict[str, frozenset[str]]:
    return {key: counted_in(seen) for key, seen in view.seen.items() if key.startswith("control/")}


def counted_in(settings: Seen) -> frozenset[str]:
    """What is counted exactly in an object of settings."""
    if settings.value is None:
        return frozenset()
    if settings.key == TASKS:
        return frozenset(decode(settings.value, TasksValue).rows)
    return frozenset({"row"} if b'"row":{' in settings.value else ())


def _queue(record: Record) -> str:
    return "" if record.job is None else record.job.queue


async def _nothing(keys: Sequence[str]) -> None: ...


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Carry work through also when whoever asked is cancelled meanwhile: half of it would be left for the sweep."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise


async def _breathe(attempt: int) -> None:
    """Between attempts, ever longer and never in step with others."""
    if attempt:
        await asyncio.sleep(min(0.2, 0.002 * 2 ** min(attempt, 7)) * random.random())
