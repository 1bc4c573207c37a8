"""The jobs that a step has loaded, with their changes, which `flush` writes; and generations whose record is deleted.

Each job is one object per step. The dialect reads, locks and writes the rows (`JobRows`): statements differ in how many
columns they write at once, and PostgreSQL keeps open jobs and leases in separate tables. A job is open if it can be
claimed as soon as it is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from millrace.domain.event import Event
from millrace.domain.job import Job, Spec
from millrace.domain.tables import Past
from millrace.store.sql.lines import FirstMembers
from millrace.store.sql.ports import Batch, Effects, Row, Statements
from millrace.store.sql.record import NEWEST, NUMBER, OUTSIDE, REPLY, STATES, job_from_row, place_of, texts


class JobRows(Protocol):
    """Reads and writes the rows of jobs in one dialect.

    An implementation loads jobs through `Jobs.take` and remembers what each row contains, so that it writes only what
    has changed.
    """

    def load(self, jobs: Jobs, seqs: Sequence[int], ids: Sequence[str]) -> None: ...
    def load_ready(self, jobs: Jobs, seqs: Sequence[int]) -> None:
        """Load the jobs with these seqs, which were found in the index of open jobs."""
        ...

    def confirmed(self, jobs: Jobs, seqs: Sequence[int], still: Callable[[Job], bool]) -> list[int]:
        """Return those of `seqs`, found in an index, that this step may change and whose job satisfies `still`."""
        ...

    def write(self, jobs: Jobs, simple: Mapping[int, Job], new: Mapping[int, Job], changed: Mapping[int, Job]) -> None:
        """Write all changes. `simple` and `new` are jobs that have no row yet; those in `simple` are open and were not
        changed after they were added.
        """
        ...

    def delete(self, jobs: Sequence[Job]) -> None: ...


class EventLog(Protocol):
    newest: dict[int, int]  # cursor of the newest event of each loaded job, by seq

    def append_first(self, events: Sequence[Event]) -> None: ...


class Jobs:
    def __init__(
        self, rows: JobRows, events: EventLog, gone: Gone, members: FirstMembers, effects: Effects, batch: Batch
    ) -> None:
        self._rows = rows
        self._events = events
        self._gone = gone
        self._members = members
        self._effects = effects
        self._batch = batch
        self.forget()

    def forget(self) -> None:
        self.loaded: dict[int, Job | None] = {}  # None: there is no such job
        self._ids: dict[str, int | None] = {}
        self._simple: dict[int, Job] = {}  # inserted open and unchanged
        self._new: dict[int, Job] = {}
        self._changed: dict[int, Job] = {}
        self._deleted: list[Job] = []
        self._deleted_priorities: dict[int, int] = {}
        self._reply_of: dict[int, str] = {}
        self.shown: dict[int, list[int]] = {}  # open jobs found by one index read: they are loaded in one statement

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def prefetch_seqs(self, seqs: Iterable[int]) -> None:
        seqs = list(seqs)
        self.load_seqs(seqs)
        self._batch.of_jobs([job for job in map(self.loaded.get, seqs) if job is not None], [])

    def prefetch_ids(self, ids: Iterable[str]) -> None:
        ids = list(ids)
        self.load_ids(ids)
        self._batch.of_jobs(self._found(ids), ids)

    def prefetch_specs(self, specs: Sequence[Spec]) -> None:
        ids = [job_id for spec in specs for job_id in (spec.id, *spec.after)]
        self.load_ids(ids)
        self._batch.of_specs(specs, ids)

    def _found(self, ids: Iterable[str]) -> list[Job]:
        """Return the jobs with these ids, which were loaded before; ids without a job are left out."""
        seqs = [seq for seq in map(self._ids.__getitem__, ids) if seq is not None]
        return [job for job in map(self.loaded.get, seqs) if job is not None]

    def load_seqs(self, seqs: Iterable[int]) -> None:
        loaded = self.loaded
        missing = [seq for seq in seqs if seq not in loaded]
        if missing:
            self._rows.load(self, missing, ())
            for seq in missing:
                loaded.setdefault(seq)

    def load_ids(self, ids: Iterable[str]) -> None:
        known = self._ids
        missing = [job_id for job_id in ids if job_id not in known]
        if missing:
            self._rows.load(self, (), missing)
            for job_id in missing:
                known.setdefault(job_id)
            if self._gone.ahead:
                self._gone.prefetch(missing)

    def take(self, rows: Iterable[Row]) -> Iterator[tuple[Job, Row]]:
        """Add the jobs of these rows to the loaded jobs, and yield (job, row) for each that was not loaded before."""
        loaded = self.loaded
        for row in rows:
            if loaded.get(row[0]) is None:
                job = job_from_row(row)
                self.keep(job, row[NEWEST], row[REPLY])
                yield job, row

    def keep(self, job: Job, newest: int, reply: str | None) -> None:
        seq = job.seq
        self.loaded[seq] = job
        self._ids[job.spec.id] = seq
        self._events.newest[seq] = newest
        if reply is not None:
            self._reply_of[seq] = reply

    def all_unknown(self, ids: Iterable[str]) -> bool:
        ids = list(ids)
        self.load_ids(ids)
        known = self._ids
        return [known[job_id] for job_id in ids].count(None) == len(ids) and not self._gone.has_any(ids)

    def by_id(self, job_id: str) -> Job | None:
        if job_id not in self._ids:
            owners = self._batch.take_owners()
            self.load_ids({job_id, *owners})
            self._batch.add_jobs(self._found(owners))
        seq = self._ids[job_id]
        return None if seq is None else self.loaded[seq]

    def by_seq(self, seq: int) -> Job | None:
        loaded = self.loaded
        if seq not in loaded:
            shown = self.shown.get(seq)
            if shown is None:
                self.load_seqs(self._members.found_with(seq))
            else:
                missing = sorted(seq for seq in shown if seq not in loaded)
                self._rows.load_ready(self, missing)
                for each in missing:
                    loaded.setdefault(each)
        return loaded[seq]

    def priority_of(self, seq: int) -> int:
        """Return the priority of a job that is loaded or that this step has deleted; 0 for any other seq."""
        job = self.loaded.get(seq)
        return self._deleted_priorities.get(seq, 0) if job is None else job.spec.priority

    # ── changing ──────────────────────────────────────────────────────────────────────────────

    def insert(self, job: Job) -> None:
        seq = job.seq
        self.loaded[seq] = self._new[seq] = job
        self._ids[job.spec.id] = seq
        self._events.newest.setdefault(seq, 0)  # an imported job may have no events any more

    def insert_all(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        by_seq = {job.seq: job for job in jobs}
        self.loaded.update(by_seq)
        self._new.update(by_seq)
        self._ids.update(zip([job.spec.id for job in jobs], by_seq, strict=True))
        self._events.append_first(events)

    def insert_open(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        effects = self._effects
        effects.touched = True
        self._events.append_first(events)
        loaded, ids, simple = self.loaded, self._ids, self._simple
        soon, opened = effects.soon, effects.opened
        for job in jobs:
            seq, spec = job.seq, job.spec
            loaded[seq] = simple[seq] = job
            ids[spec.id] = seq
            if job.available_at <= soon:
                opened[spec.queue, spec.task] += 1

    def update(self, job: Job) -> None:
        effects, seq, spec = self._effects, job.seq, job.spec
        effects.touched = True
        if seq in self._simple:
            self._new[seq] = self._simple.pop(seq)
        elif seq not in self._new:
            self._changed[seq] = job
        waits_outside = False
        if (spec.group is not None or job.lane is not None) and (line := job.line) is not None:
            place = place_of(job, line)
            waits_outside = place == OUTSIDE
            self._members.changed(job, line, place)
        if (job.open or waits_outside) and job.available_at <= effects.soon:
            effects.opened[spec.queue, spec.task] += 1
        if job.finished_at is not None:
            effects.ended.append(spec.id)
            if seq in self._reply_of:
                effects.replies.append((self._reply_of[seq], spec.id))

    def delete(self, job: Job) -> None:
        seq = job.seq
        self._effects.touched = True
        self._deleted_priorities[seq] = job.spec.priority
        self.loaded[seq] = None
        self._ids[job.spec.id] = None
        self._changed.pop(seq, None)
        if self._new.pop(seq, None) is None and self._simple.pop(seq, None) is None:
            self._deleted.append(job)

    # ── writing ───────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        """Write the changed jobs, so that queries over an index see the changes."""
        if self._deleted:
            deleted, self._deleted = self._deleted, []
            self._rows.delete(deleted)
        if self._simple or self._new or self._changed:
            simple, new, changed = self._simple, self._new, self._changed
            self._simple, self._new, self._changed = {}, {}, {}
            self._rows.write(self, simple, new, changed)
            self._members.written()

    def reply_for(self, job: Job) -> str | None:
        """Return the reply address to store with a new job if this process waits for the job's end, otherwise None."""
        reply = self._effects.reply_to(job.spec.id)
        if reply is not None:
            self._reply_of[job.seq] = reply
        return reply


