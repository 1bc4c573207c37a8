"""Job records: loaded in batches, one object per job and transaction, written back when it matters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Job, State
from millrace.store.sqlite.history import History, json_list
from millrace.store.sqlite.io import Rows
from millrace.store.sqlite.record import (
    IN_LINE,
    NUMBER,
    OUTSIDE,
    Settled,
    encode_spec,
    job_from_ready_row,
    job_from_row,
    place_of,
    settled_facts,
)

MOST_AT_HAND = 20_000  # records kept between transactions …
MOST_BYTES = 32 << 20  # … and how much payload with them
SPAN_BLOCK = 10  # a block of seqs is 2^10 …
SPAN_TIME = 12  # … and its instants are kept to 2^12 ms, so that most transactions widen no block

Place = tuple[str, str]
_copy: Callable[[Job], Job] = Job.__copy__  # type: ignore[attr-defined]  # copy.copy would only look it up


class Jobs(History):
    def forget(self) -> None:
        super().forget()
        self._jobs: dict[int, Job | None] = {}
        self._ids: dict[str, int | None] = {}
        self._stored: dict[int, Settled] = {}
        self._fresh: dict[int, Job] = {}  # new, plain, and not looked at since
        self._new: dict[int, Job] = {}
        self._changed: dict[int, Job] = {}
        self._deleted: list[int] = []
        self._hints: dict[int, list[int]] = {}
        self.recent_seqs: list[int] = []  # what was last asked for in one go …
        self.recent_ids: list[str] = []  # … tells which dependents will be asked for next
        self._reply_of: dict[int, str] = {}
        self._weight = 0
        self._span: tuple[int, int, int] = (-1, 0, 0)
        self._placed: dict[int, tuple[int, int | None]] = {}  # of a line's waiting members: events and place, as stored
        self.line_changes: dict[Place, dict[int, Job]] = {}
        self.line_best: dict[Place, tuple[int, int] | None] = {}

    def outdated(self) -> None:
        span = self._span  # others only widen it; it goes when all of its jobs are gone, and seqs are beyond it by then
        super().outdated()
        self._span = span

    watched: Mapping[str, int] = {}  # ids whose end this process waits for …
    reply_to: Callable[[], str | None] = staticmethod(lambda: None)  # … and where to tell it

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def prefetch_seqs(self, seqs: Iterable[int]) -> None:
        jobs = self._jobs
        self.recent_seqs = seqs = list(seqs)
        missing = [seq for seq in seqs if seq not in jobs]
        if missing:
            self._take(self.rows("jobs_by_seq", {"seqs": msgspec.json.encode(missing).decode()}))
            for seq in missing:
                jobs.setdefault(seq)

    def prefetch_ids(self, ids: Iterable[str]) -> None:
        known = self._ids
        self.recent_ids = ids = list(ids)
        missing = [job_id for job_id in ids if job_id not in known]
        if missing:
            self._take(self.rows("jobs_by_id", {"ids": json_list(missing)}))
            for job_id in missing:
                known.setdefault(job_id)
            self.prefetch_past(missing)

    def _take(self, rows: Rows) -> None:
        lined: list[Job] = []
        for row in rows:
            seq = row[0]
            if self._jobs.get(seq) is not None:
                continue
            job = job_from_row(row)
            self._stored[seq] = (row[4], row[9], row[10], row[5], row[18] == 1, row[19], row[22])
            self._keep(job, row[23], row[24], len(row[25]))
            if row[12] is not None:
                self._placed[seq] = row[11], row[14]
                lined.append(job)
        if lined:
            self.prefetch_lines(lined)

    def _keep(self, job: Job, newest: int, reply: str | None, size: int) -> None:
        seq = job.seq
        self._jobs[seq] = job
        self._ids[job.spec.id] = seq
        self._newest[seq] = newest
        self._weight += size
        if reply is not None:
            self._reply_of[seq] = reply

    def prefetch_ready(self, seqs: list[int]) -> None:
        """As `prefetch_seqs`, for jobs that a range of the ready index has shown."""
        self.recent_seqs = seqs
        lined: list[Job] = []
        missing = sorted(seq for seq in seqs if seq not in self._jobs)
        for row in self.rows("ready_jobs", {"seqs": msgspec.json.encode(missing).decode()}):
            job = job_from_ready_row(row)
            self._stored[job.seq] = (row[3], row[7], 0, row[4], False, None, row[11])
            self._keep(job, row[12], row[13], len(row[14]))
            if row[9] is not None:
                self._placed[job.seq] = row[8], row[10]
                lined.append(job)
        for seq in missing:
            self._jobs.setdefault(seq)
        if lined:
            self.prefetch_lines(lined)

    def prefetch_lines(self, jobs: list[Job]) -> None:
        """The lines of these jobs will be asked for next."""

    def all_unknown(self, ids: Iterable[str]) -> bool:
        ids = list(ids)
        self.prefetch_ids(ids)
        known = self._ids
        return not any(known[job_id] is not None for job_id in ids) and self.no_past(ids)

    def by_id(self, job_id: str) -> Job | None:
        if job_id not in self._ids:
            self.prefetch_ids([job_id])
        seq = self._ids[job_id]
        return None if seq is None else self._jobs[seq]

    def by_seq(self, seq: int) -> Job | None:
        if seq not in self._jobs:
            shown = self._hints.get(seq)
            if shown is not None:
                self.prefetch_ready(shown)
            else:
                self.prefetch_seqs((seq,))
        return self._jobs[seq]

    def hand_out(self, job: Job) -> Job:
        return _copy(job)

    # ── changing ──────────────────────────────────────────────────────────────────────────────

    def insert(self, job: Job) -> None:
        seq = job.seq
        self._jobs[seq] = self._new[seq] = job
        self._ids[job.spec.id] = seq
        self._weight += len(job.spec.payload)

    def insert_open(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        self.touched = True
        by_seq = {job.seq: job for job in jobs}
        self._jobs.update(by_seq)
        self._ids.update(zip([job.spec.id for job in jobs], by_seq, strict=True))
        self.append_first(events)
        watched, soon = self.watched, self.soon
        for job in jobs:
            spec = job.spec
            self._weight += len(spec.payload)
            if job.available_at <= soon:
                self.opened[spec.queue] += 1
            if job.expires_at is not None or (watched and spec.id in watched):
                self._new[job.seq] = by_seq.pop(job.seq)
        self._fresh.update(by_seq)

    def update(self, job: Job) -> None:
        seq = job.seq
        self.touched = True
        if seq in self._fresh:
            self._new[seq] = self._fresh.pop(seq)
        elif seq not in self._new:
            self._changed[seq] = job
        spec = job.spec
        if spec.group is not None or job.lane is not None:
            self._update_line(job)
        elif job.open and job.available_at <= self.soon:
            self.opened[spec.queue] += 1
        if job.finished_at is not None:
            self.ended.append(spec.id)
            if seq in self._reply_of:
                self.replies.append((self._reply_of[seq], spec.id))

    def _update_line(self, job: Job) -> None:
        name = job.line
        place = place_of(job, name)
        if (job.open or place == OUTSIDE) and job.available_at <= self.soon:
            self.opened[job.spec.queue] += 1
        if name is None:
            return
        line = job.spec.queue, name
        self.line_changes.setdefault(line, {})[job.seq] = job
        if line in self.line_best:
            best = self.line_best[line]
            mine = -job.spec.priority, job.seq
            if place == IN_LINE:
                self.line_best[line] = mine if best is None else min(best, mine)
            elif best == mine:
                del self.line_best[line]

    def delete(self, job: Job) -> None:
        seq = job.seq
        self.touched = True
        self._jobs[seq] = None
        self._ids[job.spec.id] = None
        self._changed.pop(seq, None)
        if self._new.pop(seq, None) is None and self._fresh.pop(seq, None) is None:
            self._deleted.append(seq)

    # ── writing back ──────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        self.flush_jobs()
        super().flush()

    def flush_jobs(self) -> None:
        """Bring the rows of jobs up to date, so that a query over an index sees them."""
        if self._deleted:
            gone = {"seqs": msgspec.json.encode(self._deleted).decode()}
            self.rows("delete_jobs", gone)
            self.rows("delete_bodies", gone)
            self._deleted = []
        if self._fresh:
            self._write_fresh()
        if self._new:
            self._write_new()
        if self._changed:
            self._write_changed()
        self.line_changes.clear()

    def _write_fresh(self) -> None:
        rows: list[Any] = []
        bodies: list[Any] = []
        newest, stored, combo_ids, encode = self._newest, self._stored, self._combo_ids, encode_spec
        facts: Settled = (-1, 0, 0, None, False, None, None)
        for seq, job in self._fresh.items():
            spec = job.spec
            name = spec.queue, spec.task, spec.priority
            combo, queue = combo_ids.get(name) or self.combo_id(name)
            due = job.available_at
            rows += (seq, spec.id, combo, queue, job.generation, job.enqueued_at, due, newest[seq], True)
            bodies += (seq, encode(spec))
            if due != facts[0]:
                facts = (due, 0, 0, None, False, None, None)
            stored[seq] = facts
        self.write_rows("insert_plain", rows)
        self.write_rows("insert_body", bodies)
        self._widen_spans(self._fresh)
        self._fresh = {}

    def _write_new(self) -> None:
        rows: list[Any] = []
        bodies: list[Any] = []
        for seq, job in self._new.items():
            spec = job.spec
            combo, queue = self.combo_id((spec.queue, spec.task, spec.priority))
            bodies += (seq, encode_spec(spec))
            reply = self.reply_to() if spec.id in self.watched else None
            if reply is not None:
                self._reply_of[seq] = reply
            rows += (seq, spec.id, combo, queue, job.generation, job.enqueued_at, job.available_at)
            rows += (self._newest[seq], job.open, spec.group, spec.key, reply)
            facts = settled_facts(job)
            if job.line is None and job.events == 1 and facts == (job.available_at, 0, 0, None, False, None, None):
                self._stored[seq] = facts  # a plain job but for its key or its reply: that was all
            else:
                self._changed[seq] = job
        self.write_rows("insert_marked", rows)
        self.write_rows("insert_body", bodies)
        self._widen_spans(self._new)
        self._new = {}

    def _widen_spans(self, new: dict[int, Job]) -> None:
        """Say in which blocks of seqs the new jobs are, and when they were enqueued."""
        instants = {job.enqueued_at >> SPAN_TIME for job in new.values()}
        low, high = min(instants) << SPAN_TIME, (max(instants) + 1) << SPAN_TIME
        for block in range(min(new) >> SPAN_BLOCK, (max(new) >> SPAN_BLOCK) + 1):
            known, known_low, known_high = self._span
            if block != known or low < known_low or high > known_high:
                self.rows("widen_span", {"block": block, "low": low, "high": high})
                if block == known:
                    low, high = min(low, known_low), max(high, known_high)
                self._span = block, low, high

    def _write_changed(self) -> None:
        running: list[Any] = []
        ended: list[Any] = []
        elected: list[Any] = []
        rest: list[Any] = []
        newest, stored, placed = self._newest, self._stored, self._placed
        for seq, job in self._changed.items():
            facts = settled_facts(job)
            state = job.state
            if state is not State.WAITING and stored.get(seq) == facts:
                if state is State.RUNNING:
                    running += (
                        job.attempt,
                        job.events,
                        newest[seq],
                        job.started_at,
                        job.worker,
                        job.lease_id,
                        job.lease_until,
                        seq,
                    )
                else:
                    ended += (
                        NUMBER[state],
                        job.attempt,
                        job.events,
                        newest[seq],
                        job.started_at,
                        job.finished_at,
                        job.result_until,
                        job.result,
                        seq,
                    )
                continue
            line = job.line
            if line is not None:
                place = job.events, place_of(job, line)
                if placed.get(seq) == place and stored.get(seq) == facts:  # no event, no other place: only `open`
                    elected += (job.open, seq)
                    continue
                placed[seq] = place
            stored[seq] = facts
            rest += self._all_facts(job, facts[6])
        if running:
            self.write_rows("update_running", running)
        if ended:
            self.write_rows("update_ended", ended)
        if elected:
            self.write_rows("update_open", elected)
        if rest:
            self.write_rows("update_all", rest)
        self._changed = {}

    def _all_facts(self, job: Job, extra: bytes | None) -> tuple[Any, ...]:
        line = job.line
        return (
            NUMBER[job.state],
            job.open,
            place_of(job, line),
            job.available_at,
            job.attempt,
            job.failures,
            job.blocked,
            job.events,
            self._newest[job.seq],
            job.started_at,
            job.finished_at,
            job.worker,
            job.lease_id,
            job.lease_until,
            job.expires_at,
            job.archived,
            job.next_retry_at,
            job.result_until,
            job.result,
            extra,
            line,
            None if line is None else -job.spec.priority,
            job.seq,
        )

    def ease(self) -> None:
        """After a commit: let go of records when there are many of them."""
        self._hints.clear()
        if len(self._jobs) > MOST_AT_HAND or self._weight > MOST_BYTES:
            self.forget()
