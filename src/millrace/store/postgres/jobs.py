"""The rows of jobs in PostgreSQL: locked when they are read, and written in few statements for many rows.

Open jobs (claimable once they are due) and leases have separate tables, `ready` and `lease`. The table `agenda` has the
times at which jobs are due for upkeep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from millrace.domain.job import FINISHED, Job, Spec, State
from millrace.store.postgres.history import Events
from millrace.store.postgres.locks import StepLocks
from millrace.store.postgres.registry import Registry
from millrace.store.postgres.sql import Held, PostgresStatements
from millrace.store.sql.jobs import Jobs
from millrace.store.sql.lines import Lines
from millrace.store.sql.ports import Row
from millrace.store.sql.record import (
    COMBO,
    IN_LINE,
    LINE,
    NUMBER,
    PLACE,
    encode_spec,
    pack_beside_lease,
    place_of,
    texts,
)

_NOWAIT, _WAIT, _SKIP = 0, 1, 2
_NEVER_NULL = frozenset({1, 3, 4, 5, 6, 7, 8, 15, 23, 24, 25, 26, 30, 32})  # columns of insert_jobs, except seq and id
_Lease = tuple[str, bool]  # its id, and whether cancellation is requested
_Membership = tuple[str, int]  # a line, and when the job is due


class PostgresRows:
    def __init__(
        self, statements: PostgresStatements, locks: StepLocks, registry: Registry, events: Events, lines: Lines
    ) -> None:
        self._db = statements
        self._locks = locks
        self._registry = registry
        self._newest = events.newest
        self._lines = lines
        self._ready: dict[int, tuple[int, int]] = {}  # as stored: (combo, available_at)
        self._leases: dict[int, _Lease] = {}
        self._members: dict[int, _Membership] = {}  # as stored: the jobs that wait in a line
        self._upkeep: dict[int, tuple[int | None, int | None]] = {}  # as stored: (finished_at, result_until)

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def load(self, jobs: Jobs, seqs: Sequence[int], ids: Sequence[str]) -> None:
        if not self._locks.writes:
            assert not ids, "a step that only reads finds jobs by their seqs"
            self._take(jobs, self._db.rows("look_at_seqs", list(seqs)))
            return
        try:
            self._take(jobs, self._db.rows("take_jobs", list(seqs), texts(ids), _NOWAIT))
        except Held:
            plan = self._locks.plan
            plan.seqs.update(seq for seq, job in jobs.loaded.items() if job is not None)
            plan.seqs.update(seqs)
            plan.ids.update(texts(ids))
            self._locks.retry_with()

    def load_ready(self, jobs: Jobs, seqs: Sequence[int]) -> None:
        self.load(jobs, seqs, ())

    def load_planned(self, jobs: Jobs) -> None:
        """Lock and load the jobs that earlier tries of this step found locked, and wait for each lock.

        This is called when a try begins.
        """
        plan = self._locks.plan
        if plan.seqs or plan.ids:
            self._take(jobs, self._db.rows("take_jobs", sorted(plan.seqs), sorted(plan.ids), _WAIT))

    def load_free(self, jobs: Jobs, seqs: Sequence[int]) -> list[Job]:
        """Lock, load and return those of these jobs that no other step has locked."""
        missing = [seq for seq in seqs if seq not in jobs.loaded]
        if missing and self._locks.writes:
            self._take(jobs, self._db.rows("take_jobs", missing, [], _SKIP))
        elif missing:
            self.load(jobs, missing, ())
        return [job for job in map(jobs.loaded.get, seqs) if job is not None]

    def _take(self, jobs: Jobs, rows: Iterable[Row]) -> None:
        for job, row in jobs.take(rows):
            if job.open:
                self._ready[job.seq] = row[COMBO], job.available_at
            if job.lease_id is not None:
                self._leases[job.seq] = job.lease_id, job.cancel_requested
            if row[PLACE] == IN_LINE:
                self._members[job.seq] = row[LINE], job.available_at
            self._upkeep[job.seq] = job.finished_at, job.result_until

    def confirmed(self, jobs: Jobs, seqs: Sequence[int], still: Callable[[Job], bool]) -> list[int]:
        """Return those of `seqs` whose job satisfies `still`, and whose row and line no other step has locked."""
        found = [job for job in self.load_free(jobs, seqs) if still(job)]
        free = self._lines.free(found)
        good = [job for job in found if job.line is None or (job.spec.queue, job.line) in free]
        self._lines.prefetch(good)
        return [job.seq for job in good]

    # ── writing ───────────────────────────────────────────────────────────────────────────────

    def delete(self, jobs: Sequence[Job]) -> None:
        self._close([(*self._ready.pop(job.seq), job.seq) for job in jobs if job.seq in self._ready])
        left = [job.seq for job in jobs if self._members.pop(job.seq, None) is not None]
        if left:
            self._db.rows("drop_members", left)
        self._db.rows("delete_jobs", [job.seq for job in jobs])
        dependents = [job.seq for job in jobs if job.spec.after]
        if dependents:
            self._db.rows("drop_dependents", dependents)

    def write(self, jobs: Jobs, simple: Mapping[int, Job], new: Mapping[int, Job], changed: Mapping[int, Job]) -> None:
        inserted = [*simple.values(), *new.values()]
        written = [*inserted, *changed.values()]
        self._move_in_lines(written)
        if inserted:
            self._insert(jobs, inserted)
        if changed:
            self._db.write("update_jobs", [self._facts(job) for job in changed.values()])
        self._move(written)
        self._write_leases(written)
        self._write_agenda(written)

    def _insert(self, jobs: Jobs, new: Sequence[Job]) -> None:
        rows: list[tuple[Any, ...]] = []
        for job in new:
            spec = job.spec
            combo, queue = self._registry.combo_id((spec.queue, spec.task, spec.priority))
            reply = jobs.reply_for(job)
            fixed = (spec.id, combo, queue, job.generation, job.enqueued_at, spec.group, spec.key, reply)
            kept = (spec.lease, spec.keep_result, _is_plain(spec), encode_spec(spec))
            rows.append((*self._facts(job), *fixed, *kept))
        self._db.write_short("insert_jobs", rows, _NEVER_NULL)
        dependents = [(parent, job.seq) for job in new for parent in dict.fromkeys(job.spec.after)]
        if dependents:
            self._db.write("put_dependents", dependents)

    def _facts(self, job: Job) -> tuple[Any, ...]:
        line = job.line
        waits = job.state is State.WAITING
        return (
            job.seq,
            0 if job.state is State.RUNNING else NUMBER[job.state],
            None if (place := place_of(job, line)) == IN_LINE else place,
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
            pack_beside_lease(job),
            line,
            None if line is None else -job.spec.priority,
        )

    def _move_in_lines(self, jobs: Iterable[Job]) -> None:
        """Write to the table `member` which jobs have begun or ceased to wait in a line.

        The lines that jobs leave are found by their stored rows, so this comes before these rows are written.
        """
        left: list[tuple[int]] = []
        entered: list[tuple[int, str, int, int, int]] = []
        for job in jobs:
            spec, seq, line = job.spec, job.seq, job.line
            wanted = (line, job.available_at) if line is not None and place_of(job, line) == IN_LINE else None
            stored = self._members.get(seq)
            if wanted == stored:
                continue
            if stored is not None and (wanted is None or wanted[0] != stored[0]):
                left.append((seq,))
            if wanted is None:
                del self._members[seq]
            else:
                queue = self._registry.combo_id((spec.queue, spec.task, spec.priority))[1]
                line, due = self._members[seq] = wanted
                entered.append((queue, line, -spec.priority, seq, due))
        if left:
            self._db.delete("drop_members", left)
        if entered:
            self._db.write("put_members", entered)

    def _close(self, places: Sequence[tuple[int, int, int]]) -> None:
        if places:
            self._db.delete("close_jobs", places)

    def _move(self, jobs: Iterable[Job]) -> None:
        """Insert jobs that have become open into the table `ready`, and delete those that are no longer open."""
        closed: list[tuple[int, int, int]] = []
        opened: list[tuple[int, int, int, bool]] = []
        for job in jobs:
            spec, seq = job.spec, job.seq
            is_open = job.open and job.state is State.WAITING
            combo = self._registry.combo_id((spec.queue, spec.task, spec.priority))[0] if is_open else 0
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
            self._db.write("open_jobs", opened)

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
                combo = self._registry.combo_id((job.spec.queue, job.spec.task, job.spec.priority))[0]
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
            self._db.delete("end_leases", [(seq,) for seq in ended])
        if begun:
            self._db.write("begin_leases", begun)
        if asked:
            self._db.write("ask_to_cancel", asked)

    def _write_agenda(self, jobs: Iterable[Job]) -> None:
        due: list[tuple[int, int, int, int]] = []
        for job in jobs:
            finished_at, result_until = self._upkeep.get(job.seq, (None, None))
            if job.state in FINISHED and job.state is not State.DEAD and job.finished_at != finished_at:
                assert job.finished_at is not None
                due.append((1, self._registry.queue_id(job.spec.queue) or 0, job.finished_at, job.seq))
            if job.result_until is not None and job.result_until != result_until:
                due.append((2, 0, job.result_until, job.seq))
            self._upkeep[job.seq] = job.finished_at, job.result_until
        if due:
            self._db.write("put_agenda", due)


def _is_plain(spec: Spec) -> bool:
    """Return whether the job can end on the fast path: it is not a hook, and its `keep_result` is not 0."""
    return not spec.hook and spec.keep_result != 0
