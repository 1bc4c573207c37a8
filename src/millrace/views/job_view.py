"""Jobs as JSON for the command line and the web API. The structs are also the OpenAPI schema.

Instants are ISO 8601 in UTC, durations are seconds, states are the words of `domain.job.word`. Scripts depend on these
fields: do not rename them; new ones may be added. JavaScript is exact only up to 2^53, so sequence numbers are text.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from millrace.app.flows.members import ENQUEUED_BY, flow_of
from millrace.app.format import instant
from millrace.app.handler.job_log import LogLine, read_log
from millrace.app.telemetry.redaction import JobRedactor
from millrace.domain.job import Attempt, Job, OnDependency, State, Word, word
from millrace.domain.outcome import Failure
from millrace.domain.request import Enqueued
from millrace.domain.rules.dead import expires_at
from millrace.domain.settings import QueueSettings
from millrace.views.fingerprint import fingerprint

LISTED_PARENTS = 20  # a job may have thousands
Instant = Annotated[str, Meta(description="ISO 8601, in UTC", min_length=1)]
Seconds = Annotated[float, Meta(description="Seconds")]
Digits = Annotated[str, Meta(description="A whole number as text: it may be larger than 2^53", pattern="^[0-9]+$")]


class ErrorView(msgspec.Struct):
    type: str
    message: str
    traceback: str


class AttemptView(msgspec.Struct):
    attempt: int
    at: Instant
    duration: Seconds | None
    worker: str | None
    error: ErrorView | None


class JobSummary(msgspec.Struct):
    """A job in a list of jobs."""

    id: str
    task: str
    queue: str
    state: Word
    priority: int
    group: str | None
    key: str | None
    lane: int | None
    seq: Digits
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
    after: Annotated[list[str], Meta(description="Jobs it depends on; in a list of jobs, the first 20")]
    blocked_by: int
    reason: str | None
    error: ErrorView | None
    tags: list[str]


class LogLineView(msgspec.Struct):
    """A line that a handler wrote with `ctx.log`. If `dropped` is not 0, it stands for so many lines."""

    attempt: int
    at: Instant
    level: str
    text: str
    fields: dict[str, Any]
    dropped: int


class JobView(JobSummary):
    """A job with all its data."""

    payload: Any
    result: Any
    has_result: bool
    result_expired: bool
    progress: Any
    serde: str
    headers: dict[str, str]
    flow: Annotated[str, Meta(description="The flow that it is a part of")] | None
    enqueued_by: Annotated[str, Meta(description="The job whose handler enqueued it")] | None
    continued_by: Annotated[list[str], Meta(description="The jobs that its handler enqueued; the latest 100")]
    on_dependency: OnDependency
    stalls: int
    snoozes: int
    releases: int
    replays: int
    cancel_requested: bool
    expires_at: Instant | None
    next_retry_at: Instant | None
    lease: Seconds | None
    attempts: list[AttemptView]
    log: list[LogLineView]
    fingerprint: Annotated[str, Meta(description="Of a dead job: the cause, as in /api/dead")] | None


class EnqueuedView(msgspec.Struct):
    """The answer to an enqueue. A job that already exists is reported by `status`, not as an error."""

    status: Literal["queued", "duplicate", "completed"]
    id: str
    seq: Digits
    generation: int
    state: State
    by: Literal["id", "key"] | None
    payload_differs: bool
    lane: int | None
    position: int | None
    depth: int | None


E = TypeVar("E", bound=EnqueuedView)


def job_summary(
    job: Job, now: int, redactor: JobRedactor | None = None, parents: int | None = LISTED_PARENTS
) -> JobSummary:
    spec = job.spec
    return JobSummary(
        id=spec.id,
        task=spec.task,
        queue=spec.queue,
        state=word(job, now),
        priority=spec.priority,
        group=spec.group,
        key=spec.key,
        lane=job.lane,
        seq=str(job.seq),
        generation=job.generation,
        attempt=job.attempt,
        failures=job.failures,
        max_attempts=spec.max_attempts,
        archived=job.archived,
        enqueued_at=instant(job.enqueued_at),
        available_at=instant(job.available_at),
        started_at=when(job.started_at),
        finished_at=when(job.finished_at),
        worker=job.worker,
        lease_until=when(job.lease_until),
        timeout=seconds(spec.timeout),
        after=list(spec.after[:parents]),
        blocked_by=job.blocked,
        reason=job.reason,
        error=error_view(job.error, redactor),
        tags=list(spec.tags),
    )


def job_view(job: Job, now: int, settings: QueueSettings | None = None, redactor: JobRedactor | None = None) -> JobView:
    """Return all data of a job, with payload, result and progress decoded.

    `settings` are those of the job's queue; `expires_at` of a finished job is computed from them. With a `redactor`,
    secrets are hidden.
    """
    spec = job.spec
    payload = decoded(spec.payload, spec.payload_serde) if redactor is None else redactor.payload()
    result = decoded(job.result, spec.result_serde) if redactor is None else redactor.result()
    progress, headers = decoded(job.progress, "json"), spec.headers or {}
    return JobView(
        **msgspec.structs.asdict(job_summary(job, now, redactor, parents=None)),
        payload=payload,
        result=result,
        has_result=job.result is not None,
        result_expired=job.result_expired,
        progress=progress if redactor is None else redactor.value(progress),
        serde=spec.serde,
        headers=headers if redactor is None else redactor.headers(),
        flow=flow_of(spec),
        enqueued_by=headers.get(ENQUEUED_BY),
        continued_by=list(job.carried or ()),
        on_dependency=spec.on_dependency,
        stalls=job.stalls,
        snoozes=job.snoozes,
        releases=job.releases,
        replays=job.replays,
        cancel_requested=job.cancel_requested,
        expires_at=when(job.expires_at if settings is None else expires_at(job, settings)),
        next_retry_at=when(job.next_retry_at),
        lease=seconds(spec.lease),
        attempts=[_attempt_view(attempt, redactor) for attempt in job.attempts],
        log=log_view(job, redactor),
        fingerprint=fingerprint(job) if job.state is State.DEAD else None,
    )


def log_view(job: Job, redactor: JobRedactor | None = None) -> list[LogLineView]:
    """Return the lines of the job's log. With a `redactor`, secrets are hidden."""
    return [_line_view(line, redactor) for line in read_log(job.log)]


