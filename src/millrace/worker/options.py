"""The names and types of a worker's options, for type checkers and for errors that suggest the right name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from millrace.app.duration import Duration
from millrace.app.host import Middleware
from millrace.domain.errors import InvalidInput, did_you_mean
from millrace.domain.retry import RetryPolicy
from millrace.worker.backoff import Chance
from millrace.worker.dispatcher import Burst, UnknownTask
from millrace.worker.heartbeat import HeartbeatPort


class WorkerKeywords(TypedDict, total=False):
    lease: Duration | None
    timeout: Duration | None
    retry: RetryPolicy | Sequence[Duration]
    max_attempts: int | None
    keep_result: Duration | None
    poll_min: float
    poll_max: float
    reap_interval: float
    maintain_interval: float
    sweep_interval: float | None
    monitor: bool | None
    beat_interval: float | None
    shutdown_deadline: float
    grace: float
    threads: int | None
    processes: int | None
    max_jobs_per_child: int | None
    max_memory_per_child: int | None
    middleware: Iterable[Middleware]
    version: str
    redact: Iterable[str]
    unknown_task: UnknownTask
    chance: Chance
    heartbeat: HeartbeatPort
    burst: Burst
    max_jobs: int | None
    scheduler: bool


def refuse_unknown(options: Iterable[str]) -> None:
    known = {"queues", "tasks", "slots", "name", *WorkerKeywords.__annotations__}
    for name in options:
        if name not in known:
            raise InvalidInput(f"a worker has no option {name!r}. {did_you_mean(name, known)}")
