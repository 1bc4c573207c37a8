"""Dead letters: the hook job a death carries, and when a dead job comes back by itself or goes for good.

A death is recorded before any hook runs, and the hook is a job of its own, carried by the same atomic
step: it survives the worker, and is retried like any other (BW-11).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

import msgspec

from millrace.domain.job import Job, Spec
from millrace.domain.settings import QueueSettings

REASONS = (
    "explicit_fail",
    "max_attempts_exceeded",
    "timeout",
    "stalled",
    "ttl_expired",
    "worker_lost",
    "dependency_failed",
    "payload_invalid",
    "unknown_task",
    "unknown",
)


class DeadLetter(msgspec.Struct, frozen=True):
    """The payload an `on_dead_letter` task receives (W-28)."""

    id: str
    seq: int
    queue: str
    task: str
    payload: str  # base64 of the encoded payload
    serde: str
    reason: str
    error: str
    attempts: int
    failures: int
    enqueued_at: int
    failed_at: int
    lane: int | None
    group: str | None


def dead_letter_hook(job: Job) -> Spec | None:
    """The job that tells of this death, or None when nobody asked to be told."""
    task = job.spec.on_dead_letter
    if task is None or job.spec.hook:
        return None
    letter = DeadLetter(
        job.id,
        job.seq,
        job.queue,
        job.task,
        base64.b64encode(job.spec.payload).decode(),
        job.spec.serde,
        job.reason or "unknown",
        f"{job.error.type}: {job.error.message}" if job.error else "",
        job.attempt,
        job.failures,
        job.enqueued_at,
        job.finished_at or 0,
        job.lane,
        job.spec.group,
    )
    return _hook(f"dead-letter-{job.queue}-{job.seq}-{job.events}", task, job.queue, {"letter": letter})


def empty_hook(queue: str, task: str, lane: int | None, finished: int, seq: int, n: int) -> Spec:
    """The job that tells that a queue or lane has no live job left (W-29, BW-08)."""
    facts = {"queue": queue, "lane": lane, "finished": finished}
    return _hook(f"empty-{queue}-{seq}-{n}", task, queue, facts)


def _hook(name: str, task: str, queue: str, payload: Mapping[str, object]) -> Spec:
    return Spec(id=name, task=task, queue=queue, payload=msgspec.json.encode(payload), token=name, hook=True)


def next_retry(job: Job, settings: QueueSettings) -> int | None:
    """When a job that just died comes back by itself; None for never, which is the default."""
    if job.auto_retries >= settings.auto_retries or job.finished_at is None:
        return None
    return job.finished_at + settings.auto_retry_delay
