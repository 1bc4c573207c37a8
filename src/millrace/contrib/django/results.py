"""The result of a task as Django shows it, made from the record of its job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from millrace.contrib.django.api import Task, TaskError, TaskResult, TaskResultStatus
from millrace.domain.event import Event, Kind
from millrace.domain.instant import as_datetime
from millrace.domain.job import FAILED, FINISHED, Job, State
from millrace.domain.outcome import Failure

_STATUS = {State.WAITING: "READY", State.RUNNING: "RUNNING", State.COMPLETED: "SUCCESSFUL"}
_TIMED_OUT = "TimedOut"


def new_result(task: Task, alias: str, job_id: str, args: Sequence[Any], kwargs: dict[str, Any]) -> TaskResult:
    """Return the result of a task that is being enqueued. Raises TypeError for arguments that are not JSON values."""
    return _result(task, alias, job_id, list(args), dict(kwargs), TaskResultStatus.READY, enqueued_at=timezone.now())


def result_of(job: Job, task: Task, alias: str, payload: Any, history: Sequence[Event] = ()) -> TaskResult:
    """Return the result of a job, without its return value. `payload` has the arguments.

    The workers are those of the events in `history`; without them, those that the record has.
    """
    claims = [event for event in history if event.kind is Kind.CLAIMED and event.generation == job.generation]
    workers = [event.worker or "" for event in claims] or _workers(job)
    started = claims[0].at if claims else job.started_at
    return _result(
        task,
        alias,
        job.id,
        payload["args"],
        payload["kwargs"],
        TaskResultStatus[_STATUS.get(job.state, "FAILED")],
        enqueued_at=instant(job.enqueued_at),
        started_at=instant(started),
        finished_at=instant(job.finished_at) if job.state in FINISHED else None,
        last_attempted_at=instant(job.started_at),
        errors=errors_of(job),
        worker_ids=workers,
    )


def with_end(result: TaskResult, value: Any, error: Failure | None, succeeded: bool) -> TaskResult:
    """Return the result of a run that has just ended."""
    changes = {"status": TaskResultStatus.SUCCESSFUL if succeeded else TaskResultStatus.FAILED}
    for name, changed in {**changes, "finished_at": timezone.now(), "_return_value": value}.items():
        object.__setattr__(result, name, changed)
    if error is not None:
        result.errors.append(_error(error))
    return result


def errors_of(job: Job) -> list[TaskError]:
    failures = [attempt.error for attempt in job.attempts if attempt.error is not None]
    if not failures and job.error is not None and job.state in FAILED:
        failures = [job.error]
    return [_error(failure) for failure in failures]


def instant(at: int | None) -> datetime | None:
    """Return an instant of the store as Django has instants: aware, or naive with USE_TZ = False."""
    if at is None:
        return None
    return as_datetime(at) if settings.USE_TZ else timezone.make_naive(as_datetime(at))


def _result(
    task: Task, alias: str, job_id: str, args: list[Any], kwargs: dict[str, Any], status: Any, **more: Any
) -> TaskResult:
    times = dict.fromkeys(("started_at", "finished_at", "last_attempted_at"))
    fields = {**times, "errors": [], "worker_ids": [], **more}
    return TaskResult(task=task, id=job_id, status=status, args=args, kwargs=kwargs, backend=alias, **fields)


def _workers(job: Job) -> list[str]:
    """Return one name per attempt. The record has the workers of failed attempts and of the present one."""
    known = [attempt.worker or "" for attempt in job.attempts]
    return (known + [job.worker or ""] * job.attempt)[: job.attempt]


def _error(failure: Failure) -> TaskError:
    return TaskError(exception_class_path=_class_path(failure), traceback=failure.traceback or failure.message)


def _class_path(failure: Failure) -> str:
    """Return the path of the exception's class. A failure has only its name; its traceback has the module too."""
    if failure.type == _TIMED_OUT:
        return "builtins.TimeoutError"
    found = re.findall(rf"^((?:\w+\.)*){re.escape(failure.type)}(?::|$)", failure.traceback, re.MULTILINE)
    if not found:
        return "millrace.JobFailed"  # the worker was lost, the job expired, …
    return f"{found[-1] or 'builtins.'}{failure.type}"
