"""The options of a worker by name, for type checkers and for errors that name the one that was meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from millrace.domain.errors import InvalidInput
from millrace.domain.hints import meant
from millrace.runtime.dispatcher import Burst, UnknownTask
from millrace.runtime.duration import Duration
from millrace.runtime.heartbeat import HeartbeatPort
from millrace.runtime.host import Middleware
from millrace.runtime.polling import Chance


class WorkerKeywords(TypedDict, total=False):
    lease: Duration | None
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
            raise InvalidInput(f"a worker has no option {name!r}. {meant(name, known)}")
