"""The ledger's tables in PostgreSQL: what a claim, the reaper and upkeep ask of the indexes.

An index only proposes: what it names is locked and looked at again before the ledger sees it, since somebody else may
have changed it in between. What somebody else holds is left to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millrace.domain.job import Job, State
from millrace.domain.tables import Range
from millrace.store.postgres.record import OUTSIDE, place_of
from millrace.store.postgres.schedules import Schedules
from millrace.store.postgres.search import Search


class _Due:
    """The open, due jobs of one combination, read when first asked for."""

    def __init__(self, tables: PostgresTables, queue: str, combo: tuple[str, int, int], now: int, limit: int) -> None:
        self._tables = tables
        self.queue = queue
        self.task, self.priority, self._combo = combo
        self._now = now
        self._limit = limit
        self._heads: list[tuple[int, int]] | None = None
        self._next = 0

    def peek(self) -> tuple[int, int] | None:
        if self._heads is None:
            self._heads = self._tables.heads(self._combo, self._now, self._limit)
        return self._heads[self._next] if self._next < len(self._heads) else None

    def advance(self) -> None:
        self._next += 1


class PostgresTables(Search, Schedules):
    # ── what a claim and the reaper look at ───────────────────────────────────────────────────

    def heads(self, combo: int, now: int, limit: int) -> list[tuple[int, int]]:
        """Jobs that can be claimed and whose lines are free."""
        found = [(at, seq) for at, seq in self.rows("ready", combo, now, limit)]
        mine = set(self.free_jobs([seq for _, seq in found]))
        jobs = [job for job in map(self._jobs.get, mine) if job is not None]
        lined = [job for job in jobs if job.line is not None]
        if lined:
            free = self.free_lines(lined)
            mine -= {job.seq for job in lined if (job.spec.queue, job.line) not in free}
            self.prefetch_lines([job for job in lined if job.seq in mine])
        return [(at, seq) for at, seq in found if seq in mine]

    def ranges(self, queue: str, tasks: frozenset[str] | None, now: int, limit: int) -> list[Range]:
        self.flush_jobs()
        wanted = [combo for combo in self.combos(queue) if tasks is None or combo[0] in tasks]
        return [_Due(self, queue, combo, now, limit + (len(wanted) > 1)) for combo in wanted]

    def _confirmed(self, seqs: Sequence[int], still: Callable[[Job], bool]) -> list[int]:
        """Those that are free and still as the index said; members of a line only if that is free as well."""
        jobs = [job for job in map(self._jobs.get, self.free_jobs(seqs)) if job is not None and still(job)]
        free = self.free_lines(jobs)
        good = [job for job in jobs if job.line is None or (job.spec.queue, job.line) in free]
        self.prefetch_lines(good)
        return [job.seq for job in good]

    def entering(self, now: int, limit: int) -> list[int]:
        self.flush_jobs()
        return self._confirmed(
            self.seqs("entering", now, limit),
            lambda job: place_of(job, job.line) == OUTSIDE and job.available_at <= now,
        )

    def expiring(self, now: int, limit: int) -> list[int]:
        self.flush_jobs()
        return self._confirmed(
            self.seqs("expiring", now, limit),
            lambda job: job.state is State.WAITING and job.expires_at is not None and job.expires_at <= now,
        )

    def lapsed(
        self,
        now: int,
        limit: int,
        queues: tuple[str, ...] | None,
        tasks: frozenset[str] | None,
        ignore: frozenset[str],
    ) -> list[int]:
        self.flush_jobs()
        wanted = None if queues is None else list(queues)
        known = None if tasks is None else list(tasks)
        found = self.free_jobs(self.seqs("lapsed", now, wanted, known, list(ignore), limit))
        jobs = [job for job in map(self._jobs.get, found) if job is not None]
        return [job.seq for job in jobs if job.lease_until is not None and job.lease_until < now]

    def next_due(self, queue: str, tasks: frozenset[str] | None, without: frozenset[str]) -> int | None:
        combos = [
            combo for task, _, combo in self.combos(queue) if (tasks is None or task in tasks) and task not in without
        ]
        instants = [self.value("first_ready", combos)]
        queue_id = self.queue_id(queue)
        if queue_id is not None:
            instants.append(self.value("first_outside", queue_id))
        return min((at for at in instants if at is not None), default=None)

    # ── upkeep ────────────────────────────────────────────────────────────────────────────────

    def finished(self, queue: str, dead: bool, before: int, limit: int) -> list[int]:
        self.flush_jobs()
        queue_id = self.queue_id(queue)
        if dead:
            return self._finished_by(self.seqs("dead", queue_id, before, limit), before)
        rows = self.rows("on_agenda", 1, queue_id, before, limit)
        return self._finished_by([row[1] for row in rows], before)

    def _finished_by(self, seqs: Sequence[int], before: int) -> list[int]:
        return self._confirmed(seqs, lambda job: job.finished_at is not None and job.finished_at <= before)

    def oldest_unarchived_dead(self, queue: str, limit: int) -> list[int]:
        self.flush_jobs()
        seqs = self.seqs("dead_shown", self.queue_id(queue), limit)
        return self._confirmed(seqs, lambda job: job.state is State.DEAD and not job.archived)

    def due_retries(self, now: int, limit: int) -> list[int]:
        self.flush_jobs()
        seqs = self.seqs("due_retries", now, limit)
        return self._confirmed(seqs, lambda job: job.next_retry_at is not None and job.next_retry_at <= now)

    def expired_results(self, now: int, limit: int) -> list[int]:
        self.flush_jobs()
        seqs = [row[1] for row in self.rows("on_agenda", 2, 0, now, limit)]
        return self._confirmed(seqs, lambda job: job.result_until is not None and job.result_until <= now)

    def seqs_of_queue(
        self, queue: str, states: frozenset[State], limit: int, wanted: Callable[[Job], bool] | None = None
    ) -> list[int]:
        self.flush_jobs()
        found: list[int] = []
        for job in self.walk_queue(queue, states):
            if len(found) >= limit:
                break
            if job.state in states and (wanted is None or wanted(job)):
                found.append(job.seq)
        return found

    # ── counting ──────────────────────────────────────────────────────────────────────────────

    def ahead(self, job: Job, now: int, most: int) -> int:
        self.flush_jobs()
        name = job.line
        if name is None:
            starts = max(now, job.available_at)  # what is due only after that is not ahead, whatever its priority
            return min(most, sum(self._ahead_in(job, combo, starts, most) for combo in self.combos(job.spec.queue)))
        queue_id = self.queue_id(job.spec.queue)
        count: int = self.value("members_before", queue_id, name, -job.spec.priority, job.seq, most)
        line = self.line(job.spec.queue, name)
        held = line is not None and line.holder is not None and line.holder != job.seq
        return min(most, held + count)

    def _ahead_in(self, job: Job, combo: tuple[str, int, int], starts: int, most: int) -> int:
        _, priority, number = combo
        count = 0
        if priority > job.spec.priority:
            count = self.value("ready_by", number, starts, most)
        elif priority == job.spec.priority:
            count = self.value("ready_before", number, job.available_at, job.seq, most)
        return count

    def words(self, queue: str, now: int) -> tuple[int, int, int | None]:
        queue_id = self.queue_id(queue)
        if queue_id is None:
            return 0, 0, None
        later, retrying, oldest = self.words_read.get(queue) or self.rows("words", queue_id, now)[0]
        return later - retrying, retrying, oldest if oldest is not None and oldest <= now else None
