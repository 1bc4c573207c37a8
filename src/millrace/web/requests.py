"""The types of query parameters and request bodies. They validate requests and define the OpenAPI schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from millrace.domain.event import Kind
from millrace.domain.job import OnDependency, OnHit, Scope
from millrace.domain.rules.check import MAX_ID_CHARACTERS, MAX_TAG_CHARACTERS, MAX_TAGS
from millrace.domain.rules.cron import Missed
from millrace.domain.settings import SLOWEST_RATE

Name = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9._-]{1,128}$", description="Letters, digits, dots, underscores, hyphens")
]
Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARACTERS, pattern=r"^[^\u0000]+$")]
Tag = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_TAG_CHARACTERS, pattern=r"^[^\s,\u0000]+$", description="A word, without commas"),
]
CENTURY = 100 * 365 * 86_400
Seconds = Annotated[float, Meta(ge=0, le=CENTURY)]
Span = (
    Seconds
    | Annotated[
        str, Meta(pattern=r"^([0-9]{1,6}(ms|s|m|h|d))+$", max_length=40, description="Text such as 10m, 1h30m, 250ms")
    ]
)
When = Annotated[
    str,
    Meta(
        max_length=40,
        pattern=r"^(([0-9]{1,6}(ms|s|m|h|d|w))+"
        r"|[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?)$",
        description="How long ago (90s, 15m, 2d), or a date and time (2026-01-31T14:30Z)",
    ),
]
Cursor = Annotated[str, Meta(min_length=1, max_length=2_000, description="As an earlier answer gave it")]
Place = Annotated[str, Meta(pattern=r"^([0-9]{1,9}:)?[0-9]{1,9}$", description="An event's n, or generation:n")]
Fingerprint = Annotated[str, Meta(pattern=r"^[0-9a-f]{1,64}$", description="A fingerprint from /api/dead")]
Limit = Annotated[int, Meta(ge=1, le=500)]
Lane = Annotated[int, Meta(ge=0, le=1_000_000)]
Status = Literal[
    "waiting",
    "ready",
    "scheduled",
    "retrying",
    "blocked",
    "running",
    "completed",
    "dead",
    "cancelled",
    "archived",
    "pending",
    "queued",
    "active",
    "processing",
    "delayed",
    "failing",
    "failed",
    "dlq",
]


class JobFilter(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Filters that select jobs. A job must match all of them."""

    status: Status | None = None
    queue: Name | None = None
    task: Name | None = None
    group: Id | None = None
    key: Id | None = None
    tag: Annotated[Tag, Meta(description="One of its tags; no store has an index of tags")] | None = None
    since: When | None = None
    until: When | None = None
    finished_from: When | None = None
    finished_to: When | None = None
    error: Fingerprint | None = None


class ListQuery(JobFilter, forbid_unknown_fields=True):
    id: Annotated[
        list[Id], Meta(max_length=100, description="Only these jobs, in this order; filters do not apply")
    ] = []
    limit: Limit = 50
    cursor: Cursor | None = None
    after: Annotated[Id, Meta(description="Only jobs that run after this one")] | None = None
    oldest: Annotated[bool, Meta(description="Oldest first; otherwise newest first")] = False
    sort: Annotated[
        Literal["enqueued", "changed"],
        Meta(description="By when it was enqueued; or what changed last first, as far back as events are kept"),
    ] = "enqueued"
    all: Annotated[bool, Meta(description="Archived jobs too")] = False


class WaitQuery(msgspec.Struct, forbid_unknown_fields=True):
    wait: Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for the result")] = 0


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    limit: Limit = 500
    cursor: (
        Annotated[str, Meta(pattern=r"^[0-9]{1,9}:[0-9]{1,9}$", description="As an earlier answer gave it")] | None
    ) = None


class DiffQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"first": "from", "last": "to"}):
    first: Place | None = None
    last: Place | None = None


