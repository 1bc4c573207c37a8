"""The current app: the Celery app that was created last, or on which `set_default` was called.

`@shared_task` makes tasks of every app, so that a module of tasks need not import one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from millrace.contrib.celery.exceptions import user_line
from millrace.contrib.celery.options import check_task_options
from millrace.contrib.celery.request import running
from millrace.domain.errors import InvalidInput

if TYPE_CHECKING:
    from millrace.contrib.celery.app import Celery
    from millrace.contrib.celery.task import CeleryTask

_current: list[Celery] = []  # one app, or none
_apps: WeakSet[Celery] = WeakSet()
shared: list[SharedTask] = []


class SharedTask:
    """What `@shared_task` returns: it acts as the task of the current app."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__module__ = function.__module__
        self.options = options

    def of(self, app: Celery) -> CeleryTask:
        """Return the task of this app. It is made at the first call."""
        return app.shared_tasks.get(self) or app.share(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.of(current_app())(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of(current_app()), name)

    def __repr__(self) -> str:
        return f"<@shared_task: {self.__module__}.{self.__name__}>"


def shared_task(*args: Any, **options: Any) -> Any:
    """Make a function a task of every app: `@shared_task`, or `@shared_task(bind=True)`."""
    if len(args) == 1 and callable(args[0]):
        return shared_task(**options)(args[0])

    def make(function: Callable[..., Any]) -> SharedTask:
        check_task_options(options.get("name") or function.__name__, options)
        task = SharedTask(function, options)
        shared.append(task)
        for app in [app for app in _apps if app.is_final]:
            task.of(app)  # the others get it when they are used
        return task

    return make


def add(app: Celery, *, current: bool) -> None:
    """Register a new app."""
    _apps.add(app)
    if current or not _current:
        set_current(app)


def set_current(app: Celery) -> None:
    """Make an app the current one."""
    _current[:] = [app]


def current_app() -> Celery:
    """Return the current app. Raises InvalidInput if there is none."""
    if not _current:
        raise InvalidInput(
            f"{user_line()}: no Celery app exists yet. Create one first: Celery('tasks', broker='sqlite:///jobs.db')"
        )
    return _current[0]


class Proxy:
    """An object that acts as another one, which is looked up at each use."""

    def __init__(self, find: Callable[[], Any]) -> None:
        object.__setattr__(self, "_find", find)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_find")(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_find")(), name, value)

    def __repr__(self) -> str:
        return repr(object.__getattribute__(self, "_find")())


def running_task() -> CeleryTask:
    """Return the task that runs on this thread. Raises InvalidInput outside of tasks."""
    call = running()
    if call is None:
        raise InvalidInput(f"{user_line()}: current_task is the task that runs, and none runs here")
    return call.task
