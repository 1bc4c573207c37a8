"""Turns jobs, dead letters, events and workers into Arrow columns. Only the requested columns are built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from millrace.domain.event import Event
from millrace.domain.job import Attempt, Job
from millrace.domain.outcome import Failure
from millrace.domain.request import WorkerRecord
from millrace.spark.schema import DEAD, JOBS, WORKERS
from millrace.spark.table import Column, arrow_type
from millrace.views.fingerprint import fingerprint

Take = Callable[[Any], Any]

_RENAMED = {"delay_ms": "delay", "duration_ms": "duration"}
_ERRORS = ("error_type", "error_message", "error_traceback")


def _error(part: str) -> Callable[[Failure | None], str | None]:
    def take(error: Failure | None) -> str | None:
        return None if error is None else getattr(error, part)

    return take


def _of_the_error(part: str) -> Take:
    take = _error(part)
    return lambda record: take(record.error)


def _attempt(attempt: Attempt) -> dict[str, Any]:
    error = attempt.error
    return {
        "attempt": attempt.attempt,
        "at": attempt.at * 1_000,  # microseconds, the unit of the column
        "error_type": None if error is None else error.type,
        "error_message": None if error is None else error.message,
        "duration_ms": attempt.duration,
        "worker": attempt.worker,
    }


def _headers(job: Job) -> list[tuple[str, str]] | None:
    return None if job.spec.headers is None else list(job.spec.headers.items())


_OF_JOBS: dict[str, Take] = {
    **{name: attrgetter(name) for name in (*JOBS.names, *DEAD.names) if name in Job.__struct_fields__},
    **{
        name: attrgetter(f"spec.{name}")
        for name in (
            "id",
            "queue",
            "task",
            "priority",
            "group",
            "key",
            "max_attempts",
            "after",
            "serde",
            "payload",
            "tags",
        )
    },
    **{name: _of_the_error(name.removeprefix("error_")) for name in _ERRORS},
    "state": lambda job: job.state.value,
    "lease": attrgetter("lease_id"),
    "timeout_ms": attrgetter("spec.timeout"),
    "headers": _headers,
    "died_at": attrgetter("finished_at"),
    "fingerprint": fingerprint,
    "attempts": lambda job: [_attempt(attempt) for attempt in job.attempts],
}
_OF_WORKERS: dict[str, Take] = {
    **{name: attrgetter(f"info.{name}") for name in WORKERS.names},
    **{name: attrgetter(name) for name in ("started_at", "last_beat", "alive")},
    "ttl_ms": attrgetter("ttl"),
}


def array(column: Column, values: Iterable[Any]) -> pa.Array:
    """Return the values of a column as an Arrow array. Values of timestamp columns are milliseconds."""
    if column.type == "timestamp":
        return pa.array(values, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    return pa.array(values, arrow_type(column.type))


def job_arrays(columns: Sequence[Column], jobs: Sequence[Job]) -> list[pa.Array]:
    return [array(column, list(map(_OF_JOBS[column.name], jobs))) for column in columns]


def worker_arrays(columns: Sequence[Column], workers: Sequence[WorkerRecord]) -> list[pa.Array]:
    return [array(column, list(map(_OF_WORKERS[column.name], workers))) for column in columns]


def event_arrays(columns: Sequence[Column], events: Sequence[Event]) -> list[pa.Array]:
    """Return the given columns of the events as Arrow arrays. Error columns are null if no event has an error."""
    errors = list(map(attrgetter("error"), events)) if any(column.name in _ERRORS for column in columns) else []
    failed = any(errors)
    arrays: list[pa.Array] = []
    for column in columns:
        if column.name in _ERRORS:
            part = _error(column.name.removeprefix("error_"))
            arrays.append(array(column, list(map(part, errors))) if failed else pa.nulls(len(events), pa.string()))
        else:
            arrays.append(array(column, list(map(attrgetter(_RENAMED.get(column.name, column.name)), events))))
    return arrays
