"""Arguments and return values of store methods. A method takes many items and returns one answer per item, in order."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from millrace.domain.event import Event
from millrace.domain.job import ALIASES, Job, Lease, State, word


class Enqueued(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The answer for one enqueued spec. A duplicate is reported by `status`, not by an exception."""

    status: Literal["queued", "duplicate", "completed"]
    id: str  # of the job that this enqueue leads to; if another job holds the key, of that job
    seq: int
    generation: int
    state: State
    by: Literal["id", "key"] | None = None
    result: bytes | None = None
    result_expired: bool = False
    payload_differs: bool = False  # the existing job has another payload; False if its record is gone
    lane: int | None = None
    position: int | None = None
    depth: int | None = None


class Claim(msgspec.Struct, frozen=True):
    """Arguments of `claim`. `tasks=None` claims any task. `lease` is the lease duration; None uses that of each job's
    spec.
    """

    queues: tuple[str, ...]
    worker: str
    limit: int = 1
    tasks: frozenset[str] | None = None
    lease: int | None = None


class Reclaim(msgspec.Struct, frozen=True):
    """Arguments of `reclaim`. Leases whose id is in `ignore` are not reclaimed: a worker lists its own leases there."""

    worker: str
    limit: int = 100
    lease: int = 30_000
    queues: tuple[str, ...] | None = None
    tasks: frozenset[str] | None = None
    ignore: frozenset[str] = frozenset()


class Receipt(StrEnum):
    """The answer to a settle or an extend.

    OK: written. LOST: the job no longer has this lease, and nothing was changed. CANCELLING: written, and the job is
    being cancelled. From `extend` it means that the worker should stop the handler; from `settle`, that the job is
    cancelled now, as requested.
    """

    OK = "ok"
    LOST = "lost"
    CANCELLING = "cancelling"


class Extension(msgspec.Struct, frozen=True):
    """One lease to extend, and the progress and the log of the run, if they have changed.

    `by` is the time in milliseconds from now until the new expiry. None means the lease duration in the job's spec.
    """

    lease: Lease
    by: int | None = None
    progress: bytes | None = None
    log: bytes | None = None


class Query(msgspec.Struct, frozen=True, omit_defaults=True):
    """A search for jobs, in order of seq. `state` is a stored state or a word that users see (ready, scheduled, …)."""

    queue: str | None = None
    task: str | None = None
    state: str | None = None
    group: str | None = None
    key: str | None = None
    tag: str | None = None
    enqueued_from: int | None = None
    enqueued_to: int | None = None
    finished_from: int | None = None
    finished_to: int | None = None
    archived: bool | None = False  # None: both
    newest_first: bool = False
    limit: int = 100
    cursor: str | None = None
    by_change: bool = False  # order by last change, newest first; for `Jobs.page`, not for `Store.find`

    @property
    def only_finished(self) -> bool:
        """Whether the query has a bound on `finished_at`, so that only finished jobs match."""
        return self.finished_from is not None or self.finished_to is not None


def matches(job: Job, query: Query, now: int) -> bool:
    """Return whether a job matches a query. `query.state` can be the stored state or the word that users see."""
    spec = job.spec
    wanted = None if query.state is None else ALIASES.get(query.state, query.state)
    return (
        (query.queue is None or spec.queue == query.queue)
        and (query.task is None or spec.task == query.task)
        and (wanted is None or job.state.value == wanted or word(job, now) == wanted)
        and (query.group is None or spec.group == query.group)
        and (query.key is None or spec.key == query.key)
        and (query.tag is None or query.tag in spec.tags)
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


class JobSelection(msgspec.Struct, frozen=True):
    """What a scan returns: the jobs that match `query`, or all jobs.

    The `limit`, `cursor` and order of the query are ignored. Without `payloads` or `results`, a store that keeps them
    apart from the job does not read them; a job then has no payload or no result.
    """

    query: Query | None = None
    payloads: bool = True
    results: bool = True


EVERYTHING = JobSelection()


class Page(msgspec.Struct, frozen=True):
    """A page of jobs. `cursor` is None on the last page only.

    Any page may have fewer jobs than the limit, because a store limits the number of rows that it reads per page.
    """

    jobs: tuple[Job, ...]
    cursor: str | None
    scanned: int


class EventPage(msgspec.Struct, frozen=True):
    """A page of events. `cursor` is the position after the last event."""

    events: tuple[Event, ...]
    cursor: str


class EventSpan(msgspec.Struct, frozen=True):
    """A fixed part of the feed: the events between the cursors `after` and `until`. The next span starts at `until`.

    `count` is the number of events. On some stores it is an estimate, because an exact count would read all events.
    """

    after: str
    until: str
    count: int


class QueueCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The number of jobs of one queue in each state. `waiting` = blocked + scheduled + retrying + ready."""

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
    """The status of one lane of a pool. `holder` is the seq of the job that is running, or in backoff, in the lane."""

    lane: int
    waiting: int = 0
    running: int = 0
    holder: int | None = None
    processed: int = 0
    died: int = 0
    paused: bool = False


class WorkerInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker reports about itself with each heartbeat."""

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
    zombies: int = 0  # handlers that did not stop when asked and still run
    shards: tuple[str, ...] = ()  # the shards of an object store that it serves; empty means all


class WorkerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    info: WorkerInfo
    started_at: int
    last_beat: int
    ttl: int
    alive: bool  # when the record was read

    def is_alive(self, now: int) -> bool:
        """Return whether the worker has sent a heartbeat within its `ttl`."""
        return self.last_beat + self.ttl >= now


class Cancelled(StrEnum):
    """The result of cancelling one job.

    CANCELLED: the job is cancelled, now or by an earlier call. RUNNING: it runs, and no stop was requested. REQUESTED:
    it runs, and was requested to stop. COMPLETED, DEAD: it had already finished, and nothing was changed.
    """

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


class Deleted(StrEnum):
    DELETED = "deleted"
    NOT_FINISHED = "not_finished"
    NOT_FOUND = "not_found"


class Maintained(msgspec.Struct, frozen=True, omit_defaults=True):
    """The numbers of changes of one round of upkeep. `more` is True if the round reached its limit."""

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
    """A part of the store's jobs that can be scanned separately. Only the store interprets `token`."""

    token: str
