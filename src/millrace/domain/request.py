"""What is asked of a store and what it answers. Batch first: many items in, one answer per item, in order."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import ALIASES, Job, Lease, State, word


class Enqueued(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The answer to one enqueue. A duplicate is an answer, never an exception (R-03)."""

    status: Literal["queued", "duplicate", "completed"]
    id: str  # of the job that now stands for this enqueue: the owner's when a key was hit
    seq: int
    generation: int
    state: State
    by: Literal["id", "key"] | None = None
    result: bytes | None = None
    result_expired: bool = False
    payload_differs: bool = False
    lane: int | None = None
    position: int | None = None
    depth: int | None = None


class Claim(msgspec.Struct, frozen=True):
    """`tasks=None` takes any task; `lease=None` gives each job the lease its spec asks for."""

    queues: tuple[str, ...]
    worker: str
    limit: int = 1
    tasks: frozenset[str] | None = None
    lease: int | None = None


class Reclaim(msgspec.Struct, frozen=True):
    """`ignore` holds the lease ids that the asking worker runs itself: it extends or aborts those (L-07)."""

    worker: str
    limit: int = 100
    lease: int = 30_000
    queues: tuple[str, ...] | None = None
    tasks: frozenset[str] | None = None
    ignore: frozenset[str] = frozenset()


class Receipt(StrEnum):
    """OK: written. LOST: the lease is no longer the job's; nothing changed.

    CANCELLING: the lease holds, but the job is to be cancelled. From `extend` it means "abort the handler";
    from `settle` that a change back to waiting was written as cancelled instead.
    """

    OK = "ok"
    LOST = "lost"
    CANCELLING = "cancelling"


class Extension(msgspec.Struct, frozen=True):
    """`by=None` extends by the lease the job's spec asks for."""

    lease: Lease
    by: int | None = None
    progress: bytes | None = None


class Query(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which jobs to find, by seq. `state` takes a stored state or a derived word (ready, scheduled, …)."""

    queue: str | None = None
    task: str | None = None
    state: str | None = None
    group: str | None = None
    key: str | None = None
    enqueued_from: int | None = None
    enqueued_to: int | None = None
    finished_from: int | None = None
    finished_to: int | None = None
    archived: bool | None = False  # None: both
    newest_first: bool = False
    limit: int = 100
    cursor: str | None = None

    @property
    def only_finished(self) -> bool:
        """What is live has not ended at any time."""
        return self.finished_from is not None or self.finished_to is not None


def matches(job: Job, query: Query, now: int) -> bool:
    """Does a job answer a query? Stored states and derived words are told apart by their names."""
    spec = job.spec
    wanted = None if query.state is None else ALIASES.get(query.state, query.state)
    return (
        (query.queue is None or spec.queue == query.queue)
        and (query.task is None or spec.task == query.task)
        and (wanted is None or job.state.value == wanted or word(job, now) == wanted)
        and (query.group is None or spec.group == query.group)
        and (query.key is None or spec.key == query.key)
        and (query.enqueued_from is None or job.enqueued_at >= query.enqueued_from)
        and (query.enqueued_to is None or job.enqueued_at < query.enqueued_to)
        and (query.archived is None or job.archived == query.archived)
        and (not query.only_finished or _finished_in(job, query))
    )


def _finished_in(job: Job, query: Query) -> bool:
    at = job.finished_at
    return (
        at is not None
        and (query.finished_from is None or at >= query.finished_from)
        and (query.finished_to is None or at < query.finished_to)
    )


class Page(msgspec.Struct, frozen=True):
    """`cursor` is None when the end was reached; a page may be short when the scan met its budget."""

    jobs: tuple[Job, ...]
    cursor: str | None
    scanned: int


class EventPage(msgspec.Struct, frozen=True):
    """`cursor` resumes after the last event of the page."""

    events: tuple[Event, ...]
    cursor: str


class EventSpan(msgspec.Struct, frozen=True):
    """The events after one cursor, up to and with the one that another names: they never change any more, and `until`
    is where the next span begins. `count` is an estimate on stores where only reading could tell."""

    after: str
    until: str
    count: int


class QueueCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Jobs of one queue by stored state; the derived words split `waiting`."""

    queue: str
    waiting: int = 0
    running: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    blocked: int = 0
    scheduled: int = 0
    retrying: int = 0
    ready: int = 0
    archived: int = 0
    oldest_ready: int | None = None  # milliseconds since the oldest due job became available
    paused: bool = False
    processed: int = 0  # ever completed
    died: int = 0  # ever dead


class LaneStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One lane of a pool; `holder` is the seq of the job that runs or is in backoff."""

    lane: int
    waiting: int = 0
    running: int = 0
    holder: int | None = None
    processed: int = 0
    died: int = 0
    paused: bool = False


class WorkerInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker says of itself with each beat (O-15)."""

    id: str
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    slots: int = 1
    running: tuple[str, ...] = ()  # job ids
    completed: int = 0
    failed: int = 0
    version: str = ""
    host: str = ""
    pid: int = 0
    zombies: int = 0  # handlers that were given up and still run
    shards: tuple[str, ...] = ()  # of an object store, whose jobs it takes; empty: of all


class WorkerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    info: WorkerInfo
    started_at: int
    last_beat: int
    ttl: int
    alive: bool


class Cancelled(StrEnum):
    """The answer to a cancel; a finished job answers with its state."""

    CANCELLED = "cancelled"
    RUNNING = "running"
    REQUESTED = "requested"
    COMPLETED = "completed"
    DEAD = "dead"
    NOT_FOUND = "not_found"


class Replayed(StrEnum):
    REPLAYED = "replayed"
    WAITING = "waiting"
    RUNNING = "running"
    KEY_TAKEN = "key_taken"
    NOT_FOUND = "not_found"


class Archived(StrEnum):
    DONE = "done"
    UNCHANGED = "unchanged"
    NOT_FINISHED = "not_finished"
    NOT_FOUND = "not_found"


class Maintained(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one round of upkeep did; `more` says that a bound was met and another round is worth it."""

    expired: int = 0
    retried: int = 0
    pruned: int = 0
    evicted: int = 0
    archived: int = 0
    results: int = 0
    events: int = 0
    workers: int = 0
    more: bool = False


class Partition(msgspec.Struct, frozen=True):
    """A share of all jobs, to be scanned on its own; `token` is the store's business."""

    token: str
