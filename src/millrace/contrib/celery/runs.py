"""Runs of tasks: by a worker of Millrace, and in the caller's process (`task.apply`, `task_always_eager`)."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from millrace.app.handler.context import Context
from millrace.app.handler.verdict import Bury, Retry, Snooze
from millrace.app.ids import new_token
from millrace.contrib.celery import states
from millrace.contrib.celery.eager import EagerResult
from millrace.contrib.celery.exceptions import CeleryRetry, Ignore, Reject
from millrace.contrib.celery.request import RunningTask, TaskRequest, run_as
from millrace.contrib.celery.result import retries_of
from millrace.contrib.celery.task import CeleryTask
from millrace.contrib.celery.values import plain, restored
from millrace.domain.errors import PayloadInvalid, ResultInvalid

REQUEUE_DELAY = 1.0
IGNORED = "IGNORED"
_NOT_ENDED = (IGNORED, states.RETRY)  # Celery does not call `after_return` for these
_CALL = CeleryTask.__call__


class ErrorInfo:
    """The `einfo` of the hooks: the exception with its traceback as text."""

    def __init__(self, error: BaseException) -> None:
        self.exception = error
        self.type = type(error)
        self.traceback = "".join(traceback.format_exception(error))

    def __str__(self) -> str:
        return self.traceback


def handler_of(task: CeleryTask) -> Callable[..., Any]:
    """Return the handler that Millrace runs for a task.

    Its payload has the arguments, facts of the call, and `parents`: a list with the result of the step before it in a
    chain, which is a list itself after a group.
    """

    def run(
        ctx: Context,
        args: list[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        about: dict[str, Any] | None = None,
        parents: list[Any] | None = None,
    ) -> Any:
        given = restored([*(parents or ()), *(args or ())])
        request = request_of(task, ctx, given, restored(kwargs or {}), about or {})
        try:
            value = attempt(RunningTask(task, request, ctx))
        except CeleryRetry as error:
            raise Retry(error, after=error.countdown) from error.exc
        except Ignore:
            return None
        except Reject as error:
            raise (Snooze(REQUEUE_DELAY) if error.requeue else Bury(error)) from error
        try:
            return plain(value)
        except PayloadInvalid as error:
            raise ResultInvalid(str(error)) from None

    run.__doc__ = task.run.__doc__
    return run


def request_of(
    task: CeleryTask, ctx: Context, args: list[Any], kwargs: dict[str, Any], about: Mapping[str, Any]
) -> TaskRequest:
    """Return what `self.request` shows of a job."""
    job = ctx.job
    timeout = job.spec.timeout
    return TaskRequest(
        id=job.id,
        task=task.name,
        args=args,
        kwargs=kwargs,
        retries=retries_of(job),
        root_id=about.get("root") or job.id,
        parent_id=about.get("parent"),
        group=about.get("group"),
        hostname=job.worker,
        delivery_info={
            "routing_key": job.queue,
            "exchange": "",
            "priority": job.priority,
            "redelivered": job.stalls > 0,
        },
        headers=ctx.headers,
        eta=about.get("eta"),
        timelimit=(None if timeout is None else timeout / 1000, None),
        ignore_result=job.spec.keep_result == 0,
        called_directly=False,
    )


def attempt(call: RunningTask) -> Any:
    """Run a task once, with its hooks. Return its result, or raise what it raised."""
    task, request = call.task, call.request
    own_call = type(task).__call__ is not _CALL
    call.entered = not own_call
    facts = (request.id or "", request.args, request.kwargs)
    status, value, einfo = states.FAILURE, None, None
    with run_as(call):
        try:
            task.before_start(*facts)
            value = task.call_with_retries(task if own_call else task.run, request.args, request.kwargs)
            status = states.SUCCESS
            task.on_success(value, *facts)
        except CeleryRetry as error:
            status, value, einfo = states.RETRY, error, ErrorInfo(error)
            task.on_retry(error.exc or error, *facts, einfo)
            raise
        except (Ignore, Reject) as error:
            status, value = IGNORED, error
            raise
        except Exception as error:
            status, value, einfo = states.FAILURE, error, ErrorInfo(error)
            task.on_failure(error, *facts, einfo)
            raise
        finally:
            if status not in _NOT_ENDED:
                task.after_return(status, value, *facts, einfo)
    return value


def run_eagerly(task: CeleryTask, args: list[Any], kwargs: dict[str, Any], options: Mapping[str, Any]) -> EagerResult:
    """Run a task in this process until it has no more retries, without waiting between them."""
    throw = options.get("throw")
    raises = task.app.conf.task_eager_propagates if throw is None else throw
    task_id = str(options.get("task_id") or new_token())
    retries = int(options.get("retries") or 0)
    while True:
        request = TaskRequest(
            id=task_id,
            task=task.name,
            args=args,
            kwargs=kwargs,
            retries=retries,
            root_id=task_id,
            hostname=socket.gethostname(),
            delivery_info={"is_eager": True, "routing_key": options.get("queue"), "priority": options.get("priority")},
            headers=dict(options.get("headers") or {}),
            is_eager=True,
            called_directly=False,
        )
        try:
            value = attempt(RunningTask(task, request))
        except CeleryRetry:
            retries += 1
            continue
        except Ignore:
            return EagerResult(task_id, None, states.SUCCESS, task.name)
        except Exception as error:
            if raises:
                raise
            return EagerResult(task_id, error, states.FAILURE, task.name, traceback=ErrorInfo(error).traceback)
        return EagerResult(task_id, value, states.SUCCESS, task.name)
