"""Millrace: a job queue for Python that starts in a file and ends on a cluster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millrace.domain.errors import (
    CursorExpired,
    DeadLettersFull,
    DependencyCycle,
    DuplicateKey,
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobNotFound,
    LanesInUse,
    LeaseLost,
    MissingDriver,
    MissingExtra,
    PayloadInvalid,
    QueueError,
    QueueFull,
    ResultExpired,
    StoreError,
    UnknownDependency,
    UnknownPool,
    UnknownTask,
    WaitTimeout,
)
from millrace.domain.event import Event
from millrace.domain.job import Job, Spec, State
from millrace.domain.request import Archived, Cancelled, Enqueued, Query, Replayed
from millrace.domain.retry import RetryPolicy
from millrace.domain.schedule import Schedule
from millrace.runtime.app import App
from millrace.runtime.backoff import backoff
from millrace.runtime.bus import LocalEvent
from millrace.runtime.serde import Serde
from millrace.runtime.task import Task

if TYPE_CHECKING:
    from millrace.runtime.batch_task import BatchTask
    from millrace.runtime.context import Context
    from millrace.runtime.frame_task import FrameTask
    from millrace.runtime.host import CallNext, Middleware
    from millrace.runtime.log_context import JobLogFilter
    from millrace.runtime.on_spark import Drain, DrainFailed, DrainOutcome, DrainProgress, DrainWorker
    from millrace.runtime.pool import Pool
    from millrace.runtime.pool_hooks import DeadJob, Emptied
    from millrace.runtime.pool_status import LaneState, PoolStatus
    from millrace.runtime.pool_task import Placed, PoolTask
    from millrace.runtime.process.remote import ProcessDied, RemoteError
    from millrace.runtime.verdict import Aborted, Bury, Retry, Snooze
    from millrace.runtime.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "App",
    "Archived",
    "BatchTask",
    "Bury",
    "CallNext",
    "Cancelled",
    "Context",
    "CursorExpired",
    "DeadJob",
    "DeadLettersFull",
    "DependencyCycle",
    "Drain",
    "DrainFailed",
    "DrainOutcome",
    "DrainProgress",
    "DrainWorker",
    "DuplicateKey",
    "Emptied",
    "Enqueued",
    "Event",
    "FrameTask",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobLogFilter",
    "JobNotFound",
    "LaneState",
    "LanesInUse",
    "LeaseLost",
    "LocalEvent",
    "Middleware",
    "MissingDriver",
    "MissingExtra",
    "PayloadInvalid",
    "Placed",
    "Pool",
    "PoolStatus",
    "PoolTask",
    "ProcessDied",
    "Query",
    "QueueError",
    "QueueFull",
    "RemoteError",
    "Replayed",
    "ResultExpired",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "Serde",
    "Snooze",
    "Spec",
    "State",
    "StoreError",
    "Task",
    "UnknownDependency",
    "UnknownPool",
    "UnknownTask",
    "WaitTimeout",
    "Worker",
    "__version__",
    "backoff",
]

# What only workers and handlers need is loaded when it is first asked for.
_LATER = {
    "Aborted": "millrace.runtime.verdict",
    "BatchTask": "millrace.runtime.batch_task",
    "Bury": "millrace.runtime.verdict",
    "CallNext": "millrace.runtime.host",
    "Context": "millrace.runtime.context",
    "DeadJob": "millrace.runtime.pool_hooks",
    "Drain": "millrace.runtime.on_spark",
    "DrainFailed": "millrace.runtime.on_spark",
    "DrainOutcome": "millrace.runtime.on_spark",
    "DrainProgress": "millrace.runtime.on_spark",
    "DrainWorker": "millrace.runtime.on_spark",
    "Emptied": "millrace.runtime.pool_hooks",
    "FrameTask": "millrace.runtime.frame_task",
    "JobLogFilter": "millrace.runtime.log_context",
    "LaneState": "millrace.runtime.pool_status",
    "Middleware": "millrace.runtime.host",
    "Placed": "millrace.runtime.pool_task",
    "Pool": "millrace.runtime.pool",
    "PoolStatus": "millrace.runtime.pool_status",
    "PoolTask": "millrace.runtime.pool_task",
    "ProcessDied": "millrace.runtime.process.remote",
    "RemoteError": "millrace.runtime.process.remote",
    "Retry": "millrace.runtime.verdict",
    "Snooze": "millrace.runtime.verdict",
    "Worker": "millrace.runtime.worker",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