class Gone:
    """Generations whose record is deleted. They are kept while their history is kept or a dependent needs them.

    `newest` has the cursors of the newest events of loaded jobs. `alone` means that no other step runs at the same
    time, so a table that was empty stays empty. `ahead` means that past generations of an id are read together with its
    job.
    """

    def __init__(
        self, statements: Statements, newest: Mapping[int, int], effects: Effects, *, alone: bool, ahead: bool = True
    ) -> None:
        self._db = statements
        self._newest_of_jobs = newest
        self._effects = effects
        self._alone = alone
        self.ahead = ahead
        self.forget()

    def forget(self) -> None:
        self._past: dict[str, list[Past]] = {}
        self._known: set[str] = set()
        self._new: dict[int, Past] = {}
        self._dropped: list[int] = []
        self.changed = False
        self._any: bool | None = None if self._alone else True
        self.newest: dict[int, int] = {}  # cursor of the newest event by seq, where the statement returns it

    def prefetch(self, ids: Sequence[str]) -> None:
        if self._any is None:
            self._any = bool(self._db.value("any_past"))
        if not self._any:
            return
        unknown = [job_id for job_id in ids if job_id not in self._known]
        if not unknown:
            return
        self.flush()
        self._known.update(unknown)
        for row in self._db.rows("past", texts(unknown)):
            past = _past(row)
            self._past.setdefault(past.id, []).append(past)
            self.newest[past.seq] = row[6]

    def has_any(self, ids: Iterable[str]) -> bool:
        return self._any is not False and any(self.past(job_id) for job_id in ids)

    def past(self, job_id: str) -> list[Past]:
        if self._any is False:
            return []
        if job_id not in self._known:
            self.prefetch([job_id])
        return self._past.get(job_id, [])

    def add(self, past: Past) -> None:
        self._any = self._effects.touched = self.changed = True
        self._new[past.seq] = past
        if past.id in self._known:
            self._past.setdefault(past.id, []).append(past)
            self.newest[past.seq] = self._newest_of_jobs.get(past.seq, 0)

    def stale(self, before: int, limit: int) -> list[Past]:
        self.flush()
        return [_past(row) for row in self._db.rows("stale_past", before, limit)]

    def after(self, gone_at: int, seq: int, limit: int) -> list[Past]:
        self.flush()
        rows = self._db.rows("past_after", gone_at, seq, limit)
        self.newest.update((row[1], row[6]) for row in rows)
        return [_past(row) for row in rows]

    def drop(self, past: Past) -> None:
        self._effects.touched = self.changed = True
        self._dropped.append(past.seq)
        if past.id in self._past:
            self._past[past.id] = [kept for kept in self._past[past.id] if kept.seq != past.seq]

    def flush(self) -> None:
        self.changed = False
        if self._new:
            rows = [
                (
                    seq,
                    past.id,
                    past.generation,
                    NUMBER[past.state],
                    past.token,
                    past.gone_at,
                    self._newest_of_jobs.get(seq, 0),
                )
                for seq, past in self._new.items()
            ]
            self._new = {}
            self._db.write("put_past", rows)
        if self._dropped:
            dropped, self._dropped = self._dropped, []
            self._db.rows("drop_past", dropped)


def _past(row: Row) -> Past:
    job_id, seq, generation, state, token, gone_at = row[:6]
    return Past(job_id, seq, generation, STATES[state], token, gone_at)