def _line_view(line: LogLine, redactor: JobRedactor | None) -> LogLineView:
    text, fields = (line.text, line.fields) if redactor is None else redactor.value([line.text, line.fields])
    return LogLineView(line.attempt, instant(line.instant), line.level, text, fields, line.dropped)


def _attempt_view(attempt: Attempt, redactor: JobRedactor | None) -> AttemptView:
    error = error_view(attempt.error, redactor)
    return AttemptView(attempt.attempt, instant(attempt.at), seconds(attempt.duration), attempt.worker, error)


def error_view(error: Failure | None, redactor: JobRedactor | None = None) -> ErrorView | None:
    if error is None:
        return None
    shown = error if redactor is None else redactor.failure(error)
    return ErrorView(shown.type, shown.message, shown.traceback)


def enqueued_view(answer: Enqueued, kind: type[E], **more: Any) -> E:
    """Return the answer as an instance of `kind`, a subclass of EnqueuedView. `more` are the fields that it adds."""
    return kind(
        status=answer.status,
        id=answer.id,
        seq=str(answer.seq),
        generation=answer.generation,
        state=answer.state,
        by=answer.by,
        payload_differs=answer.payload_differs,
        lane=answer.lane,
        position=answer.position,
        depth=answer.depth,
        **more,
    )


# ── values ────────────────────────────────────────────────────────────────────────────────────


def decoded(data: bytes | None, serde: str) -> Any:
    """Decode JSON or msgpack data and return Python values.

    For any other serde, or if decoding fails, return a dict with the bytes in base64 and the name of the serde.
    """
    if data is None:
        return None
    try:
        if serde == "json":
            return msgspec.json.decode(data) if data else None
        if serde == "msgpack":
            return msgspec.to_builtins(msgspec.msgpack.decode(data), str_keys=True) if data else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError):
        pass
    return {"base64": base64.b64encode(data).decode(), "serde": serde}


def digits(seq: int | None) -> str | None:
    return None if seq is None else str(seq)


def when(at: int | None) -> str | None:
    return None if at is None else instant(at)


def seconds(duration: int | None) -> float | None:
    return None if duration is None else duration / 1000
