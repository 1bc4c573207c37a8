"""Dead jobs grouped by the error that buried them, the most frequent first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from millrace.app.telemetry.redaction import JobRedactor
from millrace.domain.job import Job
from millrace.views.fingerprint import cause, fingerprint
from millrace.views.job_view import Instant, when


class CauseView(msgspec.Struct):
    """The dead jobs of one task that died of the same error."""

    fingerprint: str
    count: int
    task: str
    reason: str | None
    error: str
    first_at: Instant | None
    last_at: Instant | None
    queues: dict[str, int]
    example: str


@dataclass
class Cause:
    """The dead jobs of one task with the same error. `example` is the job that died last."""

    fingerprint: str
    example: Job
    count: int = 0
    last: int = 0
    first: int | None = None
    queues: Counter[str] = field(default_factory=Counter[str])

    def add(self, job: Job) -> None:
        at = job.finished_at or 0
        self.count += 1
        self.queues[job.queue] += 1
        self.first = at if self.first is None else min(self.first, at)
        if at >= self.last:
            self.last, self.example = at, job


class Causes:
    """Groups dead jobs by cause. Add the jobs one by one, then call `ordered`."""

    def __init__(self) -> None:
        self._known: dict[str, Cause] = {}
        self.total = 0
        self.cursor: str | None = None  # where to continue if not all dead jobs were read

    def add(self, job: Job) -> None:
        self.total += 1
        mark = fingerprint(job)
        self._known.setdefault(mark, Cause(mark, job)).add(job)

    def ordered(self, limit: int) -> list[Cause]:
        return sorted(self._known.values(), key=lambda one: (-one.count, -one.last))[:limit]


def cause_view(one: Cause, redactor: JobRedactor | None = None) -> CauseView:
    job = one.example
    if redactor is not None and job.error is not None:
        # Hide secrets before the varying parts: a secret with a part removed would not be recognized.
        job = msgspec.structs.replace(job, error=redactor.failure(job.error))
    return CauseView(
        fingerprint=one.fingerprint,
        count=one.count,
        task=job.task,
        reason=job.reason,
        error=cause(job),
        first_at=when(one.first),
        last_at=when(one.last),
        queues=dict(one.queues),
        example=job.id,
    )
