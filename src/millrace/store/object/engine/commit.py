"""Writes the changes of an operation, in an order that makes every crash harmless.

    index keys and large data → missing earlier events → swap → feed and triggers → delete stale keys

The operation takes effect with the swap. Objects that are written before the swap are invalid until then. If a crash
prevents the steps after the swap, the next writer of the job or the sweep repeats them from the records.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Container, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millrace.domain.job import FINISHED, State
from millrace.store.object.driver import Expect, Write
from millrace.store.object.engine.job_table import IndexFacts, Record
from millrace.store.object.engine.numbers import COUNT
from millrace.store.object.engine.objects import SeenObject
from millrace.store.object.engine.plan import SwapGroup, WritePlan
from millrace.store.object.engine.values import FeedEvent, JobValue, value_of
from millrace.store.object.keys import TASKS, is_data, is_tick, name_in

if TYPE_CHECKING:
    from millrace.store.object.engine.engine import Engine

T = TypeVar("T")
YOUNG = 10_000  # milliseconds; no write takes that long


class EngineRun(Generic[T]):
    """The result of one operation of the engine, collected over all its attempts."""

    def __init__(self) -> None:
        self.answers: list[T] = []  # one per item, in order
        self.written: set[str] = set()
        self.records: dict[str, Record] = {}
        self.settings: dict[str, SeenObject] = {}  # settings of the queues it wrote to, as they were afterwards
        self.ended: dict[str, tuple[State, int]] = {}  # parents that ended: state and seq
        self.recalled: set[str] = set()  # replayed parents whose dead children must be replayed
        self.wasted = 0  # groups that lost a race
        self.unsure: set[str] = set()  # lost keys that may have been visible for a moment, because an answer was lost
        self.stale = 0  # stale index keys that were found


class Commit:
    """One attempt to write a plan. It adds its outcome to `run`."""

    def __init__(self, engine: Engine, plan: WritePlan, run: EngineRun[Any], durable: bool) -> None:
        self._engine = engine
        self._blobs = engine.blobs
        self._layout = engine.layout
        self._plan = plan
        self._tables = plan.tables
        self._run = run
        self._durable = durable
        self._done: list[SwapGroup] = []  # the groups whose swap succeeded

    async def write(self) -> set[str] | None:
        """Swap the swap groups of the plan concurrently. Return the keys of the objects whose group lost a race.

        Return None if nothing was written, because missing events had to be published first. While this runs, claims of
        this process skip the jobs that are being written.
        """
        names = [name_in(key) for group in self._plan.groups for key in group.keys if key.startswith("tasks/")]
        self._engine.busy.update(names)
        return await unbroken(self._write(names))

    async def _write(self, names: Sequence[str]) -> set[str] | None:
        try:
            before = {key: body for group in self._plan.groups for key, body in group.before.items()}
            _, changed = await asyncio.gather(
                self._put(before | self._plan.triggers("due"), durable=self._durable), self._publish_earlier_events()
            )
            if changed:
                await self._blobs.delete([key for group in self._plan.groups for key in group.own_keys])
                return None
            return await self._swap()
        finally:
            self._engine.busy.difference_update(names)
            self._announce()  # last: a claim that is woken must not skip the jobs it was woken for

    async def _put(self, bodies: Mapping[str, bytes], *, durable: bool = False) -> None:
        """Write these objects. Index keys of jobs need not be durable, because they can be rebuilt from the jobs."""
        kept = [(key, body, is_data(key) or is_tick(key)) for key, body in bodies.items()]
        await self._blobs.write_many([Write(key, body, Expect.ANYTHING, durable and keep) for key, body, keep in kept])

    async def _publish_earlier_events(self) -> bool:
        """Publish earlier events of these jobs that are missing in the feed after a crash. Return True if records have
        changed.

        This keeps the events of each job in order.
        """
        if not self._tables.feed_events:
            return False
        records = [(record.seen, record.value) for group in self._plan.groups for record in group.records]
        return await self._engine.publisher.publish_before(records, self._tables.stamp)

    # the swap

    async def _swap(self) -> set[str]:
        run, tables, groups = self._run, self._tables, self._plan.groups
        commits = await self._engine.objects.commit_all(
            [(group.changes, group.primary) for group in groups], durable=self._durable
        )
        lost: set[str] = set()
        run.stale += len(tables.stale)
        failure: BaseException | None = None
        for group, committed in zip(groups, commits, strict=True):
            if isinstance(committed, BaseException):
                failure = failure or committed
            elif committed.lost and not (committed.unsure and await self._was_written(group)):
                lost.update(group.keys)
                await self._note_lost(group, committed.unsure)
            else:
                self._done.append(group)
                self._engine.remember(group, committed)
                run.written.update(group.keys)
                run.records.update({record.seen.key: record for record in group.records})
        run.ended.update(
            {parent: how for parent, how in tables.awaited.items() if self._layout.job(parent) in run.written}
        )
        run.recalled |= {parent for parent in tables.recalled if self._layout.job(parent) in run.written}
        await self._finish()
        if failure is not None:
            raise failure
        return lost

    async def _note_lost(self, group: SwapGroup, unsure: bool) -> None:
        ready = self._engine.ready
        if self._tables.options.queues:  # a claim: other workers took these
            ready.removed([record.was.index_key for record in group.records])
        elif group.is_about_waiting:
            ready.forget()
        self._engine.tally["lost"] += 1
        self._run.wasted += 1
        if unsure:
            self._run.unsure.update(group.keys)
        else:
            await self._blobs.delete(group.own_keys)

    async def _was_written(self, group: SwapGroup) -> bool:
        """Return whether the swap of a swap group succeeded. Its reply was lost, and the object has changed since.

        Events and keys are never created twice. So if a record contains one of our events, our swap succeeded.
        Otherwise it failed or the outcome is unknown, and the keys of this swap that no record names are deleted. That
        is safe: a lost swap cannot succeed later, and other writers keep the key of a record or create a new one.
        """
        found = await self._engine.objects.read([record.seen.key for record in group.records])
        values = [value_of(seen, JobValue) or JobValue() for seen in found]
        named = {key for value in values for key in (value.index_key, *(value.data or {}).values())}
        ours = {one.position: one for one in group.feed_events}
        if any(ours.get(one.position) == one for value in values for one in value.events):
            group.own_keys = [key for key in group.own_keys if key in named]  # later writers have deleted the others
            return True
        doubtful = [*group.own_keys, *(record.was.index_key for record in group.records if record.was.index_key)]
        await self._blobs.delete([key for key in doubtful if key not in named])
        return False

    # after the swap

    async def _finish(self) -> None:
        """Publish the events, write triggers, and delete keys that have become stale."""
        done, tables, run = self._done, self._tables, self._run
        after = {key: body for group in done for key, body in group.after.items()}
        events: defaultdict[str, list[FeedEvent]] = defaultdict(list)
        for one in [one for group in done for one in group.feed_events]:
            events[self._layout.job(one.event.job)].append(one)
        if done:
            after |= self._plan.triggers("upkeep")
            if await self._engine.clock() - tables.now > YOUNG // 2:
                after |= self._keys_again()
        _, run.settings, _ = await asyncio.gather(
            self._put(after), self._settings_after(), self._engine.publisher.publish(events)
        )
        deleted = [key for group in done for key in group.deleted]
        deleted += [key for key in tables.stale if key not in after]
        self._engine.ready.removed(deleted)
        self._engine.ready.added(key for group in done for key in group.own_keys if key.startswith("ready/"))
        deleted += self._spent_triggers({key for group in done for key in group.keys})
        deleted += [] if tables.is_cut_pending(run.written) else tables.feed_parts
        deleted += [self._layout.worker(worker_id) for worker_id in tables.gone_workers]
        if deleted:
            await self._blobs.delete(deleted)
        jobs = [record.job for group in done for record in group.records]
        await self._engine.register_queues({job.queue for job in jobs if job is not None})

    def _keys_again(self) -> dict[str, bytes]:
        """Return the index keys to write again after a late swap, because other processes may have deleted them as
        stale.
        """
        keys = [key for group in self._done for key in group.own_keys if not is_data(key)]
        return self._plan.triggers("due") | dict.fromkeys(keys, b"")

    async def _settings_after(self) -> dict[str, SeenObject]:
        """After the swap, read again the settings that this operation read but did not write. Return them by key.

        They may have changed before the swap.
        """
        written = {key for group in self._done for key in group.keys}
        records = [record for group in self._done for record in group.records]
        names = {record.was.queue for record in records}
        names |= {record.job.queue for record in records if record.job is not None}
        keys = {self._layout.queue(name) for name in names if name} | {TASKS}
        seen = self._tables.view.seen
        wanted = [key for key in keys if key in seen and key not in written] if self._done else []
        return {one.key: one for one in await self._engine.objects.read(wanted)}

    def _spent_triggers(self, written: Container[str]) -> list[str]:
        """Return the keys of triggers that no job needs any more. A young trigger is kept, because its job may not be
        written yet.
        """
        spent = []
        for family, triggers in self._tables.view.looked_at.items():
            for key, trigger in triggers:
                age = self._tables.now - (int(key.rsplit(".", 2)[1]) >> COUNT)
                if age > YOUNG and not any(self._is_wanted(family, at, job, written) for at, job in trigger.jobs):
                    spent.append(key)
        return spent

    def _is_wanted(self, family: str, at: int, key: str, written: Container[str]) -> bool:
        """Return whether the job whose object has this key still needs a trigger of this family at this time."""
        record = self._tables.records.get(key)
        if record is None or record.seen.lock is not None or (record.dirty and key not in written):
            return True
        return (family, at) in IndexFacts.of(record.value).triggers

    def _announce(self) -> None:
        """Wake the waiters in this process: idle workers for jobs that can be claimed now, and callers that wait for
        jobs that have ended.
        """
        opened = self._tables.opened
        ended: list[str] = []
        for group in self._done:
            for record in group.records:
                job = record.job
                if job is None:
                    continue
                if job.state is State.WAITING and record.value.index_key != record.was.index_key:
                    opened[job.queue, job.task] += 1
                if job.state in FINISHED:
                    ended.append(job.id)
        self._engine.on_news(opened, ended)


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Finish the work even if the caller is cancelled. Half-done work would have to be repaired by the sweep."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise
