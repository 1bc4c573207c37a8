"""The interface between the ledger's rules and the data of a store: dictionaries in memory, or a database.

The ledger has the rules. A store that uses the ledger implements only how records are stored and looked up. The store
derives every index from the fields of a job; no rule maintains an index.

All methods are called inside one atomic step of the store. `by_id` and `by_seq` return the same object throughout a
step: rules change it in place and then call `update`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Job, Scope, Spec, State
from millrace.domain.request import Query, WorkerRecord
from millrace.domain.rules.limits import Bucket
from millrace.domain.schedule import Schedule
from millrace.domain.settings import Limits, QueueSettings, StoreSettings

Place = tuple[str | None, str | None]  # (queue, task), either None: see outlook.py
ANY_NUMBER = 1 << 30  # of idle workers to wake
CANCELS = "@cancels"  # (CANCELS, worker): a job that this worker runs is to be cancelled. No queue can have this name.


class QueueRow(msgspec.Struct):
    """A queue's settings and counters. The counters always match the jobs."""

    name: str
    settings: QueueSettings = msgspec.field(default_factory=QueueSettings)
    waiting: int = 0
    running: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    blocked: int = 0
    archived: int = 0
    archived_dead: int = 0
    live: int = 0  # waiting and running jobs without hooks; at 0, `on_empty` is enqueued
    processed: int = 0  # jobs that ever completed
    died: int = 0  # jobs that ever died
    taken: int = 0  # jobs that were ever claimed; `fair_share` counts by it
    next_lane: int = 0
    rearm: bool = False  # auto-retry was enabled or raised: upkeep schedules a retry for jobs that are already dead
    bucket: Bucket | None = None


class TaskRow(msgspec.Struct):
    """A task's limits and counters, over all queues and workers."""

    name: str
    limits: Limits = msgspec.field(default_factory=Limits)
    running: int = 0
    bucket: Bucket | None = None


class Line(msgspec.Struct, gc=False):
    """A line: a group or a lane. At most one job of a line is open (claimable once it is due).

    The holder is a job that runs, or that is in backoff and blocks the line. While there is a holder, no other job of
    the line can be open.
    """

    queue: str
    name: str
    holder: int | None = None  # seq of the member that is running, or in backoff with `retry_blocks`
    open: int | None = None  # seq of the member that may be claimed
    waiting: int = 0
    live: int = 0
    processed: int = 0
    died: int = 0


class KeyHold(msgspec.Struct):
    """The job that holds a unique key, and the instant `until` which it holds the key.

    If `until` is None, the job holds the key until it ends. With scope `retained`, it holds the key until its record is
    deleted.
    """

    queue: str
    key: str
    owner: str
    seq: int
    scope: Scope
    until: int | None = None


class Past(msgspec.Struct, frozen=True):
    """What remains of a job whose record was deleted: its identity, final state and token.

    It is kept as long as the job's history, and longer if a child still waits for the job.
    """

    id: str
    seq: int
    generation: int
    state: State
    token: str
    gone_at: int


class Range(Protocol):
    """The open, due jobs of one (queue, task, priority), in order of (available_at, seq)."""

    queue: str
    task: str
    priority: int

    def peek(self) -> tuple[int, int] | None: ...
    def advance(self) -> None: ...


