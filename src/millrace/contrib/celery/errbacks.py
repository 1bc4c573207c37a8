"""`link_error`: the hook that runs when a job with error callbacks is dead, for whatever reason.

Such a job names the hook in `on_dead_letter`. Its payload has the error callbacks.
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millrace.contrib.celery.request import TaskRequest
from millrace.contrib.celery.result import retries_of
from millrace.contrib.celery.signature import CelerySignature
from millrace.contrib.celery.values import plain, restored
from millrace.domain.errors import JobFailed
from millrace.domain.job import Job
from millrace.domain.outcome import Failure
from millrace.domain.rules.dead import DeadLetter

if TYPE_CHECKING:
    from millrace.contrib.celery.app import Celery

LINK_ERROR = "celery.link_error"


def packed(errback: CelerySignature) -> dict[str, Any]:
    """Return an error callback as data."""
    return {
        "task": errback.name,
        "args": plain(errback.args),
        "kwargs": plain(errback.kwargs),
        "options": plain(errback.options),
        "immutable": errback.immutable,
    }


def unpacked(app: Celery, data: dict[str, Any]) -> CelerySignature:
    """Return the error callback that `packed` has made data of."""
    return CelerySignature(
        data["task"],
        restored(data["args"]),
        restored(data["kwargs"]),
        restored(data["options"]),
        immutable=data["immutable"],
        app=app,
    )


def hook_of(app: Celery) -> Callable[[DeadLetter], None]:
    """Return the handler of the task that dead jobs with error callbacks enqueue."""

    def call_link_error(letter: DeadLetter) -> None:
        payload = app.millrace.serdes.decode(base64.b64decode(letter.payload), letter.serde)
        cause = _cause(app, letter.id)
        if cause is None:  # its record is pruned, or not kept
            request = _request(letter.id, letter.task, payload, max(0, letter.failures - 1))
            error = JobFailed(letter.id, letter.reason, _failure(letter.error))
        else:
            about = app.millrace.serdes.decode(cause.payload, cause.spec.payload_serde)
            request = _request(cause.id, cause.task, about, retries_of(cause))
            error = JobFailed(cause.id, cause.reason, cause.error)
        for data in payload["about"]["errbacks"]:
            call_errback(unpacked(app, data), request, error, error.error.traceback if error.error else None)

    return call_link_error


def _request(job_id: str, task: str, about: dict[str, Any], retries: int) -> TaskRequest:
    """Return the request of a job that failed. `about` is its payload."""
    args, kwargs = restored(about.get("args", [])), restored(about.get("kwargs", {}))
    return TaskRequest(id=job_id, task=task, args=args, kwargs=kwargs, retries=retries, called_directly=False)


def _failure(text: str) -> Failure | None:
    """Return the error of a dead letter, "TYPE: MESSAGE". Its traceback is in the record only."""
    kind, _, message = text.partition(": ")
    return Failure(kind, message) if text else None


def call_errback(errback: CelerySignature, request: TaskRequest, error: BaseException, traceback: str | None) -> None:
    """Call an error callback in this process with (request, error, traceback).

    A task with one parameter is enqueued with the id of the job that failed, as in Celery.
    """
    task = errback.known
    if task is not None and _takes_three(task.run):
        errback(request, error, traceback)
    else:
        errback.apply_async((request.id,))


def _takes_three(function: Callable[..., Any]) -> bool:
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in by_position for kind in kinds) > 1


def _cause(app: Celery, job_id: str) -> Job | None:
    """Return the job whose failure this job died of: itself, or the parent that failed first."""
    while True:
        status = app.millrace.sync.jobs.get(job_id)
        if status is None:
            return None
        record = status.record
        if record.failed_parent is None:
            return record
        job_id = record.failed_parent
