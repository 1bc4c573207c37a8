"""Responses that only the HTTP API has: pages, results of actions, and information about the server. The types that
they are composed of are in `views/`.

Each struct is the return type of a handler, the JSON of the response, and the schema in the OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from millrace.app.why import Reason
from millrace.domain.job import State, Word
from millrace.views.causes import CauseView
from millrace.views.job_view import EnqueuedView, ErrorView, Instant, JobSummary, Seconds
from millrace.views.queue_view import CountsView, PoolView
from millrace.views.throughput import PointView
from millrace.views.timeline import ChangeView, EventView
from millrace.views.worker_view import ScheduleView, WorkerView
from millrace.web.audit import AuditEntry
from millrace.web.requests import JobFilter


class ProblemDetails(msgspec.Struct):
    """An error response (RFC 9457): what happened, and what to do next."""

    title: str
    status: int
    code: str
    detail: str


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────


class JobList(msgspec.Struct):
    """A page of jobs. It can be short or empty if the search takes long. To get all jobs, continue from `cursor` until
    it is null.
    """

    jobs: list[JobSummary]
    cursor: str | None
    scanned: int


class JobResult(msgspec.Struct):
    """How a job ended. `finished` is false if the job has not ended yet."""

    id: str
    state: State
    finished: bool
    result: Any
    reason: str | None
    error: ErrorView | None


class FlowChange(msgspec.Struct):
    """How many jobs of a flow an action has changed."""

    id: str
    jobs: int


class EnqueuedJob(EnqueuedView):
    outcome: JobResult | None


class EnqueuedJobs(msgspec.Struct):
    jobs: list[EnqueuedJob]


class WaitReasons(msgspec.Struct):
    id: str
    state: Word
    reasons: list[Reason]


class HistoryStep(msgspec.Struct):
    event: EventView
    changes: list[ChangeView]


class JobHistory(msgspec.Struct):
    """A page of a job's history. The next page starts at `cursor`, which is null on the last page."""

    id: str
    steps: list[HistoryStep]
    cursor: str | None = None


class HistoryDifference(msgspec.Struct, rename={"first": "from", "last": "to"}):
    first: EventView
    last: EventView
    changes: list[ChangeView]


class ActionResult(msgspec.Struct):
    id: str
    answer: str
    done: bool


class BulkResult(msgspec.Struct):
    action: str
    dry_run: bool
    matched: int
    filter: (
        Annotated[JobFilter, Meta(description="With fixed times; from a dry run, without what happens later")] | None
    )
    sample: list[str]
    answers: dict[str, int]
    done: int


class CauseList(msgspec.Struct):
    """Causes of dead jobs, the most frequent first. If `complete` is false, not all dead jobs are counted yet; another
    request with `cursor` counts more.
    """

    total: int
    complete: bool
    causes: list[CauseView]
    cursor: str | None


# ── queues, workers, schedules ────────────────────────────────────────────────────────────────


class QueueList(msgspec.Struct):
    now: Instant
    queues: list[CountsView]


class PauseState(msgspec.Struct):
    queue: str
    lane: int | None
    paused: bool
    paused_lanes: list[int]


class DrainResult(msgspec.Struct):
    queue: str
    dry_run: bool
    waiting: int
    cancelled: int


class ObliterateResult(msgspec.Struct):
    queue: str
    dry_run: bool
    jobs: int
    removed: int


class PoolList(msgspec.Struct):
    pools: list[PoolView]


class WorkerList(msgspec.Struct):
    now: Instant
    workers: list[WorkerView]


class ScheduleList(msgspec.Struct):
    """A page of schedules, sorted by name. If there are more, pass `next` as `after` to read them."""

    schedules: list[ScheduleView]
    next: str | None


class RemovedSchedule(msgspec.Struct):
    name: str
    removed: bool


# ── events ────────────────────────────────────────────────────────────────────────────────────


class EventList(msgspec.Struct):
    """A page of events. The next page starts at `cursor`."""

    events: list[EventView]
    cursor: str


class LastEvent(EventView):
    """The last event of a page in a stream. `cursor` is the end of this page, where a client can resume."""

    cursor: str


class StreamMessage(msgspec.Struct, omit_defaults=True):
    """A server-sent event. The JSON in `data` depends on `event`. For `begin`, it is the cursor at which the stream
    starts. For `event`, it is an event of a job. For `lost`, it is the number of events that were removed before they
    could be sent (null if unknown), and the cursor at which the stream continues. For `unavailable`, it is the error of
    the store.
    """

    event: Literal["begin", "event", "lost", "unavailable"]
    data: str
    id: str = ""
    retry: int = 0


# ── the server ────────────────────────────────────────────────────────────────────────────────


class Overview(msgspec.Struct):
    """Totals over all queues, and the number of workers."""

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


class Throughput(msgspec.Struct):
    """The numbers of jobs that completed and died in each interval of `step` seconds, oldest first. Values between two
    readings of the counters are interpolated. `unfinished` is the current interval, up to now.
    """

    now: Instant
    step: Seconds
    points: list[PointView]
    unfinished: PointView


class RedactionRule(msgspec.Struct):
    """The rule for hidden fields: a field is hidden if its name contains one of the phrases, compared word by word."""

    phrases: list[str]
    shown_as: str
    counts: list[str] = []  # names that contain a phrase but only count something: not hidden


class AuditLog(msgspec.Struct):
    entries: list[AuditEntry]


class Health(msgspec.Struct):
    status: Literal["ok", "down"]
    version: str


class CallerInfo(msgspec.Struct):
    role: Literal["viewer", "operator", "admin"]
    name: str
