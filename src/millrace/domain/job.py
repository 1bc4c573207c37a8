"""Jobs: what the producer enqueues (`Spec`) and the current record in the store (`Job`).

A spec never changes after enqueue. The functions of `rules/transition.py` change the state of a job. Instants are
integer milliseconds of the store's clock; durations are integer milliseconds.

Five states are stored. Users see eight words: the function `word` splits the state `waiting` into blocked, scheduled,
retrying and ready.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

import msgspec

from millrace.domain.instant import as_datetime
from millrace.domain.outcome import Failure
from millrace.domain.retry import DEFAULT_RETRY, RetryPolicy

if TYPE_CHECKING:  # only type checkers need the default: `Spec` alone is `Spec[Any]`
    from typing_extensions import TypeVar

    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class State(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"


FINISHED = frozenset({State.COMPLETED, State.DEAD, State.CANCELLED})
FAILED = frozenset({State.DEAD, State.CANCELLED})
LIVE = frozenset({State.WAITING, State.RUNNING})

Scope = Literal["live", "window", "retained"]
OnHit = Literal["keep", "replace", "extend", "raise"]
OnDependency = Literal["bury", "run", "wait"]


class Spec(msgspec.Struct, Generic[R_co], frozen=True, gc=False, omit_defaults=True):
    """A job as its producer enqueues it. `token` identifies the enqueue call, so that repeating the call is safe.

    R_co is the type of the job's result.
    """

    id: str
    task: str
    queue: str = "default"
    payload: bytes = b""
    serde: str = "json"  # of payload and result; "payload/result" where they differ
    token: str = ""
    priority: int = 0
    delay: int = 0
    expires: int | None = None  # a waiting job dies `ttl_expired` this long after it was enqueued
    group: str | None = None
    retry_blocks: bool = True  # while this job is in backoff, no other job of its line runs
    key: str | None = None
    scope: Scope = "live"
    window: int = 0
    on_hit: OnHit = "keep"
    reuse: bool = True  # a dead, cancelled or pruned id may be enqueued again
    rerun_expired: bool = False  # a completed id whose result has expired may be enqueued again
    after: tuple[str, ...] = ()
    on_dependency: OnDependency = "bury"
    allow_missing: bool = False
    max_attempts: int | None = 4
    max_stalls: int | None = 3
    retry: RetryPolicy = DEFAULT_RETRY
    timeout: int | None = 300 * SECOND
    on_timeout: Literal["retry", "bury"] = "retry"
    lease: int = 30 * SECOND
    keep_result: int | None = HOUR
    on_dead_letter: str | None = None
    hook: bool = False  # enqueued by another job's end: exempt from lanes, depth and `on_empty`
    headers: dict[str, str] | None = None
    origin: int = 0  # which of the options with defaults are explicit: domain/rules/precedence.py
    tags: tuple[str, ...] = ()  # words by which people find the job

    @property
    def output(self) -> R_co:
        """The job's future result, as an argument of a job that runs after it: `album.spec(photo.output)`.

        This is the spec itself. The worker replaces it by the result before it runs the other job.
        """
        return cast("R_co", self)

    @property
    def payload_serde(self) -> str:
        """The name of the serde of the payload."""
        return self.serde.partition("/")[0]

    @property
    def result_serde(self) -> str:
        """The name of the serde of the result."""
        return self.serde.rpartition("/")[2]


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to settle one run of a job.

    Every claim and reclaim assigns a new id, so the store can refuse a settle under an old lease.
    """

    job: str
    seq: int
    id: str


