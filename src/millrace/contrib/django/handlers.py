"""How a worker runs a task of Django: with connections to the database that are neither stale nor left open."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

from millrace.app.handler.context import Context
from millrace.app.handler.verdict import Bury
from millrace.app.local_events import LocalEvent
from millrace.contrib.django.api import TaskContext, TaskResult, signals
from millrace.contrib.django.results import result_of, with_end
from millrace.domain.job import Job

if TYPE_CHECKING:
    from millrace.contrib.django.app import DjangoApp


def handler_for(app: DjangoApp, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler that runs a function of Django. Its payload has the arguments by position and by name."""

    def begin(ctx: Context, args: list[Any]) -> list[Any]:
        """Send `task_started`, and return the arguments by position."""
        result = _running(app, ctx.job)
        signals.task_started.send(sender=type(app.backend), task_result=result)
        return [TaskContext(task_result=result), *args] if result.task.takes_context else args

    if iscoroutinefunction(function):

        async def run_async(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
            async with ThreadSensitiveContext():  # a thread of its own for its blocking code, as for a request
                try:
                    positional = await sync_to_async(begin)(ctx, args)
                    return _json_of(await function(*positional, **kwargs))
                finally:
                    await sync_to_async(connections.close_all)()

        return run_async

    def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        close_old_connections()
        try:
            return _json_of(function(*begin(ctx, args), **kwargs))
        finally:
            close_old_connections()

    return run


def finished_listener(app: DjangoApp) -> Callable[[LocalEvent], Coroutine[Any, Any, None] | None]:
    """Return a listener for ended jobs that sends `task_finished`. A failure that is retried is no end."""

    def send(event: LocalEvent) -> None:
        try:
            result = with_end(_running(app, event.job), event.result, event.error, event.kind == "completed")
            signals.task_finished.send(sender=type(app.backend), task_result=result)
        finally:
            close_old_connections()

    def listener(event: LocalEvent) -> Coroutine[Any, Any, None] | None:
        return None if app.declared(event.job.task) is None else sync_to_async(send)(event)

    return listener


def _running(app: DjangoApp, job: Job) -> TaskResult:
    return result_of(job, app.task_of(job), app.alias, app.serdes.decode(job.spec.payload, job.spec.serde))


def _json_of(result: Any) -> Any:
    """Return a result as a JSON value, or bury the job: another attempt would repeat its effects in vain."""
    try:
        return _as_json(result)
    except Exception as error:  # also of a mapping or sequence with code of its own
        raise _NoJson(f"The result is not JSON: {type(error).__name__}: {error}. Return JSON values only") from error


def _as_json(value: Any) -> Any:
    match value:
        case None | str() | int() | float():
            return value
        case Mapping():
            return {_as_json(key): _as_json(item) for key, item in value.items()}
        case bytes():
            return value.decode()
        case Sequence() if not isinstance(value, bytearray):
            return [_as_json(item) for item in value]
    raise TypeError(f"Unsupported type: {type(value)}")


class _NoJson(Bury, TypeError): ...
