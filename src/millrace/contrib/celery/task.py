"""Tasks: the class of what `@app.task` returns, which is also the base class of classes of tasks."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from millrace.contrib.celery.exceptions import CeleryRetry, Ignore, MaxRetriesExceededError, NotCovered, Reject
from millrace.contrib.celery.options import aware
from millrace.contrib.celery.request import RunningTask, TaskRequest, run_as, running
from millrace.contrib.celery.values import plain

if TYPE_CHECKING:
    from millrace.contrib.celery.app import Celery
    from millrace.contrib.celery.eager import EagerResult
    from millrace.contrib.celery.result import AsyncResult
    from millrace.contrib.celery.signature import CelerySignature


class CeleryTask:
    """A task. There is one object per task and app; `self.request` belongs to the run on the current thread.

    A subclass can be passed as `base=…`. Its attributes are the options of its tasks.
    """

    MaxRetriesExceededError = MaxRetriesExceededError

    app: Celery
    name: str | None = None
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: Iterable[type[BaseException]] = ()
    dont_autoretry_for: Iterable[type[BaseException]] = ()
    retry_kwargs: Mapping[str, Any] | None = None
    retry_backoff: bool | int = False
    retry_backoff_max: int = 600
    retry_jitter: bool = True
    acks_late: bool | None = None
    ignore_result: bool | None = None
    time_limit: float | None = None
    soft_time_limit: float | None = None
    rate_limit: str | None = None
    queue: str | None = None
    priority: int | None = None
    expires: Any = None
    serializer: str | None = None
    throws: tuple[type[BaseException], ...] = ()
    typing: bool = True
    abstract = True
    _signature: inspect.Signature | None = None

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The body of the task."""
        raise NotImplementedError("a task must define run()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of the task in this process, without a job."""
        call = running()
        if call is not None and call.task is self and call.enters():
            return self.run(*args, **kwargs)  # the run itself, through a `__call__` of a subclass
        request = TaskRequest(task=self.name, args=list(args), kwargs=kwargs)
        with run_as(RunningTask(self, request, entered=True)):
            return self.run(*args, **kwargs)

    # ── calls ─────────────────────────────────────────────────────────────────────────────────

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Enqueue a job of the task with these arguments, and return its result object."""
        return self.apply_async(args, kwargs)

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Enqueue a job when the current transaction of Django commits."""
        from django.db import transaction

        transaction.on_commit(lambda: self.delay(*args, **kwargs))

    def apply_async(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        """Enqueue a job of the task, with options: countdown, eta, expires, queue, priority, task_id, link, …"""
        made = self.signature(args, kwargs, **options)
        sent: AsyncResult = made.apply_async()
        return sent

    def apply(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> EagerResult:
        """Run the task in this process, with its retries, and return the result object."""
        from millrace.contrib.celery.runs import run_eagerly

        return run_eagerly(self, list(args or ()), dict(kwargs or {}), options)

    def signature(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> CelerySignature:
        """Return a signature: the task with arguments and options, for a later call."""
        from millrace.contrib.celery.signature import CelerySignature

        immutable = bool(options.pop("immutable", False))
        return CelerySignature(self, args, kwargs, options, immutable=immutable)

    subtask = signature

    def s(self, *args: Any, **kwargs: Any) -> CelerySignature:
        """Return a signature with these arguments."""
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> CelerySignature:
        """Return an immutable signature: in a chain, it does not get the result of the task before it."""
        return self.signature(args, kwargs, immutable=True)

    def check_arguments(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError if the function does not take these arguments."""
        if self.typing:
            if self._signature is None:
                self._signature = inspect.signature(self.run)
            self._signature.bind(*args, **kwargs)

    def AsyncResult(self, task_id: str, **_: Any) -> AsyncResult:
        """Return the result object of the job with this id."""
        return self.app.AsyncResult(task_id)

    # ── in a run ──────────────────────────────────────────────────────────────────────────────

    @property
    def request(self) -> TaskRequest:
        """The run of this task on the current thread."""
        call = running()
        return call.request if call is not None and call.task is self else TaskRequest(task=self.name)

    def retry(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> CeleryRetry:
        """Run the task again after a delay. Raises CeleryRetry, which ends the run; write `raise self.retry(…)`.

        Without retries left, raises `exc`, or MaxRetriesExceededError.
        """
        given = {"args": args, "kwargs": kwargs, **options, "throw": None if throw else False}
        what = next((name for name, value in given.items() if value is not None), None)
        if what is not None:
            raise NotCovered(f"self.retry({what}=…)", "A retry runs the same job again. Enqueue another one instead")
        request = self.request
        if request.called_directly:
            raise exc or CeleryRetry(None, 0)
        most = self.max_retries if max_retries is None else max_retries
        if most is not None and request.retries >= most:
            if exc is not None:
                raise exc
            raise MaxRetriesExceededError(f"task {self.name!r} ({request.id}) has used its {most} retries")
        if eta is not None:
            countdown = max(0.0, (aware(self.app, eta) - datetime.now(UTC)).total_seconds())
        raise CeleryRetry(exc, self.default_retry_delay if countdown is None else countdown) from exc

    def call_with_retries(self, body: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call the body of the task, and retry it for the exceptions of `autoretry_for`."""
        retried = tuple(self.autoretry_for)
        if not retried:
            return body(*args, **kwargs)
        never: tuple[type[BaseException], ...] = (CeleryRetry, Ignore, Reject, *self.dont_autoretry_for)
        try:
            return body(*args, **kwargs)
        except never:
            raise
        except retried as error:
            how = dict(self.retry_kwargs or {})
            if self.retry_backoff:
                how["countdown"] = self._backoff(self.request.retries)
            raise self.retry(exc=error, **how) from error

    def _backoff(self, retries: int) -> int:
        delay = min(int(self.retry_backoff_max), int(self.retry_backoff) * 2 ** min(retries, 64))
        return random.randrange(delay + 1) if self.retry_jitter else delay

    def update_state(self, task_id: str | None = None, state: str | None = None, meta: Any = None) -> None:
        """Show a state of your own and its data, such as "PROGRESS", while the task runs."""
        call = running()
        if call is None or (task_id is not None and task_id != call.request.id):
            raise NotCovered("update_state of another task", "Call it in the task itself")
        if call.context is not None:
            call.context.progress({"state": state, "meta": plain(meta)})

    # ── hooks for subclasses ──────────────────────────────────────────────────────────────────

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Called before the task runs."""

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Called when the task has returned."""

    def on_retry(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called when the task is to be retried."""

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called when the task has failed, and is not retried."""

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called when the task has returned or failed."""

    # ── what is not covered ───────────────────────────────────────────────────────────────────

    def map(self, *_: Any) -> Any:
        """Not covered: raises NotCovered."""
        raise NotCovered("task.map(…)", "Write group(task.s(item) for item in items)")

    def starmap(self, *_: Any) -> Any:
        """Not covered: raises NotCovered."""
        raise NotCovered("task.starmap(…)", "Write group(task.s(*items) for items in many)")

    def chunks(self, *_: Any) -> Any:
        """Not covered: raises NotCovered."""
        raise NotCovered(
            "task.chunks(…)", "Write a task for a list of items, and group(task.s(part) for part in parts)"
        )

    def replace(self, *_: Any) -> Any:
        """Not covered: raises NotCovered."""
        raise NotCovered("self.replace(…)", "Enqueue the signature, and write its continuation into a chain")

    def __repr__(self) -> str:
        return f"<@task: {self.name}>"
