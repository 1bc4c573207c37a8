"""What the API answers, as types for the OpenAPI document.

The answers themselves are made by runtime/shape.py, where the command line has its own from; the tests hold the two
together, and a fuzzer checks every answer against these.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from millrace.domain.job import OnDependency
from millrace.runtime.why import Code

Instant = Annotated[str, Meta(description="ISO 8601, in UTC", min_length=1)]
Seconds = Annotated[float, Meta(description="Seconds")]
Word = Literal["blocked", "scheduled", "retrying", "ready", "running", "completed", "dead", "cancelled"]
Stored = Literal["waiting", "running", "completed", "dead", "cancelled"]


class Problem(msgspec.Struct):
    """A refusal (RFC 9457): what happened, and what to do next."""

    title: str
    status: int
    code: str
    detail: str


class Failure(msgspec.Struct):
    type: str
    message: str
    traceback: str


class ListedJob(msgspec.Struct):
    id: str
    task: str
    queue: str
    state: Word
    priority: int
    group: str | None
    key: str | None
    lane: int | None
    seq: int
    generation: int
    attempt: int
    failures: int
    max_attempts: int | None
    archived: bool
    enqueued_at: Instant
    available_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    worker: str | None
    lease_until: Instant | None
    timeout: Seconds | None
    blocked_by: int
    reason: str | None
    error: Failure | None


class Attempt(msgspec.Struct):
    attempt: int
    at: Instant
    duration: Seconds | None
    worker: str | None
    error: Failure | None


class Job(ListedJob):
    payload: Any
    result: Any
    has_result: bool
    result_expired: bool
    progress: Any
    serde: str
    headers: dict[str, str]
    after: list[str]
    on_dependency: OnDependency
    stalls: int
    snoozes: int
    releases: int
    replays: int
    cancel_requested: bool
    expires_at: Instant | None
    next_retry_at: Instant | None
    lease: Seconds | None
    attempts: list[Attempt]
    fingerprint: Annotated[str, Meta(description="Of a dead job: the cause, as in /api/dead")] | None


class Jobs(msgspec.Struct):
    """A page may be short, even empty, when looking for it was much work: go on from its cursor while there is one."""

    jobs: list[ListedJob]
    cursor: str | None
    scanned: int


class Enqueued(msgspec.Struct):
    """A job that is there already is an answer, not an error: look at `status`."""

    status: Literal["queued", "duplicate", "completed"]
    id: str
    seq: int
    generation: int
    state: Stored
    by: Literal["id", "key"] | None
    payload_differs: bool
    lane: int | None
    position: int | None
    depth: int | None
    outcome: Outcome | None


class EnqueuedMany(msgspec.Struct):
    jobs: list[Enqueued]


class Outcome(msgspec.Struct):
    id: str
    state: Stored
    finished: bool
    result: Any
    reason: str | None
    error: Failure | None


class Reason(msgspec.Struct):
    code: Code
    text: str
    command: str | None


class Why(msgspec.Struct):
    id: str
    state: Word
    reasons: list[Reason]


class Event(msgspec.Struct):
    job: str
    seq: int
    generation: int
    n: int
    kind: str
    at: Instant
    queue: str
    task: str
    state: str
    attempt: int
    failures: int
    worker: str | None
    lease: str | None
    delay: Seconds | None
    duration: Seconds | None
    reason: str | None
    error: Failure | None


class Changed(msgspec.Struct):
    fact: str
    before: Any
    after: Any


class Step(msgspec.Struct):
    event: Event
    changes: list[Changed]


class History(msgspec.Struct):
    """`cursor` resumes after the last step of the page; null: there are no more."""

    id: str
    steps: list[Step]
    cursor: str | None = None


class Difference(msgspec.Struct, rename={"first": "from", "last": "to"}):
    first: Event
    last: Event
    changes: list[Changed]


class Acted(msgspec.Struct):
    id: str
    answer: str
    done: bool


class Bulk(msgspec.Struct):
    action: str
    dry_run: bool
    matched: int
    sample: list[str]
    answers: dict[str, int]
    done: int


class Lane(msgspec.Struct):
    lane: int
    waiting: int
    running: int
    holder: int | None
    processed: int
    died: int
    paused: bool


class Settings(msgspec.Struct):
    max_running: int | None
    rate: float | None
    burst: int | None
    paused: bool
    paused_lanes: list[int]
    lanes: int | None
    max_depth: int | None
    fair_share: float
    on_empty: str | None
    keep_completed: Seconds | None
    keep_dead: Seconds | None
    dead_cap: int | None
    dead_overflow: str
    auto_retries: int
    auto_retry_delay: Seconds


class Counts(msgspec.Struct):
    queue: str
    waiting: int
    running: int
    completed: int
    dead: int
    cancelled: int
    blocked: int
    scheduled: int
    retrying: int
    ready: int
    archived: int
    oldest_ready: Seconds | None
    paused: bool
    processed: int
    died: int


class Queues(msgspec.Struct):
    now: Instant
    queues: list[Counts]


class Queue(Counts):
    settings: Settings
    lanes: list[Lane]


class Paused(msgspec.Struct):
    queue: str
    lane: int | None
    paused: bool
    paused_lanes: list[int]


class Drained(msgspec.Struct):
    queue: str
    dry_run: bool
    waiting: int
    cancelled: int


class Obliterated(msgspec.Struct):
    queue: str
    dry_run: bool
    jobs: int
    removed: int


class PoolLane(msgspec.Struct):
    lane: int
    state: Literal["paused", "processing", "idle"]
    waiting: int
    running: int
    processed: int
    dead: int
    current: int | None
    retrying: int | None


class Pool(msgspec.Struct):
    pool: str
    state: Literal["paused", "processing", "idle"]
    paused: bool
    max_depth: int | None
    waiting: int
    running: int
    processed: int
    dead: int
    lanes: list[PoolLane]


class Pools(msgspec.Struct):
    pools: list[Pool]


class Cause(msgspec.Struct):
    fingerprint: str
    count: int
    task: str
    reason: str | None
    error: str
    first_at: Instant | None
    last_at: Instant | None
    queues: dict[str, int]
    example: str


class Dead(msgspec.Struct):
    """Causes of death, the most frequent first. `complete` is false when there are more than were looked at."""

    total: int
    complete: bool
    causes: list[Cause]


class Worker(msgspec.Struct):
    id: str
    alive: bool
    host: str
    pid: int
    version: str
    queues: list[str]
    tasks: list[str]
    slots: int
    shards: list[str]
    running: list[str]
    completed: int
    failed: int
    started_at: Instant
    last_beat: Instant
    ttl: Seconds


class Workers(msgspec.Struct):
    now: Instant
    workers: list[Worker]


class Schedule(msgspec.Struct):
    name: str
    expression: str
    tz: str
    task: str
    queue: str
    missed: str
    grace: Seconds
    digest: str
    mark: Instant
    rev: int
    last_tick: Instant | None
    next_tick: Instant | None
    paused: bool


class Schedules(msgspec.Struct):
    schedules: list[Schedule]


class Forgotten(msgspec.Struct):
    name: str
    forgotten: bool


class Events(msgspec.Struct):
    """`cursor` resumes after the last event of the page."""

    events: list[Event]
    cursor: str


class Message(msgspec.Struct, omit_defaults=True):
    """A server-sent event. `data` is JSON: an event of a job; at the beginning the cursor, after a gap how much was
    lost, in trouble what the store says."""

    event: Literal["begin", "event", "lost", "trouble"]
    data: str
    id: str = ""
    retry: int = 0


class Overview(msgspec.Struct):
    """All queues together."""

    now: Instant
    store: str
    version: str
    queues: int
    waiting: int
    ready: int
    scheduled: int
    retrying: int
    blocked: int
    running: int
    completed: int
    dead: int
    cancelled: int
    archived: int
    processed: int
    died: int
    oldest_ready: Seconds | None
    workers: int
    stale_workers: int


class Point(msgspec.Struct):
    """What happened in the step that ends at `at`."""

    at: Instant
    completed: float
    died: float


class Throughput(msgspec.Struct):
    """A step without anybody looking has its share of what the counters grew by. `unfinished` is the step that is not
    over yet, until now."""

    now: Instant
    step: Seconds
    points: list[Point]
    unfinished: Point


class Redaction(msgspec.Struct):
    """The rule by which fields are hidden: a field is, when one of the phrases stands among the words of its name."""

    phrases: list[str]
    shown_as: str
    counts: list[str] = []  # what sounds like a phrase, and only counts: not hidden


class AuditEntry(msgspec.Struct):
    at: Instant
    who: str
    client: str
    action: str
    path: str
    status: int
    facts: dict[str, Any]


class AuditLog(msgspec.Struct):
    entries: list[AuditEntry]


class Health(msgspec.Struct):
    status: Literal["ok", "down"]
    version: str


class Who(msgspec.Struct):
    role: Literal["viewer", "operator", "admin"]
    name: str
