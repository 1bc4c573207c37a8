"""Signatures: a task with arguments and options, for a later call. `canvas.py` makes flows of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from millrace.contrib.celery.current import SharedTask, current_app
from millrace.contrib.celery.exceptions import NotCovered
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.contrib.celery.app import Celery
    from millrace.contrib.celery.task import CeleryTask


class Canvas:
    """A signature, or a flow of signatures. It is called with `apply_async`, `delay`, or like a function."""

    def apply_async(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Enqueue all jobs of the flow in one step. The arguments are for the first task, or for all of a group."""
        from millrace.contrib.celery.flow import send

        return send(self.clone(args, kwargs, **options))

    def apply(self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Run the flow in this process, and return the result object."""
        from millrace.contrib.celery.flow import run_here

        return run_here(self.clone(args, kwargs, **options))

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueue all jobs of the flow, with these arguments for the first task."""
        return self.apply_async(args, kwargs)

    def clone(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Canvas:
        """Return a copy with more arguments and options. The arguments are put before those that it has."""
        raise NotImplementedError

    def set(self, **options: Any) -> Any:
        """Set options of the call, such as queue and countdown, and return this object."""
        raise NotImplementedError

    def link(self, callback: Canvas) -> Any:
        """Run `callback` with the result when the flow has completed. Return this object."""
        raise NotImplementedError

    def on_error(self, errback: CelerySignature) -> Any:
        """Call `errback` if the flow fails. Return this object."""
        raise NotImplementedError

    def signatures(self) -> list[CelerySignature]:
        """Return all signatures of the flow."""
        raise NotImplementedError

    @property
    def app(self) -> Celery:
        """The app of the first task."""
        found = self.signatures()
        return found[0].app if found else current_app()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.apply_async(args, kwargs)

    def __or__(self, other: object) -> Canvas:
        from millrace.contrib.celery.canvas import canvas, joined

        return joined(self, canvas(other))

    def __invert__(self) -> Any:
        return self.apply_async().get()

    def __getattr__(self, name: str) -> Any:
        if name in ("freeze", "stamp", "skew", "unchain_tasks"):
            raise NotCovered(f"{type(self).__name__}.{name}", "Pass task_id=… with the call to choose an id")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class CelerySignature(Canvas):
    """A task with arguments and options. `task` is a task, or the name of one that this process need not know."""

    def __init__(
        self,
        task: CeleryTask | SharedTask | str,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        app: Celery | None = None,
        **more: Any,
    ) -> None:
        self._app = app
        self.task = task
        self.args = tuple(args or ())
        self.kwargs = dict(kwargs or {})
        self.options: dict[str, Any] = {**(options or {}), **more}
        self.immutable = immutable

    @property
    def app(self) -> Celery:
        """The app of the task."""
        if self._app is not None:
            return self._app
        return current_app() if isinstance(self.task, str) else self.task.app

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.task if isinstance(self.task, str) else str(self.task.name)

    @property
    def known(self) -> CeleryTask | None:
        """The task; None if this process does not know it."""
        return self.app.tasks.get(self.name)

    @property
    def id(self) -> str | None:
        """The id that `task_id` chooses, if any."""
        return self.options.get("task_id")

    def clone(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> CelerySignature:
        if self.immutable:
            args = kwargs = None
        return CelerySignature(
            self.task,
            (*(args or ()), *self.args),
            {**self.kwargs, **(kwargs or {})},
            {**self.options, **options},
            immutable=self.immutable,
            app=self._app,
        )

    def set(self, immutable: bool | None = None, **options: Any) -> CelerySignature:
        if immutable is not None:
            self.immutable = immutable
        self.options.update(options)
        return self

    def link(self, callback: Canvas) -> CelerySignature:
        self.options["link"] = [*many(self.options.get("link")), callback]
        return self

    def on_error(self, errback: CelerySignature) -> CelerySignature:
        self.options["link_error"] = [*many(self.options.get("link_error")), errback]
        return self

    link_error = on_error

    def signatures(self) -> list[CelerySignature]:
        return [self]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of the task in this process, without a job."""
        if self.known is None:
            raise InvalidInput(f"task {self.name!r} is not registered here; use apply_async")
        made = self.clone(args, kwargs)
        return self.known(*made.args, **made.kwargs)

    def __repr__(self) -> str:
        shown = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.name}({', '.join(shown)})"


def signature(
    task: CeleryTask | SharedTask | str | CelerySignature,
    args: Iterable[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> CelerySignature:
    """Return a signature of a task, which may be named: `signature("tasks.add", args=(2, 2), countdown=10)`."""
    if isinstance(task, CelerySignature):
        return task.clone(args, kwargs, **(options or {}), **more)
    return CelerySignature(task, args, kwargs, options, **more)


def many(value: Any) -> list[Any]:
    """Return one or several callbacks as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
