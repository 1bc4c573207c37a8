"""What a run wants written: objects to swap, in groups that must happen together, and the index keys around them.

Order makes every crash harmless (BO-01, BO-02, BO-04): the keys that help to find a job are written before the swap
that makes them true, what is no longer so is deleted after everything else, and a key that runs ahead, or was left
behind, points at a job that says otherwise, which whoever meets it believes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from millrace.domain.job import State
from millrace.store.object.envelope import nonce
from millrace.store.object.job_table import Facts, Record
from millrace.store.object.keys import TASKS
from millrace.store.object.objects import Change
from millrace.store.object.tables import ObjectTables
from millrace.store.object.values import FeedPart, Filed, Trigger, encode, encoded_job

_FIRST = ("lines/", "control/", "schedules/", "keys/")  # whoever is wanted by many is not locked, but decides


class Group(msgspec.Struct):
    """Objects that change together, and what goes with them."""

    changes: list[Change]
    before: dict[str, bytes]
    after: dict[str, bytes]
    deleted: list[str]
    filed: list[Filed]
    records: list[Record]
    mine: list[str]  # of `before`, what nobody else can have written too

    @property
    def keys(self) -> list[str]:
        return [change.key for change in self.changes]

    @property
    def is_about_waiting(self) -> bool:
        """Was one of its jobs claimable, or was to be? Then who lists claimable jobs may have to list again."""
        return any(key.startswith("ready/") for key in (*self.mine, *(record.was.filed for record in self.records)))

    @property
    def primary(self) -> str | None:
        """The object that many want; else any, or a manifest for many new ones."""
        for prefix in _FIRST:
            for change in self.changes:
                if change.key.startswith(prefix):
                    return change.key
        return None


class Planner:
    """`soon` and `later` are triggers, for all groups: to be written before the swaps, and after them."""

    def __init__(self, tables: ObjectTables, inline: int) -> None:
        self._tables = tables
        self._triggers: defaultdict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
        self._layout = tables.layout
        self._inline = inline
        self._parent: dict[str, str] = {}

    def groups(self, together: bool) -> list[Group]:
        """One group per set of objects that belong together; all in one when the caller says so."""
        records = {key: record for key, record in self._tables.records.items() if record.dirty}
        values = self._tables.changed_values()
        for key in (*records, *values):
            self._parent[key] = key
        self._link(records, values, together)
        filed: defaultdict[str, list[Filed]] = defaultdict(list)
        for event in self._tables.filed:
            filed[self._layout.job(event.event.job)].append(event)
        members: defaultdict[str, list[str]] = defaultdict(list)
        for key in self._parent:
            members[self._root(key)].append(key)
        found = []
        for keys in members.values():
            group = Group([], {}, {}, [], [], [], [])
            for key in keys:
                if key in records:
                    self._add(group, records[key])
                    group.filed += filed[key]
                else:
                    seen, body = values[key]
                    group.changes.append(Change(seen, body))
            group.filed.sort(key=lambda one: one.place)
            found.append(group)
        return found

    def triggers(self, family: str) -> dict[str, bytes]:
        return {
            self._layout.trigger(family, at, self._tables.stamp): encode(Trigger(tuple(jobs)))
            for (wanted, at), jobs in self._triggers.items()
            if wanted == family
        }

    # who belongs together

    def _link(self, records: dict[str, Record], values: Iterable[str], together: bool) -> None:
        everything = [*records, *values]
        if together:
            for key in everything[1:]:
                self._join(key, everything[0])
            return
        for one, other in self._tables.links:
            self._join(one, other)
        queues: defaultdict[str, set[str]] = defaultdict(set)
        for filed in self._tables.filed:
            queues[self._layout.job(filed.event.job)].add(filed.event.queue)
        for key, record in records.items():
            job = record.value.job
            for part in (record.was, record.was if job is None else job):  # it may have come, or be gone, in this step
                queues[key].add(part.queue)
                if part.line is not None:
                    self._join(key, self._layout.line(part.queue, part.line))
                if part.task in self._tables.limited_tasks:
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

    def _add(self, group: Group, record: Record) -> None:
        value, was = record.value, record.was
        value.rev += 1
        job = value.job
        if job is None:
            value.filed = ""
        elif job.state is State.RUNNING and job.lease_id == was.lease and self._still_found(record):
            value.filed = was.filed  # an extended lease is filed anew by who looks for it when its time has come
        else:
            value.filed = self._layout.state_key(job, value.rev, nonce()[:6])
        if value.filed != was.filed:
            if value.filed:  # before the swap: a job that is there is never without a key
                group.before[value.filed] = b""
                group.mine.append(value.filed)
            if was.filed:
                group.deleted.append(was.filed)
        self._put_aside(group, record)
        self._index(group, record, Facts.of(value))
        group.records.append(record)
        body = None if value.is_empty else encoded_job(value)
        group.changes.append(Change(record.seen, body))

    @staticmethod
    def _still_found(record: Record) -> bool:
        """Is the key it is filed under no later than its lease ends?"""
        job = record.value.job
        until = int(record.was.filed.split("/")[3].split(".")[0])
        return job is not None and job.lease_until is not None and job.lease_until >= until

    def _index(self, group: Group, record: Record, now: Facts) -> None:
        was, job = record.was, record.value.job
        seq = now.seq or was.seq
        events = record.value.events
        job_id = job.id if job is not None else (events[-1].event.job if events else "")
        for parent in now.parents:
            if parent not in was.parents or now.seq != was.seq:
                group.before[self._layout.dependency(parent, seq, job_id)] = b""
        for parent in was.parents:
            if parent not in now.parents or now.seq != was.seq:
                group.deleted.append(self._layout.dependency(parent, was.seq, job_id))
        for past in now.past:
            if past not in was.past:
                group.after[self._layout.gone(past.gone_at, past.seq, past.id)] = b""
        for past in was.past:
            if past not in now.past:
                group.deleted.append(self._layout.gone(past.gone_at, past.seq, past.id))
        for family, new, old in (
            ("due", now.outside, was.outside),
            ("due", now.expires, was.expires),
            ("upkeep", now.retry, was.retry),
            ("upkeep", now.result, was.result),
        ):
            if new is not None and new != old:
                self._triggers[family, new].append((new, record.seen.key))

    def _put_aside(self, group: Group, record: Record) -> None:
        """Large payloads and results get objects of their own, written before the record that names them (BO-20)."""
        value, job = record.value, record.value.job
        if job is None:
            group.deleted += record.was.data
            return
        data = dict(value.data or {})
        for what, body in (("input", job.spec.payload), ("output", job.result)):
            if body is None or len(body) <= self._inline:
                data.pop(what, None)
            elif what not in data or self._tables.view.large.get(data[what]) != body:
                data[what] = self._layout.data(job.id, what, nonce())
                group.before[data[what]] = body
                group.mine.append(data[what])
        group.deleted += [key for key in record.was.data if key not in data.values()]
        value.data = data or None


def feed_part(filed: list[Filed]) -> bytes:
    return encode(FeedPart(tuple(filed)))
