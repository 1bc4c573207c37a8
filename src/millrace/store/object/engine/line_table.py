"""The ledger's groups and lanes, built from objects that were read.

Every change of a member writes the line. So a line that was read and is written names its first members reliably: its
head has them in order. Members beyond the head are found by listing the index. The line is read before that, so the
swap of the line detects a change that came in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from millrace.domain.job import Job, Spec, State
from millrace.domain.rules.lanes import possible_lines
from millrace.domain.tables import Line, QueueRow
from millrace.store.object.engine.job_table import JobTable, Record, TableOptions
from millrace.store.object.engine.numbers import Numbers
from millrace.store.object.engine.objects import SeenObject
from millrace.store.object.engine.values import Head, LineValue, Member, value_of
from millrace.store.object.engine.view import Need, View
from millrace.store.object.keys import IndexEntry, Layout, line_word, word

IN_LINE = 16  # members of a group or lane that are listed beyond those needed, since some keys may be stale
LONGEST_HEAD = 8  # members; every write of the line contains them


class StoredLine(msgspec.Struct, frozen=True):
    """What a line said when it was read, before this evaluation changed it."""

    waiting: int = 0
    holder: int | None = None
    open: int | None = None


class LineTable(JobTable):
    """The part of the ledger's tables that has groups and lanes."""

    def __init__(self, view: View, now: int, numbers: Numbers, options: TableOptions) -> None:
        super().__init__(view, now, numbers, options)
        self.lines: dict[str, tuple[SeenObject, LineValue | None]] = {}
        # Objects that are written even if unchanged, so that concurrent changes are detected.
        self.touched: set[str] = set()
        self.stale: set[str] = set()  # stale index keys
        self._stored: dict[str, StoredLine] = {}  # by the key of the line
        self._heads: dict[str, Head] = {}  # the stored or listed first members, by the key of the line
        self._best: dict[str, Job] = {}  # the first member when it was last looked up, by the key of the line
        # The members that this evaluation has changed, by the key of the line: all, and those since that look-up.
        self._changed: defaultdict[str, dict[str, Record]] = defaultdict(dict)
        self._recent: defaultdict[str, dict[str, Record]] = defaultdict(dict)
        self._highest: dict[str, int] = {}  # the highest seq that this evaluation has added, by the key of the line
        self._put: set[str] = set()  # the keys of lines of which this evaluation has changed a member
        self._batch: Sequence[int] = ()
        self._batch_lines: set[str] = set()

    # what a call works on, so that it is read together

    def prefetch_seqs(self, seqs: Iterable[int]) -> None:
        self._batch = [*seqs]
        super().prefetch_seqs(self._batch)

    def prefetch_specs(self, specs: Sequence[Spec]) -> None:
        queues = dict.fromkeys(spec.queue for spec in specs)
        self.view.want([*map(self.layout.queue, queues), *self.keys_of_specs(specs)])
        self._batch_lines = {
            self.layout.line(queue, name)
            for queue in queues
            for name in possible_lines((spec for spec in specs if spec.queue == queue), self.queue(queue))
        }
        self.view.want(self._batch_lines)

    def keys_of_specs(self, specs: Sequence[Spec]) -> list[str]:
        """Return the keys of the objects that an enqueue of these specs reads, besides queues and lines."""
        return [self.layout.job(job_id) for spec in specs for job_id in (spec.id, *spec.after)]

    def batch(self) -> list[Job]:
        """Return the jobs that the call works on, as far as they have been read."""
        keys = [self.keys_by_seq[seq] for seq in self._batch if seq in self.keys_by_seq]
        return [job for key in keys if key in self.view.seen and (job := self.record(key).job) is not None]

    def queue(self, name: str) -> QueueRow:
        raise NotImplementedError

    def by_seq(self, seq: int) -> Job | None:
        """Return the job with this seq, or None. Unread members that the lines of the call refer to are read
        together.
        """
        key = self.keys_by_seq.get(seq)
        if key is not None and key not in self.view.seen:
            read = [self._read_line(line) for line in self._batch_lines if line in self.view.seen]
            named = [value.places.values() for _, value in (*read, *self.lines.values()) if value is not None]
            self.view.want([key, *(place for places in named for place in places)])
        return super().by_seq(seq)

    # lines

    def _line(self, queue: str, name: str) -> tuple[SeenObject, LineValue | None]:
        key = self.layout.line(queue, name)
        if key not in self.lines:
            self._want_lines(key)
        return self._read_line(key)

    def _want_lines(self, key: str) -> None:
        """Read the lines of all jobs of the call, if this line has not been read."""
        if key not in self.view.seen:
            jobs = [(job.queue, line) for job in self.batch() if (line := job.line) is not None]
            self.view.want([key, *self._batch_lines, *(self.layout.line(*place) for place in jobs)])

    def _read_line(self, key: str) -> tuple[SeenObject, LineValue | None]:
        known = self.lines.get(key)
        if known is not None:
            return known
        seen = self.view.object(key)
        value = value_of(seen, LineValue)
        known = self.lines[key] = (seen, value)
        self._stored[key] = StoredLine()
        self._heads[key] = Head(whole=True) if value is None else value.head
        if self.options.pins_lines:
            self.touched.add(key)
        if value is not None:
            self._stored[key] = StoredLine(value.line.waiting, value.line.holder, value.line.open)
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
        self.lines[seen.key] = (seen, LineValue(line, places, stamp, max(last, self._highest.get(seen.key, 0))))
        self._put.add(seen.key)

    def drop_line(self, line: Line) -> None:
        seen, _ = self._line(line.queue, line.name)
        self.lines[seen.key] = (seen, None)

    def _draw_after(self, last: int) -> None:
        """Raise Need, so that new seqs are drawn, if the drawn seqs are not higher than `last`.

        `last` is the highest seq in the line. Another process may have added it after the seqs were drawn.
        """
        self.numbers.seqs.seen(last)
        if self.view.drawn and self.view.drawn[0] <= last:
            self.view.drawn = []
            raise Need

    # members

    def touch(self, record: Record) -> None:
        super().touch(record)
        job = record.job
        name = None if job is None else job.line
        if job is not None and name is not None:
            key = self.layout.line(job.queue, name)
            self._changed[key][record.seen.key] = record
            self._recent[key][record.seen.key] = record
            self._highest[key] = max(self._highest.get(key, 0), job.seq)

    def best_in_line(self, queue: str, name: str) -> int | None:
        self._line(queue, name)
        key = self.layout.line(queue, name)
        recent = self._recent.pop(key, {})
        best = self._best.pop(key, None)
        if best is not None and _stands(best, queue, name):
            jobs = [best, *_standing(recent.values(), queue, name)]
        else:
            jobs = self._first_members(queue, name)
        if not jobs:
            return None
        self._best[key] = min(jobs, key=_order)
        return self._best[key].seq

    def members(self, queue: str, name: str, limit: int) -> list[int]:
        return [job.seq for job in self._members(queue, name, limit)]

    def _members(self, queue: str, name: str, limit: int) -> list[Job]:
        """Return the first `limit` waiting members of the line. Changes of this evaluation are included."""
        found, stored, _ = self._known_members(queue, name)
        if stored.waiting:
            found += self._listed(queue, name, limit)
        return sorted({job.seq: job for job in found}.values(), key=_order)[:limit]

    def _first_members(self, queue: str, name: str) -> list[Job]:
        """Return waiting members of the line that include the first one. If possible, find it without a listing."""
        found, stored, is_open = self._known_members(queue, name)
        if stored.waiting and not (is_open and stored.holder is None):
            found += self._first_unopened(queue, name)
        return found

    def _known_members(self, queue: str, name: str) -> tuple[list[Job], StoredLine, bool]:
        """Return the waiting members that this evaluation has changed or that were open, the line as it was stored, and
        whether its open member still waits.
        """
        self._line(queue, name)
        key = self.layout.line(queue, name)
        stored = self._stored[key]
        found = _standing(self._changed[key].values(), queue, name)
        opened = None if stored.open is None else self.by_seq(stored.open)
        if opened is None or not _stands(opened, queue, name):
            return found, stored, False
        return [*found, opened], stored, True

    def _first_unopened(self, queue: str, name: str) -> list[Job]:
        """Return the first member of the stored line that is not open; an empty list if there is none.

        Members of the head that have left the line are removed from it.
        """
        key = self.layout.line(queue, name)
        while self._heads[key].members:
            head = self._heads[key]
            first = head.members[0]
            job = self.record(first.key).job
            if job is not None and job.seq == first.seq and _stands(job, queue, name):
                self.keys_by_seq[job.seq] = first.key
                return [job]
            self._heads[key] = Head(head.members[1:], head.whole)
        return [] if self._heads[key].whole else self._listed(queue, name, 1)

    def _listed(self, queue: str, name: str, limit: int) -> list[Job]:
        """Return the first `limit` waiting members of the line that the index lists. They are checked against their
        records, and read only until there are enough: their keys are in the order of the line.
        """
        most = limit + IN_LINE
        while True:
            keys = self.view.keys(f"held/{word(queue)}/{line_word(name)}/", most)
            entries = Layout.entries(keys)
            standing: list[Job] = []
            start = 0
            while start < len(entries) and len(standing) < limit:
                some = entries[start : start + max(limit - len(standing), start)]
                self.view.want(self.layout.job_by_name(entry.name) for entry in some)
                jobs = [job for entry in some if (job := self.job_at(entry)) is not None]
                standing += [job for job in jobs if _stands(job, queue, name)]
                start += len(some)
            if len(standing) >= limit or len(keys) < most:
                found = [entry for entry in entries if entry.key not in self.stale]
                members = [Member(entry.priority, entry.seq, self.layout.job_by_name(entry.name)) for entry in found]
                self._heads[self.layout.line(queue, name)] = _head(members, whole=len(keys) < most)
                return standing
            most *= 4

    def stored_lines(self) -> dict[str, tuple[SeenObject, LineValue | None]]:
        """Return the lines as they are to be stored, by key: each as it was read, and its new value."""
        for key in self._put:
            value = self.lines[key][1]
            if value is not None:
                value.head = self._head_after(key, value.line)
                self.touched.add(key)  # so that a concurrent change of another member is detected
        return self.lines

    def _head_after(self, key: str, line: Line) -> Head:
        """Return the head of a line with the changes of this evaluation."""
        head, changed = self._heads[key], self._changed[key]
        members = [member for member in head.members if member.key not in changed]
        for place, record in changed.items():
            job = record.job
            if job is not None and not job.open and _stands(job, line.queue, line.name):
                member = Member(job.priority, job.seq, place)
                if head.whole or (head.members and member.order < head.members[-1].order):
                    members.append(member)
        return _head(sorted(members, key=lambda member: member.order), whole=head.whole)

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


def _head(members: Sequence[Member], *, whole: bool) -> Head:
    return Head(tuple(members[:LONGEST_HEAD]), whole and len(members) <= LONGEST_HEAD)


def _order(job: Job) -> tuple[int, int]:
    return -job.priority, job.seq


def _stands(job: Job, queue: str, name: str) -> bool:
    return job.state is State.WAITING and job.in_line and job.queue == queue and job.line == name


def _standing(records: Iterable[Record], queue: str, name: str) -> list[Job]:
    return [job for record in records if (job := record.job) is not None and _stands(job, queue, name)]
