"""Jobs: what was asked for (`Spec`), and what has become of it (`Job`).

A spec never changes after enqueue; the facts of a job change only through `transition`. Instants are
integer milliseconds of the store's clock, durations integer milliseconds.

Five states are stored. What people see adds words derived from the facts of a waiting job: `word`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from millrace.domain.outcome import Failure
from millrace.domain.retry import DEFAULT_RETRY, RetryPolicy

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
LIVE = frozenset({State.WAITING, State.RUNNING})

Scope = Literal["live", "window", "retained"]
OnHit = Literal["keep", "replace", "extend", "raise"]
OnDependency = Literal["bury", "run", "wait"]


class Spec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a producer asks for. `token` names this very enqueue, so that asking again is safe (BW-14)."""

    id: str
    task: str
    queue: str = "default"
    payload: bytes = b""
    serde: str = "json"
    token: str = ""
    priority: int = 0
    delay: int = 0
    expires: int | None = None  # a waiting job dies `ttl_expired` this long after it was enqueued
    group: str | None = None
    retry_blocks: bool = True  # a member in backoff keeps its line closed
    key: str | None = None
    scope: Scope = "live"
    window: int = 0
    on_hit: OnHit = "keep"
    reuse: bool = True  # a dead, cancelled or pruned id may be enqueued again
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
    hook: bool = False  # carried by another job's end: exempt from lanes, depth and `on_empty`
    headers: dict[str, str] | None = None


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to settle one job: drawn anew at every claim and takeover, so it is the fence (BL-02)."""

    job: str
    seq: int
    id: str


class Attempt(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One failed run, as kept with the job (first and last kept when there are over 50, BE-16)."""

    attempt: int
    at: int
    error: Failure | None = None
    duration: int | None = None
    worker: str | None = None


class Job(msgspec.Struct, gc=False, omit_defaults=True):
    """A spec and its facts. Whoever is handed one owns that copy; the store's own is elsewhere."""

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
    blocked: int = 0  # open parents
    lane: int | None = None
    open: bool = False  # claimable as soon as it is due: unblocked, and elected if it has a line
    in_line: bool = False  # waiting in its line, so that it can be elected
    holds: bool = False  # in backoff and keeping its line closed
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
    lost_worker: bool | None = None  # set on what `reclaim` hands out: was the holder gone too?

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def queue(self) -> str:
        return self.spec.queue

    @property
    def task(self) -> str:
        return self.spec.task

    @property
    def payload(self) -> bytes:
        return self.spec.payload

    @property
    def priority(self) -> int:
        return self.spec.priority

    @property
    def line(self) -> str | None:
        """The ordered line it belongs to inside its queue, if any: a pool's lane or a group."""
        if self.lane is not None:
            return lane_line(self.lane)
        return None if self.spec.group is None or self.spec.hook else "g:" + self.spec.group

    @property
    def lease(self) -> Lease:
        if self.lease_id is None:
            raise ValueError(f"job {self.id!r} is not running, so it has no lease")
        return Lease(self.spec.id, self.seq, self.lease_id)

    @property
    def fence(self) -> tuple[int, int]:
        """The fencing token for a handler's own side effects: it grows with every claim (X1)."""
        return (self.seq, self.attempt)


def lane_line(lane: int) -> str:
    return f"l:{lane}"


Word = Literal["blocked", "scheduled", "retrying", "ready", "running", "completed", "dead", "cancelled"]


def word(job: Job, now: int) -> Word:
    """The state as people see it."""
    if job.state is not State.WAITING:
        return job.state.value  # type: ignore[return-value]  # a StrEnum's values are these very words
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