class DeadQuery(JobFilter, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


class EventFilter(msgspec.Struct, forbid_unknown_fields=True):
    queue: Name | None = None
    task: Name | None = None
    job: Id | None = None
    kind: list[Kind] = []


class EventsQuery(EventFilter, forbid_unknown_fields=True):
    cursor: Annotated[Cursor | None, Meta(description='After this one; "end" is now; left out: the oldest')] = None
    limit: Limit = 100


class StreamQuery(EventFilter, forbid_unknown_fields=True):
    cursor: Annotated[Cursor | None, Meta(description="After this one; without it, from now")] = None


class LatestQuery(msgspec.Struct, forbid_unknown_fields=True):
    limit: Limit = 100


class JobFields(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A task, its payload and options. If this server has the code of the task, omitted options have its defaults."""

    task: Name
    payload: dict[str, Any] = {}
    queue: Name | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=0, le=15)] | UnsetType = UNSET
    delay: Span | UnsetType = UNSET
    expires: Span | UnsetType = UNSET
    group: Id | UnsetType = UNSET
    key: Id | UnsetType = UNSET
    scope: Scope | UnsetType = UNSET
    window: Span | UnsetType = UNSET
    on_hit: OnHit | UnsetType = UNSET
    reuse: bool | UnsetType = UNSET
    rerun_expired: bool | UnsetType = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    timeout: Span | UnsetType = UNSET
    keep_result: Span | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    tags: Annotated[list[Tag], Meta(max_length=MAX_TAGS)] | UnsetType = UNSET
    unchecked: Annotated[bool, Meta(description="Store it as it is, even where the task's code is known")] = False


class NewJob(JobFields, forbid_unknown_fields=True, omit_defaults=True):
    """A job to enqueue. If this server has the code of the task, omitted options have the task's defaults."""

    id: Id | UnsetType = UNSET
    after: Annotated[list[Id], Meta(max_length=1_000)] | UnsetType = UNSET
    on_dependency: OnDependency | UnsetType = UNSET
    allow_missing: bool | UnsetType = UNSET


class NewSchedule(JobFields, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule to store: the jobs of its ticks, and either `cron` or `every`."""

    cron: Annotated[str, Meta(max_length=500, description="Such as 0 8 * * *")] | UnsetType = UNSET
    every: Span | UnsetType = UNSET
    tz: Annotated[str, Meta(max_length=100, description="A time zone such as Europe/Berlin")] = "UTC"
    missed: Missed = "once"
    grace: Annotated[Span, Meta(description="How late a tick may be without being missed")] | UnsetType = UNSET


def job_options(new: JobFields) -> dict[str, Any]:
    """Return the options of jobs that the client sent, without task, payload and `unchecked`."""
    others = {"task", "payload", "unchecked", *SCHEDULE_TIMES}
    return {name: value for name, value in given(new).items() if name not in others}


def schedule_times(new: NewSchedule) -> dict[str, Any]:
    """Return what the client sent about the ticks."""
    return {name: value for name, value in given(new).items() if name in SCHEDULE_TIMES}


class SchedulesQuery(msgspec.Struct, forbid_unknown_fields=True):
    limit: Limit = 100
    after: Annotated[Name | None, Meta(description="Only schedules after this name")] = None


class NewJobs(msgspec.Struct, forbid_unknown_fields=True):
    """Jobs to enqueue together: all are stored, or none."""

    jobs: Annotated[list[NewJob], Meta(min_length=1, max_length=1_000)]


class Cancel(msgspec.Struct, forbid_unknown_fields=True):
    running: Annotated[
        Literal["refuse", "request"],
        Meta(description="A running job is left alone, or asked to stop"),
    ] = "refuse"


class Replay(msgspec.Struct, forbid_unknown_fields=True):
    children: Annotated[bool, Meta(description="Also the jobs that died because this one had failed")] = True


class Bulk(msgspec.Struct, forbid_unknown_fields=True, rename={"chosen": "filter"}):
    """One action on many jobs, selected by `ids` or by a `filter`. With a filter, send a dry run first. Then send the
    request again, with two values from the response: its `filter` as `filter`, and its `matched` as `expect`.
    """

    action: Literal["cancel", "replay", "archive", "unarchive", "delete"]
    ids: Annotated[list[Id], Meta(min_length=1, max_length=1_000)] | None = None
    chosen: JobFilter | None = None
    dry_run: bool = True
    expect: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    running: Literal["refuse", "request"] = "refuse"
    children: Annotated[bool, Meta(description="Of a replay: also the jobs that died because one of these failed")] = (
        True
    )


class OfLane(msgspec.Struct, forbid_unknown_fields=True):
    lane: Lane | None = None


class DrainQueue(msgspec.Struct, forbid_unknown_fields=True):
    lane: Lane | None = None
    dry_run: bool = True


class Obliterate(msgspec.Struct, forbid_unknown_fields=True):
    """A request to delete all jobs of a queue.

    `confirm` must be the queue's name, because this cannot be undone. A `dry_run` does not need it.
    """

    confirm: Name | None = None
    dry_run: bool = True


class QueueChange(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The settings of a queue to change. null removes a limit."""

    max_running: Annotated[int, Meta(ge=0, le=1000000000)] | UnsetType | None = UNSET
    rate: Annotated[float, Meta(ge=SLOWEST_RATE, le=1000000000)] | UnsetType | None = UNSET
    burst: Annotated[int, Meta(ge=1, le=1000000000)] | UnsetType | None = UNSET
    max_depth: Annotated[int, Meta(ge=0, le=1000000000)] | UnsetType | None = UNSET
    fair_share: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    on_empty: Name | UnsetType | None = UNSET
    keep_completed: Span | UnsetType | None = UNSET
    keep_dead: Span | UnsetType | None = UNSET
    dead_cap: Annotated[int, Meta(ge=0, le=1000000000)] | UnsetType | None = UNSET
    dead_overflow: Literal["evict", "archive", "reject"] | UnsetType = UNSET
    auto_retries: Annotated[int, Meta(ge=0, le=1_000_000)] | UnsetType = UNSET
    auto_retry_delay: Span | UnsetType = UNSET


SCHEDULE_TIMES = ("cron", "every", "tz", "missed", "grace")

# What a pattern means, for the message about a value that does not match it.
IN_WORDS = {
    str(meta.pattern): str(meta.description)
    for kind in (Name, Tag, get_args(Span)[1], When, Place, Fingerprint)
    for meta in get_args(kind)[1:]
}


def given(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a request by name. Fields that the client did not send are left out, unless they have a
    default.
    """
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if value is not UNSET}
