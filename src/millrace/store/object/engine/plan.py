"""The write plan, which is what an operation writes: groups of objects that are swapped together, and the index keys
around them.

The order of writes makes every crash harmless: index keys are written before the swap that makes them valid, and stale
keys are deleted last. If an index key contradicts the record of its job, because it is early or stale, the record
counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from millrace.domain.job import State
from millrace.domain.schedule import Schedule
from millrace.store.object.engine.job_table import IndexFacts, Record
from millrace.store.object.engine.objects import Swap, nonce
from millrace.store.object.engine.tables import ObjectTables
from millrace.store.object.engine.values import FeedEvent, Trigger, encode, encoded_job, value_of
from millrace.store.object.keys import TASKS

LARGE_BATCH = 100  # new objects; a smaller batch is written twice, and leaves no commit record for the sweep
_FIRST = ("lines/", "control/", "schedules/", "keys/")  # preferred primaries: objects wanted by many are not locked


class SwapGroup(msgspec.Struct):
    """Objects that are swapped together, and the objects to write before and after the swap (`before`, `after`).

    `deleted` has the keys to delete at the end.
    """

    changes: list[Swap]
    before: dict[str, bytes]
    after: dict[str, bytes]
    deleted: list[str]
    feed_events: list[FeedEvent]
    records: list[Record]
    own_keys: list[str]  # those keys of `before` that only this operation can have written

    @property
    def keys(self) -> list[str]:
        return [change.key for change in self.changes]

    @property
    def is_about_waiting(self) -> bool:
        """Whether a job of the group was claimable before or is claimable now. If so, cached listings may be stale."""
        return any(
            key.startswith("ready/") for key in (*self.own_keys, *(record.was.index_key for record in self.records))
        )

    @property
    def primary(self) -> str | None:
        """The key of the object whose swap commits the group. It is an object that many processes want to change.

        None means no preference. Without a preference, any object is chosen, or a commit record if there are many new
        objects. A commit record is also best for many new objects and several objects that many processes want to
        change: all but one of these would be locked anyway.
        """
        keys = [key for key in self.keys if key.startswith(_FIRST)]
        wanted = [key for prefix in _FIRST for key in keys if key.startswith(prefix)]
        creates = sum(change.seen.tag is None for change in self.changes)
        return None if not wanted or (len(wanted) > 1 and creates > LARGE_BATCH) else wanted[0]


class WritePlan:
    """What to write for the changes in `tables`.

    There is one swap group per set of linked objects. With `together`, there is only one. Payloads and results longer
    than `inline` bytes get their own objects.
    """

    def __init__(self, tables: ObjectTables, inline: int, *, together: bool) -> None:
        self.tables = tables
        self._triggers: defaultdict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
        self._layout = tables.layout
        self._inline = inline
        self._parent: dict[str, str] = {}
        self.groups = self._groups(together)
        if self._triggers:
            _ = tables.stamp  # triggers are named by it: draw it before anything is written

    def _groups(self, together: bool) -> list[SwapGroup]:
        records = {key: record for key, record in self.tables.records.items() if record.dirty}
        values = self.tables.changed_values()
        for key in (*records, *values):
            self._parent[key] = key
        self._link(records, values, together)
        events: defaultdict[str, list[FeedEvent]] = defaultdict(list)
        for one in self.tables.feed_events:
            events[self._layout.job(one.event.job)].append(one)
        members: defaultdict[str, list[str]] = defaultdict(list)
        for key in self._parent:
            members[self._root(key)].append(key)
        found = []
        for keys in members.values():
            group = SwapGroup([], {}, {}, [], [], [], [])
            for key in keys:
                if key in records:
                    self._add(group, records[key])
                    group.feed_events += events[key]
                else:
                    seen, body = values[key]
                    group.changes.append(Swap(seen, body))
                    self._index_schedule(group, key)
            group.feed_events.sort(key=lambda one: one.place)
            found.append(group)
        return found

    @property
    def settings(self) -> list[str]:
        """The keys of the settings objects that the operation writes."""
        return [key for group in self.groups for key in group.keys if key.startswith("control/")]

    def triggers(self, family: str) -> dict[str, bytes]:
        """Return the triggers of this family for all swap groups, by key.

        Triggers of the family `due` are written before the swaps, and those of `upkeep` after them.
        """
        return {
            self._layout.trigger(family, at, self.tables.stamp): encode(Trigger(tuple(jobs)))
            for (wanted, at), jobs in self._triggers.items()
            if wanted == family
        }

    # which objects belong together

    def _link(self, records: dict[str, Record], values: Iterable[str], together: bool) -> None:
        everything = [*records, *values]
        if together:
            for key in everything[1:]:
                self._join(key, everything[0])
            return
        for one, other in self.tables.links:
            self._join(one, other)
        queues: defaultdict[str, set[str]] = defaultdict(set)
        for feed_event in self.tables.feed_events:
            queues[self._layout.job(feed_event.event.job)].add(feed_event.event.queue)
        for key, record in records.items():
            job = record.value.job
            for part in (record.was, record.was if job is None else job):  # it may be created or removed in this step
                queues[key].add(part.queue)
                if part.line is not None:
                    self._join(key, self._layout.line(part.queue, part.line))
                if part.task in self.tables.limited_tasks:
                    self._join(key, TASKS)
            for name in queues[key] - {""}:
                self._join(key, self._layout.queue(name))

    def _join(self, one: str, other: str) -> None:
        if one in self._parent and other in self._parent:
            self._parent[self._root(one)] = self._root(other)

    def _root(self, key: str) -> str:
        while self._parent[key] != key:
            self._parent[key] = self._parent[self._parent[key]]
            key = self._parent[key]
        return key

    # a job and its index keys

    def _add(self, group: SwapGroup, record: Record) -> None:
        value, was = record.value, record.was
        value.rev += 1
        job = value.job
        if job is None:
            value.index_key = ""
        elif job.state is State.RUNNING and job.lease_id == was.lease and self._still_found(record):
            value.index_key = was.index_key  # the reaper moves the key of an extended lease when the old time has come
        else:
            value.index_key = self._layout.state_key(job, value.rev, nonce()[:6])
        if value.index_key != was.index_key:
            if value.index_key:  # before the swap: an existing job always has a key
                group.before[value.index_key] = b""
                group.own_keys.append(value.index_key)
            if was.index_key:
                group.deleted.append(was.index_key)
        self._put_aside(group, record)
        self._index(group, record, IndexFacts.of(value))
        group.records.append(record)
        body = None if value.is_empty else encoded_job(value)
        group.changes.append(Swap(record.seen, body))

    def _index_schedule(self, group: SwapGroup, key: str) -> None:
        """Write the key by which a changed schedule is found when it is due.

        A group that loses a race leaves its key: another writer of the same revision may need it. A reader deletes it.
        """
        known = self.tables.plans.get(key)
        if known is None:
            return
        was, now = self._layout.tick(value_of(known[0], Schedule)), self._layout.tick(known[1])
        if now is not None:
            group.before[now] = b""
        if was is not None and was != now:
            group.deleted.append(was)

    @staticmethod
    def _still_found(record: Record) -> bool:
        """Return whether the reaper still finds the job by its current lease key.

        It does if the time in the key is not after the end of the lease.
        """
        job = record.value.job
        until = int(record.was.index_key.split("/")[3].split(".")[0])
        return job is not None and job.lease_until is not None and job.lease_until >= until

    def _index(self, group: SwapGroup, record: Record, now: IndexFacts) -> None:
        was, job = record.was, record.value.job
        seq = now.seq or was.seq
        events = record.value.events
        job_id = job.id if job is not None else (events[-1].event.job if events else "")
        for parent in now.after:
            if parent not in was.after or now.seq != was.seq:
                group.before[self._layout.dependency(parent, seq, job_id)] = b""
        for parent in was.after:
            if parent not in now.after or now.seq != was.seq:
                group.deleted.append(self._layout.dependency(parent, was.seq, job_id))
        for past in now.past:
            if past not in was.past:
                group.after[self._layout.gone(past.gone_at, past.seq, past.id)] = b""
        for past in was.past:
            if past not in now.past:
                group.deleted.append(self._layout.gone(past.gone_at, past.seq, past.id))
        for (family, new), (_, old) in zip(now.triggers, was.triggers, strict=True):
            if new is not None and new != old:
                self._triggers[family, new].append((new, record.seen.key))

    def _put_aside(self, group: SwapGroup, record: Record) -> None:
        """Move large payloads and results into their own objects, which are written before the record."""
        value, job = record.value, record.value.job
        if job is None:
            group.deleted += record.was.data
            return
        data = dict(value.data or {})
        for what, body in (("input", job.spec.payload), ("output", job.result)):
            if body is None or len(body) <= self._inline:
                data.pop(what, None)
            elif what not in data or self.tables.view.large.get(data[what]) != body:
                data[what] = self._layout.data(job.id, what, nonce())
                group.before[data[what]] = body
                group.own_keys.append(data[what])
        group.deleted += [key for key in record.was.data if key not in data.values()]
        value.data = data or None
