"""Hook jobs, auto-retry of dead jobs, and the time at which the record of a job is deleted.

A hook is a job that the end of another job enqueues: `on_dead_letter` and `on_empty`. It is enqueued in the same atomic
step as that end, so a crash of the worker cannot lose it, and it is retried like any other job.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from hashlib import sha1

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
    "result_invalid",
    "not_retried",
    "unknown_task",
    "unknown",
)


class DeadLetter(msgspec.Struct, frozen=True):
    """The payload that an `on_dead_letter` task receives."""

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
    """Return the `on_dead_letter` job for a dead job, or None if the job has no such hook or is itself a hook job."""
    task = job.spec.on_dead_letter
    if task is None or job.spec.hook:
        return None
    letter = DeadLetter(
        job.id,
        job.seq,
        job.queue,
        job.task,
        base64.b64encode(job.spec.payload).decode(),
        job.spec.payload_serde,
        job.reason or "unknown",
        f"{job.error.type}: {job.error.message}" if job.error else "",
        job.attempt,
        job.failures,
        job.enqueued_at,
        job.finished_at or 0,
        job.lane,
        job.spec.group,
    )
    return _hook(_hook_id("dead-letter", job, job.events), task, job.queue, {"letter": letter})


def expected_hooks(jobs: Iterable[Job]) -> list[Spec]:
    """Return the specs of the `on_dead_letter` jobs that will be enqueued when these jobs die.

    The specs have no payload. They serve only to prefetch the rows that their enqueue reads, such as the row of a job
    with the same id.
    """
    return [
        Spec(id=_hook_id("dead-letter", job, job.events + 1), task=job.spec.on_dead_letter, queue=job.queue, hook=True)
        for job in jobs
        if job.spec.on_dead_letter is not None and not job.spec.hook
    ]


def empty_hook(job: Job, task: str, finished: int) -> Spec:
    """Return the `on_empty` job of a queue or lane whose last live job, `job`, has finished."""
    facts = {"queue": job.queue, "lane": job.lane, "finished": finished}
    return _hook(_hook_id("empty", job, job.events), task, job.queue, facts)


def _hook_id(kind: str, job: Job, events: int) -> str:
    """Return the id of the hook that event number `events` of a job enqueues.

    No other event may have the same id, because a store ignores the enqueue of an id that it knows. The seq cannot
    identify the job: a move to another store changes it. The time of the enqueue can, together with the generation,
    which starts again at 1 when the store has forgotten the id of a deleted job.
    """
    identity = f"{job.id}\n{job.generation}\n{job.enqueued_at}"
    return f"{kind}-{job.queue}-{sha1(identity.encode(), usedforsecurity=False).hexdigest()}-{events}"


def _hook(name: str, task: str, queue: str, payload: Mapping[str, object]) -> Spec:
    return Spec(id=name, task=task, queue=queue, payload=msgspec.json.encode(payload), token=name, hook=True)


def expires_at(job: Job, settings: QueueSettings) -> int | None:
    """Return when a waiting job expires, or when the record of a finished job is pruned. None means never."""
    if job.finished_at is None:
        return job.expires_at
    keep = settings.keep(job.state)
    return None if keep is None else job.finished_at + keep


def next_retry(job: Job, settings: QueueSettings) -> int | None:
    """Return when auto-retry replays a dead job. None means never, which is the default.

    A job that was buried because a parent died or was cancelled is not retried alone: it is replayed with that parent.
    """
    if job.failed_parent is not None:
        return None
    if job.auto_retries >= settings.auto_retries or job.finished_at is None:
        return None
    return job.finished_at + settings.auto_retry_delay