class Attempt(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One failed run, stored with the job. A job keeps at most 50 of them: the first and the latest 49."""

    attempt: int
    at: int
    error: Failure | None = None
    duration: int | None = None
    worker: str | None = None

    @property
    def time(self) -> datetime:
        """The instant `at` as an aware datetime in UTC."""
        return as_datetime(self.at)


class Job(msgspec.Struct, gc=False, omit_defaults=True):
    """The record of a job. A store returns copies of its records, which the caller may change."""

    spec: Spec
    seq: int
    generation: int
    state: State
    enqueued_at: int
    available_at: int
    expires_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    attempt: int = 0
    failures: int = 0
    stalls: int = 0
    snoozes: int = 0
    releases: int = 0
    replays: int = 0
    auto_retries: int = 0
    events: int = 0
    blocked: int = 0  # number of parents that have not ended
    lane: int | None = None
    open: bool = False  # claimable as soon as it is due: not blocked, and first of its line if it has one
    in_line: bool = False  # waiting in its line, so that it can become the first
    holds: bool = False  # in backoff, and no other job of its line may run
    worker: str | None = None
    lease_id: str | None = None
    lease_until: int | None = None
    cancel_requested: bool = False
    archived: bool = False
    result: bytes | None = None
    result_until: int | None = None
    result_expired: bool = False
    error: Failure | None = None
    reason: str | None = None
    next_retry_at: int | None = None
    attempts: tuple[Attempt, ...] = ()
    progress: bytes | None = None
    lost_worker: bool | None = None  # set by `reclaim` on the jobs it returns: has the worker stopped its heartbeat?
    failed_parent: str | None = None  # the parent whose failure buried this job; replaying it replays this job too
    has_dependents: bool = False  # other jobs depend on it; its result is kept while one of them is live
    carried: tuple[str, ...] | None = None  # ids of the latest jobs that its runs have enqueued with their end
    log: bytes | None = None  # the lines of `ctx.log`, if the task keeps them (app/handler/job_log.py)

    @property
    def id(self) -> str:
        """The job's id."""
        return self.spec.id

    @property
    def queue(self) -> str:
        """The job's queue."""
        return self.spec.queue

    @property
    def task(self) -> str:
        """The name of the job's task."""
        return self.spec.task

    @property
    def payload(self) -> bytes:
        """The encoded arguments."""
        return self.spec.payload

    @property
    def priority(self) -> int:
        """0 to 15, higher first."""
        return self.spec.priority

    @property
    def line(self) -> str | None:
        """The name of the job's line (its lane or group) within its queue; None if the job has no line."""
        if self.lane is not None:
            return lane_line(self.lane)
        return None if self.spec.group is None or self.spec.hook else group_line(self.spec.group)

    @property
    def lease(self) -> Lease:
        """The lease of the run. Raises ValueError if the job is not running."""
        if self.lease_id is None:
            raise ValueError(f"job {self.id!r} is not running, so it has no lease")
        return Lease(self.spec.id, self.seq, self.lease_id)

    @property
    def fence(self) -> tuple[int, int]:
        """The fencing token (seq, attempt) for side effects of a handler. It increases with every claim."""
        return (self.seq, self.attempt)


def is_expired(job: Job, now: int) -> bool:
    """Return whether a waiting job has waited longer than its `expires` allows."""
    return job.expires_at is not None and job.expires_at <= now


def is_lease_expired(job: Job, now: int) -> bool:
    """Return whether the lease of a running job has expired, so that any worker may reclaim the job."""
    return job.lease_until is not None and job.lease_until < now


def has_result(job: Job, now: int) -> bool:
    """Return whether the result of a completed job can still be read.

    If the job has dependents, its result can be read until all dependents have ended and upkeep has deleted it. Any
    other result can be read only until `result_until`, even if upkeep has not deleted it yet.
    """
    if job.result_expired:
        return False
    return job.result_until is None or job.result_until > now or job.has_dependents


def is_kept_for_children(job: Job) -> bool:
    """Return whether the record of a completed job is kept, whatever `keep_completed` says, because a child needs its
    result.

    Upkeep deletes the result when the last child has ended. Then the record can be removed too.
    """
    return job.has_dependents and job.result_until is not None


def lane_line(lane: int) -> str:
    return f"l:{lane}"


def group_line(group: str) -> str:
    return f"g:{group}"


Word = Literal["blocked", "scheduled", "retrying", "ready", "running", "completed", "dead", "cancelled"]


def word(job: Job, now: int) -> Word:
    """Return the state that users see: the stored state, or one of four words for a job that is waiting."""
    if job.state is not State.WAITING:
        return job.state.value  # type: ignore[return-value]  # the values of State are among these words
    if job.blocked:
        return "blocked"
    if job.available_at <= now:
        return "ready"
    return "retrying" if job.failures else "scheduled"


ALIASES: dict[str, str] = {
    "pending": "waiting",
    "queued": "ready",
    "active": "running",
    "processing": "running",
    "delayed": "scheduled",
    "failing": "retrying",
    "failed": "dead",
    "dlq": "dead",
}
