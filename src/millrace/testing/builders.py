"""Builders of specs, requests and changes. A test passes only the values that matter; durations are in seconds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from millrace.domain.change import Change
from millrace.domain.job import Job, Lease, Spec
from millrace.domain.outcome import Failure
from millrace.domain.request import Claim, Extension, Reclaim, WorkerInfo
from millrace.domain.retry import RetryPolicy

_numbers = itertools.count(1)
_IN_SECONDS = frozenset({"delay", "expires", "window", "timeout", "lease", "keep_result"})


def seconds(number: float) -> int:
    """Return a number of seconds as milliseconds, the unit of the store protocol."""
    return round(number * 1000)


def minutes(number: float) -> int:
    """Return a number of minutes as milliseconds."""
    return seconds(number * 60)


def hours(number: float) -> int:
    """Return a number of hours as milliseconds."""
    return minutes(number * 60)


def days(number: float) -> int:
    """Return a number of days as milliseconds."""
    return hours(number * 24)


def a_spec(**overrides: Any) -> Spec:
    """Return a spec of task `work` in queue `default`, with a unique id and token. `overrides` sets other fields."""
    number = next(_numbers)
    fields: dict[str, Any] = {"id": f"job-{number}", "task": "work", "token": f"token-{number}"}
    fields.update((name, _milliseconds(name, value)) for name, value in overrides.items())
    return Spec(**fields)


def specs(number: int, **overrides: Any) -> list[Spec]:
    """Return `number` specs that differ only in id and token."""
    return [a_spec(**overrides) for _ in range(number)]


def a_retry(
    initial: float = 1,
    factor: float = 2.0,
    maximum: float = 60,
    jitter: float = 0.0,
    delays: Iterable[float] | None = None,
) -> RetryPolicy:
    """Return a retry policy. By default it has no jitter, so that a test can predict when a job is due again."""
    curve = None if delays is None else tuple(map(seconds, delays))
    return RetryPolicy(seconds(initial), factor, seconds(maximum), jitter, curve)


def a_claim(
    limit: int = 1,
    *,
    queue: str = "default",
    queues: Iterable[str] | None = None,
    worker: str = "worker",
    tasks: Iterable[str] | None = None,
    lease: float | None = None,
) -> Claim:
    """Return a claim. By default it is for one job of the queue `default`."""
    return Claim(
        (queue,) if queues is None else tuple(queues),
        worker,
        limit,
        None if tasks is None else frozenset(tasks),
        None if lease is None else seconds(lease),
    )


def a_reclaim(
    limit: int = 100,
    *,
    worker: str = "reaper",
    lease: float = 30,
    queues: Iterable[str] | None = None,
    tasks: Iterable[str] | None = None,
    ignore: Iterable[Job] = (),
) -> Reclaim:
    """Return a reclaim request. `ignore` lists running jobs that the request must not reclaim."""
    return Reclaim(
        worker,
        limit,
        seconds(lease),
        None if queues is None else tuple(queues),
        None if tasks is None else frozenset(tasks),
        frozenset(job.lease.id for job in ignore),
    )


def an_extension(
    held: Job | Lease, by: float | None = None, progress: bytes | None = None, log: bytes | None = None
) -> Extension:
    """Return an extension of a job's lease, by a number of seconds or by the lease duration."""
    lease = held.lease if isinstance(held, Job) else held
    return Extension(lease, None if by is None else seconds(by), progress, log)


def a_failure(message: str = "it broke", kind: str = "RuntimeError") -> Failure:
    """Return the error of a handler."""
    return Failure(kind, message, f"Traceback (most recent call last):\n{kind}: {message}")


def a_retry_change(delay: float = 0, message: str = "it broke", stalled: int = 0) -> Change:
    """Return the change that retries a job after a delay in seconds."""
    return Change.retry(a_failure(message), delay=seconds(delay), stalled=stalled)


def a_burial(reason: str = "explicit_fail", message: str = "it broke") -> Change:
    """Return the change that buries a job."""
    return Change.bury(a_failure(message), reason)


def a_worker(worker_id: str = "worker", **facts: Any) -> WorkerInfo:
    """Return the record of a worker."""
    return WorkerInfo(worker_id, **facts)


def settings_in_seconds(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for `Store.control`. Durations in `changes` are in seconds, and are converted to milliseconds."""
    durations = {"keep_completed", "keep_dead", "keep_events", "auto_retry_delay"}
    return {
        name: seconds(value) if name in durations and value is not None else value for name, value in changes.items()
    }


def _milliseconds(name: str, value: Any) -> Any:
    return seconds(value) if name in _IN_SECONDS and value is not None else value
