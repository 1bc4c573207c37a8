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
    LeaseLost,
    MissingDriver,
    PayloadInvalid,
    QueueError,
    QueueFull,
    ResultExpired,
    StoreError,
    UnknownDependency,
    UnknownTask,
    WaitTimeout,
)
from millrace.domain.event import Event
from millrace.domain.job import Job, Spec, State
from millrace.domain.request import Archived, Cancelled, Enqueued, Query, Replayed
from millrace.domain.retry import RetryPolicy
from millrace.runtime.app import App
from millrace.runtime.backoff import backoff
from millrace.runtime.bus import LocalEvent
from millrace.runtime.serde import Serde
from millrace.runtime.task import Task

if TYPE_CHECKING:
    from millrace.runtime.context import Context
    from millrace.runtime.verdict import Aborted, Bury, Retry, Snooze
    from millrace.runtime.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "App",
    "Archived",
    "Bury",
    "Cancelled",
    "Context",
    "CursorExpired",
    "DeadLettersFull",
    "DependencyCycle",
    "DuplicateKey",
    "Enqueued",
    "Event",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "LeaseLost",
    "LocalEvent",
    "MissingDriver",
    "PayloadInvalid",
    "Query",
    "QueueError",
    "QueueFull",
    "Replayed",
    "ResultExpired",
    "Retry",
    "RetryPolicy",
    "Serde",
    "Snooze",
    "Spec",
    "State",
    "StoreError",
    "Task",
    "UnknownDependency",
    "UnknownTask",
    "WaitTimeout",
    "Worker",
    "__version__",
    "backoff",
]

# What only workers and handlers need is loaded when it is first asked for.
_LATER = {
    "Aborted": "millrace.runtime.verdict",
    "Bury": "millrace.runtime.verdict",
    "Context": "millrace.runtime.context",
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
