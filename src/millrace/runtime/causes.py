"""Causes of death: dead jobs gathered by the error that they died of, the most frequent first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from millrace.domain.job import Job
from millrace.runtime.fingerprint import cause, fingerprint
from millrace.runtime.shape import when


@dataclass
class Cause:
    """Dead jobs of one task that died of the same error; the example is the one that died last."""

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
    """Takes dead jobs one by one."""

    def __init__(self) -> None:
        self._known: dict[str, Cause] = {}
        self.total = 0
        self.cursor: str | None = None  # where a look that did not reach the end would go on

    def add(self, job: Job) -> None:
        self.total += 1
        mark = fingerprint(job)
        self._known.setdefault(mark, Cause(mark, job)).add(job)

    def ordered(self, limit: int) -> list[Cause]:
        return sorted(self._known.values(), key=lambda one: (-one.count, -one.last))[:limit]


def cause_plain(one: Cause) -> dict[str, Any]:
    job = one.example
    return {
        "fingerprint": one.fingerprint,
        "count": one.count,
        "task": job.task,
        "reason": job.reason,
        "error": cause(job),
        "first_at": when(one.first),
        "last_at": when(one.last),
        "queues": dict(one.queues),
        "example": job.id,
    }
