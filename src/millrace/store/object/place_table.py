"""Where jobs stand: what a claim and the reaper look at, lines and unique keys."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import chain

from millrace.domain.job import LIVE, Job, State
from millrace.domain.tables import KeyHold, Line, Range
from millrace.store.object.job_table import JobTable, Record, is_outside
from millrace.store.object.keys import Entry, Layout, line_word, name_in, unspelled, word
from millrace.store.object.numbers import Numbers
from millrace.store.object.objects import Seen
from millrace.store.object.values import KeyValue, LineValue, Trigger, decode
from millrace.store.object.view import Need, View, nothing_more

IN_LINE = 16  # members of a line read at once to find the next


class Span:
    """The open, due jobs of one (queue, task, priority), as they were read."""

    def __init__(self, queue: str, task: str, priority: int) -> None:
        self.queue, self.task, self.priority = queue, task, priority
        self.heads: list[tuple[int, int]] = []
        self._next = 0

    def peek(self) -> tuple[int, int] | None:
        return self.heads[self._next] if self._next < len(self.heads) else None

    def advance(self) -> None:
        self._next += 1


class PlaceTable(JobTable):
    """`looks_at_time`: whether this run lets in and buries what has become due; that is a listing of its own."""

    def __init__(self, view: View, now: int, numbers: Numbers, looks_at_time: bool = True) -> None:
        super().__init__(view, now, numbers)
        self.looks_at_time = looks_at_time
        self.lines: dict[str, tuple[Seen, LineValue | None]] = {}
        self.holds: dict[str, tuple[Seen, KeyValue | None]] = {}
        self.touched: set[str] = set()  # objects that are written even if nothing in them changes: others rely on it
        self.pins_lines = False  # whether every line that is looked at is written
        self.stale: set[str] = set()  # index keys that say what is no longer so
        self.wanted_queues: frozenset[str] = frozenset()
        self._candidates: dict[int, str] = {}  # seq -> object, in the order of the claim
        self._portion = 1
        self.postponed = 0  # of what has expired, for the next look

    # claims

    def ranges(self, queue: str, tasks: frozenset[str] | None, now: int, limit: int) -> list[Range]:
        spelled = None if tasks is None else frozenset(map(word, tasks))
        entries = self.view.ready(self.wanted_queues | {word(queue)}, spelled, now, limit)
        due = [
            entry
            for entry in entries
            if entry.at <= now and entry.queue == word(queue) and (spelled is None or entry.task in spelled)
        ]
        if any(entry.name in self.view.busy for entry in due):
            raise Need(self.view.look_again)  # claims beside this one have chosen the same
        due.sort(key=lambda entry: (-entry.priority, entry.at, entry.seq))
        spread = self.view.index.spread
        if spread:
            due = _some_of(due, limit, spread)
        self._candidates |= {entry.seq: self.layout.job_by_name(entry.name) for entry in due}
        self._portion = limit
        self.view.want(self.layout.job_by_name(entry.name) for entry in due[:limit])
        return self._spans(queue, tasks, due)

    def _spans(self, queue: str, tasks: frozenset[str] | None, due: Iterable[Entry]) -> list[Range]:
        """What stands in the index, as far as it was read only if it is still so, and what this run has opened."""
        found: dict[int, tuple[str, int, int]] = {}  # seq -> (task, priority, when it was due)
        for entry in due:
            key = self.layout.job_by_name(entry.name)
            task = unspelled(entry.task)
            if key not in self.view.seen and task is not None:
                self.places[entry.seq] = key
                found[entry.seq] = (task, entry.priority, entry.at)
            else:
                self.standing_at(entry)
        for record in self.records.values():
            job = record.job
            if job is None or job.queue != queue or job.state is not State.WAITING or not job.open:
                continue
            if job.expires_at is not None and job.expires_at <= self.now:
                continue  # it waits for its burial, and stops nobody behind it
            if job.available_at <= self.now and (tasks is None or job.task in tasks) and self._is_free(record):
                found[job.seq] = (job.task, job.priority, job.available_at)
        spans: dict[tuple[str, int], Span] = {}
        for seq, (task, priority, at) in found.items():
            spans.setdefault((task, priority), Span(queue, task, priority)).heads.append((at, seq))
        if not self.view.index.spread:
            for span in spans.values():
                span.heads.sort()
        return list(spans.values())

    def by_seq(self, seq: int) -> Job | None:
        """A candidate that has not been read yet is read together with those that would come next."""
        key = self._candidates.get(seq)
        if key is not None and key not in self.view.seen:
            unread = [other for other in self._candidates.values() if other not in self.view.seen]
            self.view.want([key, *unread[: self._portion]])
        return super().by_seq(seq)

    def _is_free(self, record: Record) -> bool:
        return not self.view.busy or name_in(record.seen.key) not in self.view.busy

    def standing_at(self, entry: Entry) -> Job | None:
        """The job, if it stands where this index key says; else the key is a leftover."""
        record = self.record(self.layout.job_by_name(entry.name))
        if record.job is not None and record.value.filed == entry.key:
            self.places[record.job.seq] = record.seen.key
            return record.job
        is_known = record.seen.lock is None and record.seen.key not in self.view.guessed
        if is_known and entry.rev <= record.value.rev:  # else somebody is about to make it as it says
            self.stale.add(entry.key)
        return None

    def entering(self, now: int, limit: int) -> list[int]:
        found = [
            (job.available_at, job.seq)
            for job in self._due("due")
            if job.state is State.WAITING and is_outside(job) and job.available_at <= now
        ]
        return [seq for _, seq in sorted(found)[:limit]]

    def expiring(self, now: int, limit: int) -> list[int]:
        """Whoever waits for one that expires before it is told of that first: it comes with the next look."""
        found = [
            (job.expires_at, job.seq, job)
            for job in self._due("due")
            if job.state is State.WAITING and job.expires_at is not None and job.expires_at <= now
        ]
        earlier: set[str] = set()
        seqs: list[int] = []
        self.postponed = 0
        for _, seq, job in sorted(found, key=lambda one: one[:2])[:limit]:
            if earlier.isdisjoint(self.record(self.places[seq]).value.parents):
                seqs.append(seq)
            else:
                self.postponed += 1
            earlier.add(job.id)
        return seqs

    def due_retries(self, now: int, limit: int) -> list[int]:
        found = [
            (job.next_retry_at, job.seq)
            for job in self._due("upkeep")
            if job.state is State.DEAD and job.next_retry_at is not None and job.next_retry_at <= now
        ]
        return [seq for _, seq in sorted(found)[:limit]]

    def expired_results(self, now: int, limit: int) -> list[int]:
        found = [
            (job.result_until, job.seq)
            for job in self._due("upkeep")
            if job.result_until is not None and job.result_until <= now
        ]
        return [seq for _, seq in sorted(found)[:limit]]

    def _due(self, family: str) -> Iterator[Job]:
        if family == "due" and not self.looks_at_time:
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
            job = self.standing_at(entry)
            if job is None or job.lease_until is None or job.lease_until >= now or job.lease_id in ignore:
                continue
            if (queues is None or job.queue in queues) and (tasks is None or job.task in tasks):
                found.append((job.lease_until, job.seq))
        return [seq for _, seq in sorted(found)[:limit]]

    def next_due(self, queue: str, tasks: frozenset[str] | None, without: frozenset[str]) -> int | None:
        spelled = None if tasks is None else frozenset(map(word, tasks))
        avoided = frozenset(map(word, without))
        entries = self.view.ready(self.wanted_queues | {word(queue)}, spelled, self.now, 1)
        instants = [
            entry.at
            for entry in entries
            if entry.queue == word(queue) and (spelled is None or entry.task in spelled) and entry.task not in avoided
        ]
        outside = self.entries(f"held/{word(queue)}/-/")
        instants += [entry.at for entry in outside if "o" in entry.flags]
        return min(instants, default=None)

    def entries(self, prefix: str, most: int | None = None) -> list[Entry]:
        return [entry for key in self.view.keys(prefix, most) if (entry := Layout.parse(key)) is not None]

    def stir(self, queue: str, jobs: int) -> None:
        self.opened[queue] += jobs

    # lines

    def _line(self, queue: str, name: str) -> tuple[Seen, LineValue | None]:
        key = self.layout.line(queue, name)
        known = self.lines.get(key)
        if known is None:
            seen = self.view.object(key)
            value = None if seen.value is None else decode(seen.value, LineValue)
            known = self.lines[key] = (seen, value)
            if self.pins_lines:
                self.touched.add(key)
            if value is not None:
                self.places.update(value.places)
                self.follow(value.stamp)
                self._draw_after(value.last)
        return known

    def line(self, queue: str, name: str) -> Line | None:
        value = self._line(queue, name)[1]
        return None if value is None else value.line

    def put_line(self, line: Line) -> None:
        seen, old = self._line(line.queue, line.name)
        places = {seq: self.places[seq] for seq in (line.holder, line.open) if seq is not None}
        stamp, last = (0, 0) if old is None else (old.stamp, old.last)
        self.lines[seen.key] = (seen, LineValue(line, places, stamp, max(last, self._highest_in(line))))

    def _highest_in(self, line: Line) -> int:
        """Of those whom this run has put into the line."""
        jobs = (record.job for record in self.records.values() if record.dirty)
        return max((job.seq for job in jobs if job and job.queue == line.queue and job.line == line.name), default=0)

    def _draw_after(self, last: int) -> None:
        """A number that was drawn before the line was looked at may be lower than one that came in meanwhile."""
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
        """Those who stand in line: by the index, as their records say, and with what this run has changed."""
        self._line(queue, name)  # before its members are listed: whatever changes them changes it
        prefix = f"held/{word(queue)}/{line_word(name)}/"
        most = limit + IN_LINE
        while True:
            keys = self.view.keys(prefix, most)
            entries = [entry for key in keys if (entry := Layout.parse(key)) is not None]
            self.view.want(self.layout.job_by_name(entry.name) for entry in entries)
            listed = [self.record(self.layout.job_by_name(entry.name)) for entry in entries]
            for entry in entries:
                self.standing_at(entry)
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

    def _hold(self, queue: str, key: str) -> tuple[Seen, KeyValue | None]:
        place = self.layout.unique_key(queue, key)
        known = self.holds.get(place)
        if known is None:
            seen = self.view.object(place)
            value = None if seen.value is None else decode(seen.value, KeyValue)
            known = self.holds[place] = (seen, value)
        return known

    def key(self, queue: str, key: str) -> KeyHold | None:
        """A hold lasts as its owner does, so its end frees the key without a write of its own (BE-13)."""
        value = self._hold(queue, key)[1]
        if value is None or value.hold.scope == "window":
            return None if value is None else self._known_owner(value)
        job = self.record(value.owner).job
        if job is None or job.seq != value.hold.seq:
            return None
        return value.hold if value.hold.scope == "retained" or job.state in LIVE else None

    def _known_owner(self, value: KeyValue) -> KeyHold:
        self.places.setdefault(value.hold.seq, value.owner)
        return value.hold

    def put_key(self, hold: KeyHold) -> None:
        seen, _ = self._hold(hold.queue, hold.key)
        self.holds[seen.key] = (seen, KeyValue(hold, self.layout.job(hold.owner)))
        self.links.append((seen.key, self.layout.job(hold.owner)))
        self.touched.add(seen.key)  # whoever else takes it at this moment must not go unnoticed

    def drop_key(self, hold: KeyHold) -> None:
        if hold.scope == "window":
            seen, _ = self._hold(hold.queue, hold.key)
            self.holds[seen.key] = (seen, None)

    def lapsed_keys(self, now: int, limit: int) -> list[KeyHold]:
        """None: a window that is over holds nothing, and the sweep removes what is left of it."""
        return []


def _some_of(due: list[Entry], limit: int, spread: int) -> list[Entry]:
    """Where many claim at once: not all from the head, and of the last few only a share."""
    if len(due) < spread:
        share = max(1, len(due) * limit // spread)
        return random.sample(due, min(share, len(due)))
    back = random.randrange(min(len(due) - limit, spread) + 1) if len(due) > limit else 0
    return [*due[back:], *due[:back]]
