"""The tables the ledger's rules work on, as a port: in memory, or in a database inside one transaction.

The rules live once, in the ledger. What differs between an in-process dictionary and a SQLite file is only
where a fact is kept and which index finds it, so that is all a store on this port has to supply. Every index
is derived from the facts of a job alone; nobody maintains one by hand.

All methods are called inside one atomic step of the store; a job handed out by `by_id` or `by_seq` is the
step's own record, changed in place and announced with `update`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import Job, Scope, State
from millrace.domain.limits import Bucket
from millrace.domain.request import Query, WorkerRecord
from millrace.domain.schedule import Schedule
from millrace.domain.settings import Limits, QueueSettings, StoreSettings


class QueueRow(msgspec.Struct):
    """A queue's settings and counters. Counters always equal a recount of the jobs (E-09)."""

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
    live: int = 0  # waiting and running, hooks left out: what `on_empty` looks at
    processed: int = 0  # ever completed (BW-10: dead ones are counted apart)
    died: int = 0
    taken: int = 0  # ever claimed: says whose turn `fair_share` makes it
    next_lane: int = 0
    bucket: Bucket | None = None


class TaskRow(msgspec.Struct):
    """A task's limits over all queues and workers."""

    name: str
    limits: Limits = msgspec.field(default_factory=Limits)
    running: int = 0
    bucket: Bucket | None = None


class Line(msgspec.Struct):
    """An ordered line: a group or a lane. At most one member is open (claimable); `holder` keeps it closed."""

    queue: str
    name: str
    holder: int | None = None  # seq of the member that runs, or is in backoff and blocks
    open: int | None = None  # seq of the member that may be claimed
    waiting: int = 0
    live: int = 0
    processed: int = 0
    died: int = 0


class KeyHold(msgspec.Struct):
    """Who holds a unique key, and until when (None: until the owner's end frees it)."""

    queue: str
    key: str
    owner: str
    seq: int
    scope: Scope
    until: int | None = None


class Past(msgspec.Struct, frozen=True):
    """What is remembered of a generation whose record is gone, while its history or a dependent needs it."""

    id: str
    seq: int
    generation: int
    state: State
    token: str
    gone_at: int


class Range(Protocol):
    """Open, due jobs of one (queue, task, priority) in order of (available_at, seq)."""

    queue: str
    task: str
    priority: int

    def peek(self) -> tuple[int, int] | None: ...
    def advance(self) -> None: ...