class Tables(Protocol):
    # jobs
    def prefetch_ids(self, ids: Iterable[str]) -> None: ...
    def prefetch_seqs(self, seqs: Iterable[int]) -> None: ...
    def prefetch_specs(self, specs: Sequence[Spec]) -> None:
        """Prepare for an enqueue of these specs: load the jobs with their ids and their parents."""
        ...

    def all_unknown(self, ids: Iterable[str]) -> bool:
        """Return whether none of these ids has a record or a `Past`."""
        ...

    def by_id(self, job_id: str) -> Job | None: ...
    def by_seq(self, seq: int) -> Job | None: ...
    def next_seqs(self, count: int) -> Sequence[int]:
        """Return `count` new seqs, ascending."""
        ...

    def insert(self, job: Job) -> None:
        """Add the record of a new job. The caller also calls `update` for this job in the same step."""
        ...

    def insert_all(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        """Add many new records, each with its first event. The caller also calls `update` for each job in the same
        step.
        """
        ...

    def insert_open(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        """Add many new records that have neither a line nor parents, each with its first event."""
        ...

    def update(self, job: Job) -> None: ...
    def delete(self, job: Job) -> None: ...
    def hand_out(self, job: Job) -> Job:
        """Return a copy of the job for the caller of the store."""
        ...

    # history
    def append(self, event: Event) -> None: ...
    def history(self, job_id: str) -> list[Event]: ...
    def events_of(self, seqs: Sequence[int]) -> dict[int, list[Event]]:
        """Return the events of each of these generations that are kept, oldest first. Their jobs, or their `Past`, were
        read in this step.
        """
        ...

    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]: ...
    def feed_bounds(self) -> tuple[int, int]:
        """Return (number of the last trimmed event, number of the newest event). A number is 0 if there is no event."""
        ...

    def trimmed_mark(self) -> str:
        """Return the mark (`feed.mark_of`) of the last trimmed event, or "" if no event was trimmed."""
        ...

    def trim_events(self, before: int, limit: int) -> int: ...
    def past(self, job_id: str) -> list[Past]: ...
    def add_past(self, past: Past) -> None: ...
    def stale_past(self, before: int, limit: int) -> list[Past]: ...
    def drop_past(self, past: Past) -> None: ...
    def past_after(self, gone_at: int, seq: int, limit: int) -> list[Past]:
        """Return up to `limit` deleted generations after (gone_at, seq), by (gone_at, seq)."""
        ...

    # what a claim and the reaper look at
    def ranges(self, queue: str, tasks: frozenset[str] | None, now: int, limit: int) -> list[Range]: ...
    def entering(self, now: int, limit: int) -> list[int]:
        """Return the seqs of jobs that are due but have not entered their line yet, by (available_at, seq)."""
        ...

    def expiring(self, now: int, limit: int) -> list[int]:
        """Return the seqs of waiting jobs with expires_at <= now, by (expires_at, seq)."""
        ...

    def lapsed(
        self,
        now: int,
        limit: int,
        queues: tuple[str, ...] | None,
        tasks: frozenset[str] | None,
        ignore: frozenset[str],
    ) -> list[int]:
        """Return the seqs of running jobs with lease_until < now, by (lease_until, seq).

        `queues` and `tasks` restrict the jobs (None: any). Leases whose id is in `ignore` are left out.
        """
        ...

    def next_due(self, queue: str, tasks: frozenset[str] | None, without: frozenset[str]) -> int | None:
        """Return the smallest available_at among jobs that are open or have not entered their line yet.

        Jobs of tasks in `without` are left out. Return None if there is no such job.
        """
        ...

    def wake(self, place: Place, jobs: int) -> None:
        """After the step is committed, wake up to `jobs` idle workers that wait for this place (see
        `rules/outlook.py`).
        """
        ...

    # lines, keys, dependencies
    def line(self, queue: str, name: str) -> Line | None: ...
    def put_line(self, line: Line) -> None: ...
    def drop_line(self, line: Line) -> None: ...
    def best_in_line(self, queue: str, name: str) -> int | None:
        """Return the seq of the first waiting member of the line, by (priority desc, seq); None if there is none."""
        ...

    def members(self, queue: str, name: str, limit: int) -> list[int]:
        """Return the seqs of up to `limit` waiting members of the line, by (priority desc, seq)."""
        ...

    def key(self, queue: str, key: str) -> KeyHold | None: ...
    def put_key(self, hold: KeyHold) -> None: ...
    def drop_key(self, hold: KeyHold) -> None: ...
    def lapsed_keys(self, now: int, limit: int) -> list[KeyHold]: ...
    def windows(self, since: int, skip: int, limit: int) -> list[KeyHold]:
        """Return keys that are held until `since` or later, in the order of that time, without the first `skip`."""
        ...

    def add_dependency(self, parent: str, child: int) -> None: ...
    def drop_dependency(self, parent: str, child: int) -> None: ...
    def children(self, parent: str) -> list[int]:
        """Return the seqs of jobs that still wait for the job with this id, ascending."""
        ...

    def parents(self, child: int) -> list[str]: ...
    def dead_dependents(self, parents: Sequence[str]) -> list[int]:
        """Return the seqs of dead jobs that have one of these ids in `after`, ascending."""
        ...

    def is_needed(self, parent: str) -> bool:
        """Return whether a child of the job with this id is waiting or running."""
        ...

    # queues, tasks, store
    def queue(self, name: str) -> QueueRow: ...
    def put_queue(self, row: QueueRow) -> None: ...
    def queues(self) -> Sequence[str]: ...
    def task(self, name: str) -> TaskRow | None: ...
    def put_task(self, row: TaskRow) -> None: ...
    def tasks(self) -> Sequence[TaskRow]: ...
    def running_of_task(self, name: str) -> int: ...
    def settings(self) -> StoreSettings: ...
    def put_settings(self, settings: StoreSettings) -> None: ...

    # schedules
    def prefetch_schedules(self, names: Sequence[str]) -> None:
        """Load these schedules together, because they will be read next."""
        ...

    def schedule(self, name: str) -> Schedule | None: ...
    def put_schedule(self, schedule: Schedule) -> None: ...
    def drop_schedule(self, name: str) -> None: ...
    def schedules(self, after: str, limit: int) -> list[Schedule]:
        """Return up to `limit` schedules whose name is greater than `after`, sorted by name."""
        ...

    def due_schedules(self, until: int, limit: int, skip: int) -> list[Schedule]:
        """Return up to `limit` schedules with due_at <= until, oldest first, without the first `skip` of them."""
        ...

    def next_schedule(self, after: int) -> int | None:
        """Return the earliest `due_at` of a schedule that is later than `after`; None if there is none."""
        ...

    # upkeep and reading
    def finished(self, queue: str, dead: bool, before: int, limit: int) -> list[int]:
        """Return the seqs of finished jobs with finished_at <= before, by (finished_at, seq).

        With `dead`, only dead jobs; otherwise completed and cancelled jobs, without those that are kept for their
        children (`is_kept_for_children`).
        """
        ...

    def oldest_unarchived_dead(self, queue: str, limit: int) -> list[int]: ...
    def due_retries(self, now: int, limit: int) -> list[int]: ...
    def expired_results(self, now: int, limit: int) -> list[int]: ...
    def seqs_of_queue(
        self, queue: str, states: frozenset[State], limit: int, wanted: Callable[[Job], bool] | None = None
    ) -> list[int]: ...
    def search(self, query: Query, now: int, budget: int) -> tuple[list[Job], int | None, int]:
        """Return (matching jobs, seq, number of rows read).

        The next page continues after `seq`, which is None at the end.
        """
        ...

    def ahead(self, job: Job, now: int, most: int) -> int:
        """Return how many jobs of the same queue or line run before this waiting job, counted up to `most`."""
        ...

    def waiting_counts(self, queue: str, now: int) -> tuple[int, int, int | None]:
        """Return (number scheduled, number retrying, smallest available_at of a due open job)."""
        ...

    def worker(self, worker_id: str) -> WorkerRecord | None: ...
    def put_worker(self, record: WorkerRecord) -> None: ...
    def drop_worker(self, worker_id: str) -> None: ...
    def workers(self) -> list[WorkerRecord]: ...
    def seq_bounds(self) -> tuple[int, int]: ...
    def scan(self, after: int, to: int, limit: int) -> list[Job]: ...
