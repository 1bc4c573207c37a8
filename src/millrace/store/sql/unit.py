"""The unit of work of one step of the ledger: it caches what the step reads, collects what it changes, and writes that.

`Unit` implements the ledger's `Tables`. It is composed of parts, each of which caches one kind of row. Parts that are
the same in every dialect are created here; a dialect provides the others and adds the index queries of a claim
(`SqliteTables`, `PostgresTables`). `_expose` is the table of contents: it shows which part implements which method of
`Tables`. A combination (`Combo`) is a (queue, task, priority) that a job has used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from millrace.domain.event import Event
from millrace.domain.job import Job, Spec, State, is_kept_for_children
from millrace.domain.rules.lanes import possible_lines
from millrace.domain.settings import StoreSettings
from millrace.domain.tables import Past, QueueRow, TaskRow
from millrace.store.sql.jobs import EventLog, Gone, JobRows, Jobs
from millrace.store.sql.lines import Dependencies, FirstMembers, Keys, Lines, QueueIds
from millrace.store.sql.ports import Batch, Effects, Locks, Statements, line_lock
from millrace.store.sql.record import OUTSIDE, place_of
from millrace.store.sql.records import Schedules, Workers
from millrace.store.sql.search import Indexes, Search

Combo = tuple[str, str, int]  # (queue, task, priority)


class RegistryPart(QueueIds, Protocol):
    """The part for queues, tasks and the store's own row. Each dialect has its own.

    Nearly every step changes counters here. SQLite writes the whole row, PostgreSQL adds differences.
    """

    def queue(self, name: str) -> QueueRow: ...
    def put_queue(self, row: QueueRow) -> None: ...
    def queues(self) -> Sequence[str]: ...
    def combos(self, queue: str) -> list[tuple[str, int, int]]:
        """Return (task, priority, id of the combination) for each combination that was ever used in this queue."""
        ...

    def task(self, name: str) -> TaskRow | None: ...
    def put_task(self, row: TaskRow) -> None: ...
    def tasks(self) -> Sequence[TaskRow]: ...
    def next_seqs(self, count: int) -> Sequence[int]: ...
    def settings(self) -> StoreSettings: ...
    def put_settings(self, settings: StoreSettings) -> None: ...
    def flush(self) -> None: ...


class EventsPart(EventLog, Protocol):
    """The feed of events. Each dialect has its own part, because dialects number and store events differently."""

    def append(self, event: Event) -> None: ...
    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]: ...
    def feed_bounds(self) -> tuple[int, int]: ...
    def trimmed_mark(self) -> str: ...
    def flush(self) -> None: ...


class Unit:
    hand_out: Callable[[Job], Job] = staticmethod(Job.__copy__)  # type: ignore[attr-defined]  # faster than copy.copy

    def __init__(
        self,
        statements: Statements,
        effects: Effects,
        locks: Locks,
        batch: Batch,
        *,
        registry: RegistryPart,
        events: EventsPart,
        gone: Gone,
        lines: Lines,
        rows: JobRows,
        indexes: Indexes,
        workers: Workers,
        alone: bool,
    ) -> None:
        self.statements = statements
        self.effects = effects
        self._locks = locks
        self._batch = batch
        self._registry = registry
        self._events = events
        self._rows = rows
        self._gone = gone
        self.lines = lines
        self._members = FirstMembers(statements, registry, lines, batch)
        self.jobs = Jobs(rows, events, gone, self._members, effects, batch)
        self._keys = Keys(statements, locks, effects, batch)
        self._dependencies = Dependencies(statements, self.jobs, locks, effects, batch, alone=alone)
        self._search = Search(statements, self.jobs, indexes)
        self._schedules = Schedules(statements, locks, effects)
        self._expose(workers, self._schedules)

    def _expose(self, workers: Workers, schedules: Schedules) -> None:
        jobs, registry, events, gone = self.jobs, self._registry, self._events, self._gone
        self.prefetch_ids, self.prefetch_seqs = jobs.prefetch_ids, jobs.prefetch_seqs
        self.all_unknown, self.by_id, self.by_seq = jobs.all_unknown, jobs.by_id, jobs.by_seq
        self.insert, self.insert_all, self.insert_open = jobs.insert, jobs.insert_all, jobs.insert_open
        self.update, self.delete = jobs.update, jobs.delete
        self.append, self.feed = events.append, events.feed
        self.feed_bounds, self.trimmed_mark = events.feed_bounds, events.trimmed_mark
        self.past, self.add_past, self.drop_past = gone.past, gone.add, gone.drop
        self.past_after = gone.after
        self.line, self.put_line, self.drop_line = self.lines.line, self.lines.put, self.lines.drop
        self.best_in_line = self._members.best_in_line
        self.key, self.put_key, self.drop_key = self._keys.key, self._keys.put, self._keys.drop
        self.lapsed_keys, self.windows = self._keys.lapsed, self._keys.windows
        self.add_dependency, self.drop_dependency = self._dependencies.add, self._dependencies.drop
        self.children, self.parents = self._dependencies.children, self._dependencies.parents
        self.dead_dependents, self.is_needed = self._dependencies.dead_dependents, self._dependencies.is_needed
        self.queue, self.put_queue, self.queues = registry.queue, registry.put_queue, registry.queues
        self.task, self.put_task, self.tasks = registry.task, registry.put_task, registry.tasks
        self.next_seqs, self.settings, self.put_settings = registry.next_seqs, registry.settings, registry.put_settings
        self.search, self.scan, self.seq_bounds = self._search.search, self._search.scan, self._search.seq_bounds
        self.worker, self.put_worker = workers.worker, workers.put
        self.drop_worker, self.workers = workers.drop, workers.workers
        self.schedule, self.put_schedule = schedules.schedule, schedules.put
        self.drop_schedule, self.schedules = schedules.drop, schedules.schedules
        self.prefetch_schedules = schedules.prefetch
        self.due_schedules, self.next_schedule = schedules.due, schedules.next
        self.wake = self.effects.wake

    def begin_call(self, soon: int) -> None:
        """Start the next call of the ledger. Jobs that are due at `soon` or earlier are announced as claimable."""
        self.effects.begin(soon)
        self._batch.forget()

    def prefetch_specs(self, specs: Sequence[Spec]) -> None:
        self.jobs.prefetch_specs(specs)
        by_queue: dict[str, list[Spec]] = {}
        for spec in specs:
            by_queue.setdefault(spec.queue, []).append(spec)
        lines = [(name, line) for name, of in by_queue.items() for line in possible_lines(of, self.queue(name))]
        self._batch.of_lines(lines)

    def flush(self) -> None:
        """Write all changes.

        Jobs come first, because writing them may create rows for queues and for combinations of queue, task and
        priority. SQLite writes counters together with the events, so the registry follows them.
        """
        with self.statements.together():
            self.jobs.flush()
            self._events.flush()
            self._registry.flush()
            if self._gone.changed:
                self._gone.flush()
            if self.lines.changed:
                self.lines.flush()
            if self._keys.changed:
                self._keys.flush()
            if self._dependencies.changed:
                self._dependencies.flush()
            if self._schedules.changed:
                self._schedules.flush()

    def stale_past(self, before: int, limit: int) -> list[Past]:
        found = self._gone.stale(before, limit)
        self._dependencies.prefetch([past.id for past in found])  # the caller asks for their dependents next
        return found

    # ── queries over the indexes of jobs ──────────────────────────────────────────────────────

    def _due(self, still: Callable[[Job], bool], name: str, *args: object) -> list[int]:
        """Run a statement that finds jobs, and return the seqs of those that still satisfy `still`."""
        self.jobs.flush()
        return self._rows.confirmed(self.jobs, self.statements.seqs(name, *args), still)

    def entering(self, now: int, limit: int) -> list[int]:
        return self._due(
            lambda job: place_of(job, job.line) == OUTSIDE and job.available_at <= now, "entering", now, limit
        )

    def expiring(self, now: int, limit: int) -> list[int]:
        return self._due(
            lambda job: job.state is State.WAITING and job.expires_at is not None and job.expires_at <= now,
            "expiring",
            now,
            limit,
        )

    def oldest_unarchived_dead(self, queue: str, limit: int) -> list[int]:
        queue_id = self._registry.queue_id(queue)
        return self._due(lambda job: job.state is State.DEAD and not job.archived, "dead_shown", queue_id, limit)

    def due_retries(self, now: int, limit: int) -> list[int]:
        return self._due(
            lambda job: job.next_retry_at is not None and job.next_retry_at <= now, "due_retries", now, limit
        )

    def finished(self, queue: str, dead: bool, before: int, limit: int) -> list[int]:
        return self._due(
            lambda job: job.finished_at is not None and job.finished_at <= before and not is_kept_for_children(job),
            "dead" if dead else "finished",
            self._registry.queue_id(queue),
            before,
            limit,
        )

    def expired_results(self, now: int, limit: int) -> list[int]:
        return self._due(
            lambda job: job.result_until is not None and job.result_until <= now, "expired_results", now, limit
        )

    def members(self, queue: str, name: str, limit: int) -> list[int]:
        self._locks.lock([line_lock(queue, name)])
        self.jobs.flush()
        return self.statements.seqs("members", self._registry.queue_id(queue), name, limit)

    def running_of_task(self, name: str) -> int:
        self._locks.close_gate()  # runs that another step begins or ends without counting must be committed
        self.flush()
        count: int = self.statements.value("running_of_task", name)
        return count

    def seqs_of_queue(
        self, queue: str, states: frozenset[State], limit: int, wanted: Callable[[Job], bool] | None = None
    ) -> list[int]:
        self.jobs.flush()  # which may create combinations
        found: list[int] = []
        for job in self._search.walk([combo for _, _, combo in self._registry.combos(queue)], states):
            if len(found) >= limit:
                break
            if job.state in states and (wanted is None or wanted(job)):
                found.append(job.seq)
        return found

    def ahead(self, job: Job, now: int, most: int) -> int:
        self.jobs.flush()
        name = job.line
        if name is None:
            starts = max(now, job.available_at)  # a job that is due later is not ahead, whatever its priority
            combos = self._registry.combos(job.spec.queue)
            return min(most, sum(self._ahead_in(job, combo, starts, most) for combo in combos))
        queue_id = self._registry.queue_id(job.spec.queue)
        count: int = self.statements.value("members_before", queue_id, name, most, -job.spec.priority, job.seq)
        line = self.lines.line(job.spec.queue, name)
        held = line is not None and line.holder is not None and line.holder != job.seq
        return min(most, held + count)

    def _ahead_in(self, job: Job, combo: tuple[str, int, int], starts: int, most: int) -> int:
        _, priority, number = combo
        count = 0
        if priority > job.spec.priority:
            count = self.statements.value("ready_by", number, starts, most)
        elif priority == job.spec.priority:
            count = self.statements.value("ready_before", number, job.available_at, job.seq, most)
        return count