class Tables(Protocol):
    # jobs
    def prefetch_ids(self, ids: Iterable[str]) -> None: ...
    def prefetch_seqs(self, seqs: Iterable[int]) -> None: ...
    def all_unknown(self, ids: Iterable[str]) -> bool:
        """None of these ids has a record or a past."""
        ...

    def by_id(self, job_id: str) -> Job | None: ...
    def by_seq(self, seq: int) -> Job | None: ...
    def next_seqs(self, count: int) -> Sequence[int]:
        """Numbers that no job ever had, rising."""
        ...

    def insert(self, job: Job) -> None:
        """A new record; `update` follows within the step, once it has its place."""
        ...

    def insert_open(self, jobs: Sequence[Job], events: Sequence[Event]) -> None:
        """Many new records at once that stand in no line and wait for nothing, each with its first event."""
        ...

    def update(self, job: Job) -> None: ...
    def delete(self, job: Job) -> None: ...
    def hand_out(self, job: Job) -> Job:
        """A copy that its receiver may keep and change."""
        ...

    # history
    def append(self, event: Event) -> None: ...
    def history(self, job_id: str) -> list[Event]: ...
    def feed(self, after: int, limit: int) -> list[tuple[int, Event]]: ...
    def feed_bounds(self) -> tuple[int, int]:
        """(cursor of the last trimmed event, cursor of the newest event); 0 when there is none."""
        ...

    def trim_events(self, before: int, limit: int) -> int: ...
    def past(self, job_id: str) -> list[Past]: ...
    def add_past(self, past: Past) -> None: ...
    def stale_past(self, before: int, limit: int) -> list[Past]: ...
    def drop_past(self, past: Past) -> None: ...

    # what a claim and the reaper look at
    def ranges(self, queue: str, tasks: frozenset[str] | None, now: int, limit: int) -> list[Range]: ...
    def entering(self, now: int, limit: int) -> list[int]:
        """Group members that wait outside their line and are due, by (available_at, seq)."""
        ...

    def expiring(self, now: int, limit: int) -> list[int]:
        """Waiting jobs with expires_at <= now, by (expires_at, seq)."""
        ...

    def lapsed(
        self,
        now: int,
        limit: int,
        queues: tuple[str, ...] | None,
        tasks: frozenset[str] | None,
        ignore: frozenset[str],
    ) -> list[int]:
        """Running jobs with lease_until < now, by (lease_until, seq)."""
        ...

    def next_due(self, queue: str, tasks: frozenset[str] | None, without: frozenset[str]) -> int | None:
        """The smallest available_at among jobs of the queue that are open or wait outside their line.

        Tasks in `without` do not count: their own limits let nothing through now.
        """
        ...

    def stir(self, queue: str, jobs: int) -> None:
        """So many more jobs of the queue may be claimable now: wake as many waiters once the step is done."""
        ...

    # lines, keys, dependencies
    def line(self, queue: str, name: str) -> Line | None: ...
    def put_line(self, line: Line) -> None: ...
    def drop_line(self, line: Line) -> None: ...
    def best_in_line(self, queue: str, name: str) -> int | None:
        """The waiting member in line that is first by (priority desc, seq)."""
        ...

    def members(self, queue: str, name: str, limit: int) -> list[int]:
        """The waiting members in line, first by (priority desc, seq)."""
        ...

    def key(self, queue: str, key: str) -> KeyHold | None: ...
    def put_key(self, hold: KeyHold) -> None: ...
    def drop_key(self, hold: KeyHold) -> None: ...
    def lapsed_keys(self, now: int, limit: int) -> list[KeyHold]: ...
    def add_dependency(self, parent: str, child: int) -> None: ...
    def drop_dependency(self, parent: str, child: int) -> None: ...
    def children(self, parent: str) -> list[int]:
        """Seqs of jobs that still wait for this id, in seq order."""
        ...

    def parents(self, child: int) -> list[str]: ...

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
    def schedule(self, name: str) -> Schedule | None: ...
    def put_schedule(self, schedule: Schedule) -> None: ...
    def drop_schedule(self, name: str) -> None: ...
    def schedules(self) -> list[Schedule]:
        """All of them, by name."""
        ...

    # upkeep and reading
    def finished(self, queue: str, dead: bool, before: int, limit: int) -> list[int]:
        """Dead jobs, or else completed and cancelled ones, with finished_at <= before, by (finished_at, seq)."""
        ...

    def oldest_unarchived_dead(self, queue: str, limit: int) -> list[int]: ...
    def due_retries(self, now: int, limit: int) -> list[int]: ...
    def expired_results(self, now: int, limit: int) -> list[int]: ...
    def seqs_of_queue(
        self, queue: str, states: frozenset[State], limit: int, wanted: Callable[[Job], bool] | None = None
    ) -> list[int]: ...
    def search(self, query: Query, now: int, budget: int) -> tuple[list[Job], int | None, int]:
        """(jobs, seq to resume after or None at the end, rows looked at)."""
        ...

    def ahead(self, job: Job, now: int, most: int) -> int:
        """How many jobs of its queue (or line) run before this waiting one, counted up to `most`."""
        ...

    def words(self, queue: str, now: int) -> tuple[int, int, int | None]:
        """(scheduled, retrying, smallest available_at of a due open job)."""
        ...

    def worker(self, worker_id: str) -> WorkerRecord | None: ...
    def put_worker(self, record: WorkerRecord) -> None: ...
    def drop_worker(self, worker_id: str) -> None: ...
    def workers(self) -> list[WorkerRecord]: ...
    def seq_bounds(self) -> tuple[int, int]: ...
    def scan(self, after: int, to: int, limit: int) -> list[Job]: ...
