"""Millrace: a job queue for Python that starts in a file and ends on a cluster."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    raise ImportError(
        "Millrace does not run on Windows itself: it needs the file locks, signals and processes of Linux or macOS. "
        "Run it in WSL (Windows Subsystem for Linux) or in a container"
    )

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millrace.app.app import App
from millrace.app.flows.compose import Flow
from millrace.app.flows.handle import FlowHandle, FlowStatus, SyncFlowHandle
from millrace.app.job_handle import JobHandle, SyncJobHandle
from millrace.app.job_status import JobStatus
from millrace.app.local_events import LocalEvent
from millrace.app.options import backoff
from millrace.app.payloads.serde import Serde, TypedSerde
from millrace.app.task import Task
from millrace.domain.errors import (
    CursorExpired,
    CursorUnknown,
    DeadLettersFull,
    DependencyCycle,
    DuplicateKey,
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobNotFound,
    LanesInUse,
    LeaseLost,
    LifespanFailed,
    MissingDriver,
    MissingExtra,
    PayloadInvalid,
    QueueError,
    QueueFull,
    ReadOnlyStore,
    ResultExpired,
    StoreClosed,
    StoreError,
    StoreNotFound,
    UnknownDependency,
    UnknownPool,
    UnknownTask,
    WaitTimeout,
)
from millrace.domain.event import Event
from millrace.domain.job import Job, Spec, State
from millrace.domain.request import Archived, Cancelled, Deleted, Enqueued, Query, Replayed
from millrace.domain.retry import RetryPolicy
from millrace.domain.schedule import Schedule

if TYPE_CHECKING:
    from millrace.app.batch_task import BatchTask
    from millrace.app.frames.task import FrameTask
    from millrace.app.handler.context import Context
    from millrace.app.handler.depends import Depends
    from millrace.app.handler.job_log import LogLine
    from millrace.app.handler.verdict import Aborted, Bury, Retry, Snooze
    from millrace.app.host import CallNext, Middleware
    from millrace.app.pools.hooks import DeadJob, Emptied
    from millrace.app.pools.pool import Pool
    from millrace.app.pools.status import LaneState, PoolStatus
    from millrace.app.pools.task import PoolTask
    from millrace.app.schedules.plan import ScheduleDefinition
    from millrace.app.spark_drain import Drain, DrainFailed, DrainOutcome, DrainProgress, DrainWorker
    from millrace.app.telemetry.log_context import JobLogFilter
    from millrace.app.telemetry.log_json import JsonLogFormatter
    from millrace.app.why import Reason
    from millrace.worker.process.remote import ProcessDied, RemoteError
    from millrace.worker.worker import Worker

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
    "CursorUnknown",
    "DeadJob",
    "DeadLettersFull",
    "Deleted",
    "DependencyCycle",
    "Depends",
    "Drain",
    "DrainFailed",
    "DrainOutcome",
    "DrainProgress",
    "DrainWorker",
    "DuplicateKey",
    "Emptied",
    "Enqueued",
    "Event",
    "Flow",
    "FlowHandle",
    "FlowStatus",
    "FrameTask",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobLogFilter",
    "JobNotFound",
    "JobStatus",
    "JsonLogFormatter",
    "LaneState",
    "LanesInUse",
    "LeaseLost",
    "LifespanFailed",
    "LocalEvent",
    "LogLine",
    "Middleware",
    "MissingDriver",
    "MissingExtra",
    "PayloadInvalid",
    "Pool",
    "PoolStatus",
    "PoolTask",
    "ProcessDied",
    "Query",
    "QueueError",
    "QueueFull",
    "ReadOnlyStore",
    "Reason",
    "RemoteError",
    "Replayed",
    "ResultExpired",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "ScheduleDefinition",
    "Serde",
    "Snooze",
    "Spec",
    "State",
    "StoreClosed",
    "StoreError",
    "StoreNotFound",
    "SyncFlowHandle",
    "SyncJobHandle",
    "Task",
    "TypedSerde",
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
    "Aborted": "millrace.app.handler.verdict",
    "BatchTask": "millrace.app.batch_task",
    "Bury": "millrace.app.handler.verdict",
    "CallNext": "millrace.app.host",
    "Context": "millrace.app.handler.context",
    "DeadJob": "millrace.app.pools.hooks",
    "Depends": "millrace.app.handler.depends",
    "Drain": "millrace.app.spark_drain",
    "DrainFailed": "millrace.app.spark_drain",
    "DrainOutcome": "millrace.app.spark_drain",
    "DrainProgress": "millrace.app.spark_drain",
    "DrainWorker": "millrace.app.spark_drain",
    "Emptied": "millrace.app.pools.hooks",
    "FrameTask": "millrace.app.frames.task",
    "JobLogFilter": "millrace.app.telemetry.log_context",
    "JsonLogFormatter": "millrace.app.telemetry.log_json",
    "LaneState": "millrace.app.pools.status",
    "LogLine": "millrace.app.handler.job_log",
    "Middleware": "millrace.app.host",
    "Pool": "millrace.app.pools.pool",
    "PoolStatus": "millrace.app.pools.status",
    "PoolTask": "millrace.app.pools.task",
    "ProcessDied": "millrace.worker.process.remote",
    "Reason": "millrace.app.why",
    "RemoteError": "millrace.worker.process.remote",
    "Retry": "millrace.app.handler.verdict",
    "ScheduleDefinition": "millrace.app.schedules.plan",
    "Snooze": "millrace.app.handler.verdict",
    "Worker": "millrace.worker.worker",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
