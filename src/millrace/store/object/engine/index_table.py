"""The ledger's indexes, built from objects that were read: jobs to claim, expired leases, other jobs that have become
due, and unique keys.

An evaluation is one pass of the ledger's rules over these tables; see `view.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from millrace.domain.job import LIVE, Job, Spec, State
from millrace.domain.tables import KeyHold, Place, Range
from millrace.store.object.engine.job_table import Record, TableOptions, is_outside
from millrace.store.object.engine.line_table import LineTable
from millrace.store.object.engine.numbers import Numbers
from millrace.store.object.engine.objects import SeenObject
from millrace.store.object.engine.values import KeyValue, Trigger, value_of
from millrace.store.object.engine.view import Need, View
from millrace.store.object.keys import IndexEntry, Layout, name_in, unspelled, word


class ReadySpan:
    """The open, due jobs of one (queue, task, priority), as they were read."""

    def __init__(self, queue: str, task: str, priority: int) -> None:
        self.queue, self.task, self.priority = queue, task, priority
        self.heads: list[tuple[int, int]] = []
        self._next = 0

    def peek(self) -> tuple[int, int] | None:
        return self.heads[self._next] if self._next < len(self.heads) else None

    def advance(self) -> None:
        self._next += 1


class IndexTable(LineTable):
    """The part of the ledger's tables that has indexes and unique keys."""

    def __init__(self, view: View, now: int, numbers: Numbers, options: TableOptions) -> None:
        super().__init__(view, now, numbers, options)
        self.holds: dict[str, tuple[SeenObject, KeyValue | None]] = {}
        self._candidates: dict[int, str] = {}  # seq -> object, in claim order
        self._portion = 1
        self.postponed = 0  # expired jobs left for the next check

    # claims

    def ranges(self, queue: str, tasks: frozenset[str] | None, now: int, limit: int) -> list[Range]:
        spelled = None if tasks is None else frozenset(map(word, tasks))
        entries = self.view.ready(self.options.queues | {word(queue)}, spelled, now, limit)
        due = [
            entry
            for entry in entries
            if entry.at <= now and entry.queue == word(queue) and (spelled is None or entry.task in spelled)
        ]
        if any(entry.name in self.view.busy for entry in due):
            raise Need(reads=[self.view.look_again])  # concurrent claims have chosen the same jobs
        due.sort(key=lambda entry: (-entry.priority, entry.at, entry.seq))
        spread = self.view.index.spread
        if spread:
            due = _some_of(due, limit, spread)
        self._candidates |= {entry.seq: self.layout.job_by_name(entry.name) for entry in due}
        self._portion = limit
        self.view.want(self.layout.job_by_name(entry.name) for entry in due[:limit])
        return self._spans(queue, tasks, due)

    def _spans(self, queue: str, tasks: frozenset[str] | None, due: Iterable[IndexEntry]) -> list[Range]:
        """Return the due jobs by task and priority.

        They are the index entries not known to be stale, and the jobs that this evaluation has opened.
        """
        found: dict[int, tuple[str, int, int]] = {}  # seq -> (task, priority, due time)
        for entry in due:
            key = self.layout.job_by_name(entry.name)
            task = unspelled(entry.task)
            if key not in self.view.seen and task is not None:
                self.keys_by_seq[entry.seq] = key
                found[entry.seq] = (task, entry.priority, entry.at)
            else:
                self.job_at(entry)
        for record in self.records.values():
            job = record.job
            if job is None or job.queue != queue or job.state is not State.WAITING or not job.open:
                continue
            if job.expires_at is not None and job.expires_at <= self.now:
                continue  # it is about to expire, and blocks no other job
            if job.available_at <= self.now and (tasks is None or job.task in tasks) and self._is_free(record):
                found[job.seq] = (job.task, job.priority, job.available_at)
        spans: dict[tuple[str, int], ReadySpan] = {}
        for seq, (task, priority, at) in found.items():
            spans.setdefault((task, priority), ReadySpan(queue, task, priority)).heads.append((at, seq))
        if not self.view.index.spread:
            for span in spans.values():
                span.heads.sort()
        return list(spans.values())

    def by_seq(self, seq: int) -> Job | None:
        """Return the job with this seq, or None. Unread candidates for a claim are read several at a time."""
        key = self._candidates.get(seq)
        if key is not None and key not in self.view.seen:
            unread = [other for other in self._candidates.values() if other not in self.view.seen]
            self.view.want([key, *unread[: self._portion]])
        return super().by_seq(seq)

    def _is_free(self, record: Record) -> bool:
        return not self.view.busy or name_in(record.seen.key) not in self.view.busy

    def entering(self, now: int, limit: int) -> list[int]:
        def enters_at(job: Job) -> int | None:
            return job.available_at if job.state is State.WAITING and is_outside(job) else None

        return self._due_seqs("due", enters_at, now, limit)

    def expiring(self, now: int, limit: int) -> list[int]:
        """Return the seqs of jobs to expire.

        A job that depends on another expiring job is left for the next check, because the end of its parent must update
        it first.
        """
        found = [
            (job.expires_at, job.seq, job)
            for job in self._due("due")
            if job.state is State.WAITING and job.expires_at is not None and job.expires_at <= now
        ]
        earlier: set[str] = set()  # ids that other jobs wait for
        seqs: list[int] = []
        self.postponed = 0
        for _, seq, job in sorted(found, key=lambda one: one[:2])[:limit]:
            record = self.record(self.keys_by_seq[seq])
            if earlier and self._waits_for(earlier, record.value.parents):
                self.postponed += 1
            else:
                seqs.append(seq)
            if record.value.awaited:
                earlier.add(job.id)
        return seqs

    def _waits_for(self, ids: set[str], parents: Sequence[str]) -> bool:
        """Return whether one of these ids is among the parents, or among their own parents, and so on."""
        known: set[str] = set()
        while parents:
            if not ids.isdisjoint(parents):
                return True
            known.update(parents)
            self.prefetch_ids(parents)
            values = [self.record_of(parent).value for parent in parents]
            waiting = [value for value in values if value.job is not None and value.job.state is State.WAITING]
            parents = [parent for value in waiting for parent in value.parents if parent not in known]
        return False

    def due_retries(self, now: int, limit: int) -> list[int]:
        return self._due_seqs("upkeep", lambda job: job.next_retry_at if job.state is State.DEAD else None, now, limit)

    def expired_results(self, now: int, limit: int) -> list[int]:
        return self._due_seqs("upkeep", lambda job: job.result_until, now, limit)

    def _due_seqs(self, family: str, instant: Callable[[Job], int | None], now: int, limit: int) -> list[int]:
        """Return the seqs of jobs for which `instant` returns a time that has come, earliest first."""
        found = [(at, job.seq) for job in self._due(family) if (at := instant(job)) is not None and at <= now]
        return [seq for _, seq in sorted(found)[:limit]]

    def _due(self, family: str) -> Iterator[Job]:
        if family == "due" and not self.options.looks_at_time:
            return
        triggers: list[tuple[str, Trigger]] = self.view.triggers(family, self.now)
        keys = dict.fromkeys(key for _, trigger in triggers for _, key in trigger.jobs)
        self.view.want(keys)
        named = [job for key in keys if (job := self.record(key).job) is not None]
        yield from {job.seq: job for job in (*named, *self.changed_jobs())}.values()

    def lapsed(
        self,
        now: int,
        limit: int,
        queues: tuple[str, ...] | None,
        tasks: frozenset[str] | None,
        ignore: frozenset[str],
    ) -> list[int]:
        entries = [entry for entry in self.entries("leases/") if entry.at < now]
        self.view.want(self.layout.job_by_name(entry.name) for entry in entries)
        found = []
        for entry in entries:
            job = self.job_at(entry)
            if job is None or job.lease_until is None or job.lease_until >= now or job.lease_id in ignore:
                continue
            if (queues is None or job.queue in queues) and (tasks is None or job.task in tasks):
                found.append((job.lease_until, job.seq))
        return [seq for _, seq in sorted(found)[:limit]]

    def next_due(self, queue: str, tasks: frozenset[str] | None, without: frozenset[str]) -> int | None:
        spelled = None if tasks is None else frozenset(map(word, tasks))
        avoided = frozenset(map(word, without))
        entries = self.view.ready(self.options.queues | {word(queue)}, spelled, self.now, 1)
        instants = [
            entry.at
            for entry in entries
            if entry.queue == word(queue) and (spelled is None or entry.task in spelled) and entry.task not in avoided
        ]
        outside = self.entries(f"held/{word(queue)}/-/")
        instants += [entry.at for entry in outside if "o" in entry.flags]
        return min(instants, default=None)

    def entries(self, prefix: str, most: int | None = None) -> list[IndexEntry]:
        return Layout.entries(self.view.keys(prefix, most))

    def wake(self, place: Place, jobs: int) -> None:
        self.opened[place] += jobs

    # places in the order of claims

    def ahead(self, job: Job, now: int, most: int) -> int:
        name = job.line
        if name is not None:
            line = self.line(job.queue, name)
            held = line is not None and line.holder is not None and line.holder != job.seq
            mine = (-job.priority, job.seq)
            better = self._members(job.queue, name, most)
            return min(most, held + sum((-other.priority, other.seq) < mine for other in better))
        starts = max(now, job.available_at)
        mine_at = (job.available_at, job.seq)
        count = 0
        for shard in self.layout.shards:
            for entry in self.entries(f"ready/{shard}/{word(job.queue)}/"):
                if entry.at > starts or entry.priority < job.priority:
                    continue
                count += entry.priority > job.priority or (entry.at, entry.seq) < mine_at
        return min(most, count)

    # unique keys

    def prefetch_specs(self, specs: Sequence[Spec]) -> None:
        super().prefetch_specs(specs)
        holds = [self._hold(spec.queue, spec.key)[1] for spec in specs if spec.key is not None]
        self.view.want(value.owner for value in holds if value is not None)

    def keys_of_specs(self, specs: Sequence[Spec]) -> list[str]:
        unique = [self.layout.unique_key(spec.queue, spec.key) for spec in specs if spec.key is not None]
        return [*super().keys_of_specs(specs), *unique]

    def _hold(self, queue: str, key: str) -> tuple[SeenObject, KeyValue | None]:
        place = self.layout.unique_key(queue, key)
        known = self.holds.get(place)
        if known is None:
            if place not in self.view.seen:
                named = ((job.queue, job.spec.key) for job in self.batch())
                self.view.want([place, *(self.layout.unique_key(of, name) for of, name in named if name is not None)])
            seen = self.view.object(place)
            known = self.holds[place] = (seen, value_of(seen, KeyValue))
        return known

    def key(self, queue: str, key: str) -> KeyHold | None:
        """Return the hold on a unique key; None if the key is free.

        A hold with scope `live` or `retained` is not deleted when it ends. The record of its owner shows whether it is
        still valid.
        """
        value = self._hold(queue, key)[1]
        if value is None or value.hold.scope == "window":
            return None if value is None else self._known_owner(value)
        job = self.record(value.owner).job
        if job is None or job.seq != value.hold.seq:
            return None
        return value.hold if value.hold.scope == "retained" or job.state in LIVE else None

    def _known_owner(self, value: KeyValue) -> KeyHold:
        self.keys_by_seq.setdefault(value.hold.seq, value.owner)
        return value.hold

    def put_key(self, hold: KeyHold) -> None:
        seen, _ = self._hold(hold.queue, hold.key)
        self.holds[seen.key] = (seen, KeyValue(hold, self.layout.job(hold.owner)))
        self.links.append((seen.key, self.layout.job(hold.owner)))
        self.touched.add(seen.key)  # so that a concurrent hold is detected

    def drop_key(self, hold: KeyHold) -> None:
        if hold.scope == "window":
            seen, _ = self._hold(hold.queue, hold.key)
            self.holds[seen.key] = (seen, None)

    def lapsed_keys(self, now: int, limit: int) -> list[KeyHold]:
        """Return an empty list: an expired window blocks no job, and the sweep removes its object."""
        return []

    def windows(self, since: int, skip: int, limit: int) -> list[KeyHold]:
        raise NotImplementedError("the keys of an object store are exported by `ObjectTransfer`")


def _some_of(due: list[IndexEntry], limit: int, spread: int) -> list[IndexEntry]:
    """Return a sample of the due entries for a claim, so that concurrent claims collide less.

    The sample starts at a random entry near the head. If there are few entries, it contains only a share of them.
    """
    if len(due) < spread:
        share = max(1, len(due) * limit // spread)
        return random.sample(due, min(share, len(due)))
    back = random.randrange(min(len(due) - limit, spread) + 1) if len(due) > limit else 0
    return [*due[back:], *due[:back]]
