"""The ledger's indexes, built from objects that were read: jobs to claim, expired leases, other jobs that have become
due, groups and lanes, and unique keys.

An evaluation is one pass of the ledger's rules over these tables; see `view.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from millrace.domain.job import LIVE, Job, State
from millrace.domain.tables import KeyHold, Line, Place, Range
from millrace.store.object.engine.job_table import JobTable, Record, TableOptions, is_outside
from millrace.store.object.engine.numbers import Numbers
from millrace.store.object.engine.objects import SeenObject
from millrace.store.object.engine.values import KeyValue, LineValue, Trigger, value_of
from millrace.store.object.engine.view import Need, View, nothing_more
from millrace.store.object.keys import IndexEntry, Layout, line_word, name_in, unspelled, word

IN_LINE = 16  # members of a group or lane read at once to find the next


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


class IndexTable(JobTable):
    """The part of the ledger's tables that has indexes, lines (groups and lanes) and unique keys."""

    def __init__(self, view: View, now: int, numbers: Numbers, options: TableOptions) -> None:
        super().__init__(view, now, numbers, options)
        self.lines: dict[str, tuple[SeenObject, LineValue | None]] = {}
        self.holds: dict[str, tuple[SeenObject, KeyValue | None]] = {}
        # Objects that are written even if unchanged, so that concurrent changes are detected.
        self.touched: set[str] = set()
        self.stale: set[str] = set()  # stale index keys
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
            raise Need(self.view.look_again)  # concurrent claims have chosen the same jobs
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

    def job_at(self, entry: IndexEntry) -> Job | None:
        """Return the job of this index entry. Return None if the job's record names another key, so that the entry is
        not valid.
        """
        record = self.record(self.layout.job_by_name(entry.name))
        if record.job is not None and record.value.index_key == entry.key:
            self.keys_by_seq[record.job.seq] = record.seen.key
            return record.job
        is_known = record.seen.lock is None and record.seen.key not in self.view.guessed
        if is_known and entry.rev <= record.value.rev:  # otherwise a writer is about to make it valid
            self.stale.add(entry.key)
        return None

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

    # lines

    def _line(self, queue: str, name: str) -> tuple[SeenObject, LineValue | None]:
        key = self.layout.line(queue, name)
        known = self.lines.get(key)
        if known is None:
            seen = self.view.object(key)
            value = value_of(seen, LineValue)
            known = self.lines[key] = (seen, value)
            if self.options.pins_lines:
                self.touched.add(key)
            if value is not None:
                self.keys_by_seq.update(value.places)
                self.follow(value.stamp)
                self._draw_after(value.last)
        return known

    def line(self, queue: str, name: str) -> Line | None:
        value = self._line(queue, name)[1]
        return None if value is None else value.line

    def put_line(self, line: Line) -> None:
        seen, old = self._line(line.queue, line.name)
        places = {seq: self.keys_by_seq[seq] for seq in (line.holder, line.open) if seq is not None}
        stamp, last = (0, 0) if old is None else (old.stamp, old.last)
        self.lines[seen.key] = (seen, LineValue(line, places, stamp, max(last, self._highest_in(line))))

    def _highest_in(self, line: Line) -> int:
        """Return the highest seq that this evaluation has added to the line; 0 if it has added none."""
        jobs = (record.job for record in self.records.values() if record.dirty)
        return max((job.seq for job in jobs if job and job.queue == line.queue and job.line == line.name), default=0)

    def _draw_after(self, last: int) -> None:
        """Raise Need, so that new seqs are drawn, if the drawn seqs are not higher than `last`.

        `last` is the highest seq in the line. Another process may have added it after the seqs were drawn.
        """
        self.numbers.seqs.seen(last)
        if self.view.drawn and self.view.drawn[0] <= last:
            self.view.drawn = []
            raise Need(nothing_more)

    def drop_line(self, line: Line) -> None:
        seen, _ = self._line(line.queue, line.name)
        self.lines[seen.key] = (seen, None)

    def best_in_line(self, queue: str, name: str) -> int | None:
        members = self.members(queue, name, 1)
        return members[0] if members else None

    def members(self, queue: str, name: str, limit: int) -> list[int]:
        return [job.seq for job in self._members(queue, name, limit)]

    def _members(self, queue: str, name: str, limit: int) -> list[Job]:
        """Return the first `limit` waiting members of the line.

        They are listed by the index and checked against their records. Changes of this evaluation are included.
        """
        self._line(queue, name)  # read it before listing members: every change of members writes it
        prefix = f"held/{word(queue)}/{line_word(name)}/"
        most = limit + IN_LINE
        while True:
            keys = self.view.keys(prefix, most)
            entries = Layout.entries(keys)
            self.view.want(self.layout.job_by_name(entry.name) for entry in entries)
            listed = [self.record(self.layout.job_by_name(entry.name)) for entry in entries]
            for entry in entries:
                self.job_at(entry)
            opened = self.line(queue, name)
            if opened is not None and opened.open is not None:
                self.by_seq(opened.open)
            standing = [
                job
                for job in self._jobs_of(chain(listed, self.records.values()))
                if job.state is State.WAITING and job.in_line and job.queue == queue and job.line == name
            ]
            standing.sort(key=lambda job: (-job.priority, job.seq))
            if len(standing) >= limit or len(keys) < most:
                return standing[:limit]
            most *= 4

    @staticmethod
    def _jobs_of(records: Iterable[Record]) -> list[Job]:
        return list({job.seq: job for record in records if (job := record.job) is not None}.values())

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

    def _hold(self, queue: str, key: str) -> tuple[SeenObject, KeyValue | None]:
        place = self.layout.unique_key(queue, key)
        known = self.holds.get(place)
        if known is None:
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


def _some_of(due: list[IndexEntry], limit: int, spread: int) -> list[IndexEntry]:
    """Return a sample of the due entries for a claim, so that concurrent claims collide less.

    The sample starts at a random entry near the head. If there are few entries, it contains only a share of them.
    """
    if len(due) < spread:
        share = max(1, len(due) * limit // spread)
        return random.sample(due, min(share, len(due)))
    back = random.randrange(min(len(due) - limit, spread) + 1) if len(due) > limit else 0
    return [*due[back:], *due[:back]]
