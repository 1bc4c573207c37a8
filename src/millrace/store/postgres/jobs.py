"""Job records: locked and loaded in batches, one object per job and step, written back when it matters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from millrace.domain.event import Event
from millrace.domain.job import FINISHED, Job, State
from millrace.store.postgres.history import History, texts
from millrace.store.postgres.record import NUMBER, OUTSIDE, encode_spec, extra_of, is_plain, job_from_row, place_of
from millrace.store.postgres.unit import Again, Held, Row

_NOWAIT, _WAIT, _SKIP = 0, 1, 2
_copy: Callable[[Job], Job] = Job.__copy__  # type: ignore[attr-defined]  # copy.copy would only look it up
_Lease = tuple[str, bool]  # its id, and whether the job is to be cancelled


class Jobs(History):
    def start(self) -> None:
        super().start()
        self._jobs: dict[int, Job | None] = {}
        self._ids: dict[str, int | None] = {}
        self._new: dict[int, Job] = {}
        self._changed: dict[int, Job] = {}
        self._deleted: list[int] = []
        self._ready: dict[int, tuple[int, int]] = {}  # as stored: (combo, available_at)
        self._leases: dict[int, _Lease] = {}
        self._upkeep: dict[int, tuple[int | None, int | None]] = {}  # as stored: (finished_at, result_until)
        self._reply_of: dict[int, str] = {}
        self._priorities: dict[int, int] = {}  # of jobs that are deleted, whose last event is still to be written
        self.recent_seqs: list[int] = []
        self.recent_ids: list[str] = []

    watched: Mapping[str, int] = {}  # ids whose end this process waits for …
    reply_to: str | None = None  # … and where to tell it

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def take_planned(self) -> None:
        super().take_planned()
        if self.plan.seqs or self.plan.ids:
            self._load(sorted(self.plan.seqs), sorted(self.plan.ids), _WAIT)

    def prefetch_seqs(self, seqs: Iterable[int]) -> None:
        self.recent_seqs = seqs = list(seqs)
        missing = [seq for seq in seqs if seq not in self._jobs]
        if missing:
            self._load(missing, [], _NOWAIT)
            for seq in missing:
                self._jobs.setdefault(seq)

    def prefetch_ids(self, ids: Iterable[str]) -> None:
        self.recent_ids = ids = list(ids)
        missing = [job_id for job_id in ids if job_id not in self._ids]
        if missing:
            self._load([], texts(missing), _NOWAIT)
            for job_id in missing:
                self._ids.setdefault(job_id)
            if self.writes:
                self.prefetch_past(missing)

    def free_jobs(self, seqs: Sequence[int]) -> list[int]:
        """Of these, those that nobody else holds: taken and loaded. Others are left for somebody else."""
        missing = [seq for seq in seqs if seq not in self._jobs]
        if missing:
            self._load(missing, [], _SKIP)
        return [seq for seq in seqs if self._jobs.get(seq) is not None]

    def _load(self, seqs: Sequence[int], ids: Sequence[str], mode: int) -> None:
        if not self.writes:
            rows = self.rows("look_at_seqs", list(seqs)) if seqs else self.rows("look_at_names", list(ids))
        else:
            try:
                rows = self.rows("take_jobs", list(seqs), list(ids), mode)
            except Held:
                self.plan.seqs.update(seq for seq, job in self._jobs.items() if job is not None)
                self.plan.seqs.update(seqs)
                self.plan.ids.update(ids)
                for name, shared in self.held.items():
                    self.plan.add_lock(name, shared)
                raise Again from None
        for row in rows:
            self._take(row)

    def _take(self, row: Row) -> Job:
        seq = row[0]
        known = self._jobs.get(seq)
        if known is not None:
            return known
        job = job_from_row(row)
        self._jobs[seq] = job
        self._ids[job.spec.id] = seq
        self._newest[seq] = row[23]
        if row[24] is not None:
            self._reply_of[seq] = row[24]
        if job.open:
            self._ready[seq] = row[28], job.available_at
        if job.lease_id is not None:
            self._leases[seq] = job.lease_id, job.cancel_requested
        self._upkeep[seq] = job.finished_at, job.result_until
        return job

    def all_unknown(self, ids: Iterable[str]) -> bool:
        ids = list(ids)
        self.prefetch_ids(ids)
        return not any(self._ids[job_id] is not None or self.past(job_id) for job_id in ids)

    def by_id(self, job_id: str) -> Job | None:
        if job_id not in self._ids:
            self.prefetch_ids([job_id])
        seq = self._ids[job_id]
        return None if seq is None else self._jobs[seq]

    def by_seq(self, seq: int) -> Job | None:
        if seq not in self._jobs:
            recent = self.recent_seqs
            self.prefetch_seqs((seq,))
            self.recent_seqs = recent
        return self._jobs[seq]

    def hand_out(self, job: Job) -> Job:
        return _copy(job)

    def combo_id_of(self, event: Event) -> int:
        job = self._jobs.get(event.seq)
        priority = self._priorities.get(event.seq, 0) if job is None else job.spec.priority
        return self.combo_id((event.queue, event.task, priority))[0]

    # ── changing ──────────────────────────────────────────────────────────────────────────────

    def insert(self, job: Job) -> None:
        self._jobs[job.seq] = self._new[job.seq] = job
        self._ids[job.spec.id] = job.seq

    def insert_open(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        for job, event in zip(jobs, events, strict=True):
            self.insert(job)
            self.append(event)
            self._note_opening(job)

    def update(self, job: Job) -> None:
        if job.seq not in self._new:
            self._changed[job.seq] = job
        self._note_opening(job)
        if job.finished_at is not None:
            self.ended.append(job.spec.id)
            if job.seq in self._reply_of:
                self.replies.append((self._reply_of[job.seq], job.spec.id))

    def _note_opening(self, job: Job) -> None:
        if job.available_at <= self.soon and (job.open or place_of(job, job.line) == OUTSIDE):
            self.opened[job.spec.queue] += 1

    def delete(self, job: Job) -> None:
        seq = job.seq
        self._priorities[seq] = job.spec.priority
        self._jobs[seq] = None
        self._ids[job.spec.id] = None
        self._changed.pop(seq, None)
        if self._new.pop(seq, None) is None:
            self._deleted.append(seq)

    # ── writing back ──────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        self.flush_jobs()
        super().flush()

    def flush_jobs(self) -> None:
        """Bring the rows of jobs up to date, so that a query over an index sees them."""
        if not (self._deleted or self._new or self._changed):
            return
        if self._deleted:
            places = [(*self._ready.pop(seq), seq) for seq in self._deleted if seq in self._ready]
            self._close(places)
            self.rows("delete_jobs", self._deleted)
            self._deleted = []
        if self._new:
            self._insert_jobs()
        if self._changed:
            rows = [self._facts(job) for job in self._changed.values()]
            self.rows("update_jobs", *(list(column) for column in zip(*rows, strict=True)))
        touched = [*self._new.values(), *self._changed.values()]
        self._new, self._changed = {}, {}
        self._move(touched)
        self._write_leases(touched)
        self._write_agenda(touched)

    def _insert_jobs(self) -> None:
        rows: list[tuple[Any, ...]] = []
        for seq, job in self._new.items():
            spec = job.spec
            reply = self.reply_to if spec.id in self.watched else None
            if reply is not None:
                self._reply_of[seq] = reply
            combo, queue = self.combo_id((spec.queue, spec.task, spec.priority))
            fixed = (spec.id, combo, queue, job.generation, job.enqueued_at, spec.group, spec.key, reply)
            kept = (spec.lease, spec.keep_result, is_plain(spec, job.line), encode_spec(spec))
            rows.append((*self._facts(job), *fixed, *kept))
        self.rows("insert_jobs", *(list(column) for column in zip(*rows, strict=True)))

    def _facts(self, job: Job) -> tuple[Any, ...]:
        line = job.line
        waits = job.state is State.WAITING
        return (
            job.seq,
            0 if job.state is State.RUNNING else NUMBER[job.state],
            place_of(job, line),
            job.available_at,
            job.attempt,
            job.failures,
            job.blocked,
            job.events,
            self._newest[job.seq],
            job.started_at,
            job.finished_at,
            job.expires_at,
            job.expires_at if waits else None,
            job.available_at if waits and job.failures and not job.blocked else None,
            job.finished_at if job.state is State.DEAD else None,
            job.archived,
            job.next_retry_at,
            job.result_until,
            job.result,
            extra_of(job),
            line,
            None if line is None else -job.spec.priority,
        )

    def _close(self, places: Sequence[tuple[int, int, int]]) -> None:
        if places:
            self.rows("close_jobs", *(list(column) for column in zip(*places, strict=True)))

    def _move(self, jobs: Iterable[Job]) -> None:
        """In and out of `ready`."""
        closed: list[tuple[int, int, int]] = []
        opened: list[tuple[int, int, int, bool]] = []
        for job in jobs:
            spec, seq = job.spec, job.seq
            is_open = job.open and job.state is State.WAITING
            combo = self.combo_id((spec.queue, spec.task, spec.priority))[0] if is_open else 0
            wanted = (combo, job.available_at) if is_open else None
            stored = self._ready.get(seq)
            if wanted == stored:
                continue
            if stored is not None:
                closed.append((*stored, seq))
                del self._ready[seq]
            if wanted is not None:
                opened.append((*wanted, seq, job.line is not None or job.expires_at is not None))
                self._ready[seq] = wanted
        self._close(closed)
        if opened:
            self.rows("open_jobs", *(list(column) for column in zip(*opened, strict=True)))

    def _write_leases(self, jobs: Iterable[Job]) -> None:
        ended: list[int] = []
        begun: list[tuple[Any, ...]] = []
        asked: list[tuple[int, bool]] = []
        for job in jobs:
            seq, stored = job.seq, self._leases.get(job.seq)
            if job.state is not State.RUNNING or job.lease_id is None:
                if stored is not None:
                    ended.append(seq)
                    del self._leases[seq]
                continue
            wanted = job.lease_id, job.cancel_requested
            if stored is None or stored[0] != job.lease_id:
                combo = self.combo_id((job.spec.queue, job.spec.task, job.spec.priority))[0]
                begun.append(
                    (
                        seq,
                        job.lease_id,
                        job.worker,
                        job.lease_until,
                        job.started_at,
                        job.attempt,
                        job.events,
                        self._newest[seq],
                        job.spec.lease,
                        combo,
                        job.cancel_requested,
                        job.progress,
                    )
                )
            elif stored != wanted:
                asked.append((seq, job.cancel_requested))
            self._leases[seq] = wanted
        if ended:
            self.rows("end_leases", ended)
        if begun:
            self.rows("begin_leases", *(list(column) for column in zip(*begun, strict=True)))
        if asked:
            self.rows("ask_to_cancel", *(list(column) for column in zip(*asked, strict=True)))

    def _write_agenda(self, jobs: Iterable[Job]) -> None:
        due: dict[tuple[int, int, int], list[int]] = {}
        for job in jobs:
            finished_at, result_until = self._upkeep.get(job.seq, (None, None))
            if job.state in FINISHED and job.state is not State.DEAD and job.finished_at != finished_at:
                assert job.finished_at is not None
                due.setdefault((1, self.queue_id(job.spec.queue) or 0, job.finished_at), []).append(job.seq)
            if job.result_until is not None and job.result_until != result_until:
                due.setdefault((2, 0, job.result_until), []).append(job.seq)
            self._upkeep[job.seq] = job.finished_at, job.result_until
        for (kind, queue, at), seqs in due.items():
            self.rows("put_agenda", kind, queue, at, seqs)
