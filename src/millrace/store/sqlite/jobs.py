"""The rows of jobs in a SQLite file: how they are read, and which columns a change writes.

A claim and a completion each write a few columns (`update_running`, `update_ended`). A change of the column `open`
alone writes only this column (`update_open`). Every other change writes all columns. A job is open if it can be claimed
as soon as it is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from millrace.domain.job import Job, Spec, State
from millrace.store.sql.jobs import Jobs
from millrace.store.sql.lines import Lines
from millrace.store.sql.ports import Effects, Row
from millrace.store.sql.record import (
    COLUMNS,
    EVENTS,
    EXTRA,
    LINE,
    NUMBER,
    PLACE,
    SPEC,
    encode_spec,
    open_job_from_row,
    pack,
    place_of,
)
from millrace.store.sqlite.connection import SqliteStatements
from millrace.store.sqlite.history import Events
from millrace.store.sqlite.registry import Registry

SPAN_BLOCK = 10  # a block of seqs is 2^10 …
SPAN_TIME = 12  # … and its instants are rounded to 2^12 ms, so that most transactions widen no block

LONG_SPEC = 512  # bytes; each claim and settle of the job would write a longer spec again

# Columns that neither a claim nor a completion changes; while they are unchanged, a narrow update is enough.
_SETTLED = ("available_at", "failures", "blocked", "expires_at", "archived", "next_retry_at")
_settled_columns = attrgetter(*_SETTLED)
_settled_in_row = itemgetter(*map(COLUMNS.index, _SETTLED), EXTRA)
Settled = tuple[Any, ...]


class SqliteRows:
    def __init__(
        self, statements: SqliteStatements, effects: Effects, registry: Registry, events: Events, lines: Lines
    ) -> None:
        self._db = statements
        self._effects = effects
        self._registry = registry
        self._newest = events.newest
        self._lines = lines
        self._span: tuple[int, int, int] = (-1, 0, 0)
        self.forget()

    def forget(self) -> None:
        self._stored: dict[int, Settled] = {}
        self._placed: dict[int, tuple[int, int | None]] = {}  # stored (events, place) of waiting members of lines
        self._span = (-1, 0, 0)
        self.weight = 0  # bytes of the loaded specs

    def outdated(self) -> None:
        """Drop all cached data that another connection may have changed."""
        span = self._span  # others only widen it; it is deleted with its last job, and new seqs are beyond it by then
        self.forget()
        self._span = span

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def load(self, jobs: Jobs, seqs: Sequence[int], ids: Sequence[str]) -> None:
        if len(ids) == 1 and ids[0].isascii():
            seqs, ids = self._db.seqs("seq_of", ids[0]), ()
        if seqs:
            self._take(jobs, self._db.rows("jobs_by_seq", list(seqs)))
        if ids:
            self._take(jobs, self._db.rows("jobs_by_id", list(ids)))

    def _take(self, jobs: Jobs, rows: Sequence[Row]) -> None:
        lined: list[Job] = []
        for job, row in jobs.take(rows):
            self._stored[job.seq] = _settled_in_row(row)
            self.weight += len(row[SPEC])
            if row[LINE] is not None:
                self._placed[job.seq] = row[EVENTS], row[PLACE]
                lined.append(job)
        if lined:
            self._lines.prefetch(lined)

    def load_ready(self, jobs: Jobs, seqs: Sequence[int]) -> None:
        lined: list[Job] = []
        for row in self._db.rows("ready_jobs", list(seqs)):
            job = open_job_from_row(row)
            self._stored[job.seq] = (row[3], row[7], 0, row[4], False, None, row[11])
            jobs.keep(job, row[12], row[13])
            self.weight += len(row[14])
            if row[9] is not None:
                self._placed[job.seq] = row[8], row[10]
                lined.append(job)
        if lined:
            self._lines.prefetch(lined)

    def confirmed(self, jobs: Jobs, seqs: Sequence[int], still: Callable[[Job], bool]) -> list[int]:
        """Return all `seqs`. No check is needed: no other transaction writes at the same time, so an index is never
        stale.
        """
        return list(seqs)

    # ── writing ───────────────────────────────────────────────────────────────────────────────

    def delete(self, jobs: Sequence[Job]) -> None:
        seqs = [job.seq for job in jobs]
        self._db.rows("delete_jobs", seqs)
        self._db.rows("delete_bodies", seqs)
        dependents = [(parent, job.seq) for job in jobs for parent in dict.fromkeys(job.spec.after)]
        if dependents:
            self._db.rows_of("drop_dependents", dependents)

    def write(self, jobs: Jobs, simple: Mapping[int, Job], new: Mapping[int, Job], changed: Mapping[int, Job]) -> None:
        watched = self._effects.watched
        marked = [
            seq for seq, job in simple.items() if job.expires_at is not None or (watched and job.spec.id in watched)
        ]
        if marked:
            new = {**new, **{seq: simple[seq] for seq in marked}}
            simple = {seq: job for seq, job in simple.items() if seq not in new}
        if simple:
            self._insert_simple(simple)
        if new:
            changed = {**changed, **self._insert_marked(jobs, new)}
        if changed:
            self._update(changed)

    def _insert_simple(self, simple: Mapping[int, Job]) -> None:
        rows: list[Any] = []
        bodies: list[Any] = []
        newest, stored, combo_id = self._newest, self._stored, self._registry.combo_id
        last_due = self._registry.last_due
        facts: Settled = (-1, 0, 0, None, False, None, None)
        for seq, job in simple.items():
            spec = job.spec
            combo, queue = combo_id((spec.queue, spec.task, spec.priority))
            due = job.available_at
            body = self._spec_column(seq, spec, bodies)
            is_open = 1
            if last_due <= due == job.enqueued_at:
                is_open, last_due = 2, due
            rows += (seq, spec.id, combo, queue, job.generation, job.enqueued_at, due, newest[seq], is_open, body)
            if due != facts[0]:
                facts = (due, 0, 0, None, False, None, None)
            stored[seq] = facts
        self._registry.last_due = last_due
        self._db.write_flat("insert_simple", rows)
        if bodies:
            self._db.write_flat("insert_body", bodies)
        self._widen_spans(simple)

    def _spec_column(self, seq: int, spec: Spec, bodies: list[Any]) -> bytearray | None:
        """Return the value of the column `spec`. Add a spec that is too long for the column to `bodies`."""
        body = bytearray(encode_spec(spec))  # sqlite3 binds it faster than bytes
        self.weight += len(body)
        if len(body) <= LONG_SPEC:
            return body
        bodies += (seq, body)
        return None

    def _insert_marked(self, jobs: Jobs, new: Mapping[int, Job]) -> dict[int, Job]:
        """Insert the rows of new jobs. Return the jobs whose rows are incomplete and must be updated next.

        These are the jobs that have more events than their first. While a new job has only this one, no rule has set
        any of the columns that the statement leaves out.
        """
        rows: list[tuple[Any, ...]] = []
        bodies: list[Any] = []
        dependents: list[tuple[str, int]] = []
        unsaid: dict[int, Job] = {}
        newest, stored, placed, combo_id = self._newest, self._stored, self._placed, self._registry.combo_id
        for seq, job in new.items():
            spec, line = job.spec, job.line
            if spec.after:
                dependents += [(parent, seq) for parent in spec.after]
            combo, queue = combo_id((spec.queue, spec.task, spec.priority))
            body = self._spec_column(seq, spec, bodies)
            due, blocked, expires_at = job.available_at, job.blocked, job.expires_at
            place, rank = (None, None) if line is None else (place_of(job, line), -spec.priority)
            rows.append(
                (
                    seq,
                    spec.id,
                    combo,
                    queue,
                    job.generation,
                    job.enqueued_at,
                    due,
                    newest[seq],
                    +job.open,
                    blocked,
                    place,
                    line,
                    rank,
                    spec.group,
                    spec.key,
                    jobs.reply_for(job),
                    expires_at,
                    body,
                )
            )
            if job.events > 1:
                unsaid[seq] = job
                continue
            stored[seq] = (due, 0, blocked, expires_at, False, None, None)
            if line is not None:
                placed[seq] = 1, place
        self._db.write("insert_marked", rows)
        if bodies:
            self._db.write_flat("insert_body", bodies)
        if dependents:
            self._db.write("put_dependents", dependents)
        self._widen_spans(new)
        return unsaid

    def _widen_spans(self, new: Mapping[int, Job]) -> None:
        """Record for each block of seqs in which period its jobs were enqueued. A search by time skips all other
        blocks.
        """
        instants = [job.enqueued_at for job in new.values()]
        low, high = min(instants) >> SPAN_TIME << SPAN_TIME, (max(instants) >> SPAN_TIME) + 1 << SPAN_TIME
        for block in range(min(new) >> SPAN_BLOCK, (max(new) >> SPAN_BLOCK) + 1):
            known, known_low, known_high = self._span
            if block != known or low < known_low or high > known_high:
                self._db.rows("widen_span", block, low, high)
                if block == known:
                    low, high = min(low, known_low), max(high, known_high)
                self._span = block, low, high

    def _update(self, changed: Mapping[int, Job]) -> None:
        running: list[Any] = []
        ended: list[Any] = []
        elected: list[Any] = []
        rest: list[Any] = []
        newest, stored, placed = self._newest, self._stored, self._placed
        for seq, job in changed.items():
            facts = _settled_facts(job)
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
                if placed.get(seq) == place and stored.get(seq) == facts:  # only `open` has changed
                    elected += (job.open, seq)
                    continue
                placed[seq] = place
            stored[seq] = facts
            rest += self._all_facts(job, facts[6])
        if running:
            self._db.write_flat("update_running", running)
        if ended:
            self._db.write_flat("update_ended", ended)
        if elected:
            self._db.write_flat("update_open", elected)
        if rest:
            self._db.write_flat("update_all", rest)

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


def _settled_facts(job: Job) -> Settled:
    return *_settled_columns(job), pack(job)
