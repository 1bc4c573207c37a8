"""`Celery`: an app in Celery's style, which registers its tasks on an app of Millrace.

The Millrace app, `celery_app.millrace`, is made when it is first needed, because settings may be set after the tasks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import tzinfo
from inspect import iscoroutinefunction
from typing import Any
from zoneinfo import ZoneInfo

from millrace.app.app import App
from millrace.app.task import Task
from millrace.contrib.celery import brokers, current
from millrace.contrib.celery.blocking import blocking
from millrace.contrib.celery.conf import CeleryConf
from millrace.contrib.celery.control import Control, Hook
from millrace.contrib.celery.discovery import Discovery, Packages
from millrace.contrib.celery.errbacks import LINK_ERROR, hook_of
from millrace.contrib.celery.exceptions import NotCovered, user_line
from millrace.contrib.celery.options import check_task_options, priority_order, registered_as
from millrace.contrib.celery.result import AsyncResult
from millrace.contrib.celery.runs import handler_of
from millrace.contrib.celery.schedules import declare, entry_of
from millrace.contrib.celery.signature import CelerySignature, signature
from millrace.contrib.celery.task import CeleryTask
from millrace.domain.errors import InvalidInput

_WORKER = "Start a worker with `millrace worker --app {}`. It runs the schedules too"


class Celery:
    """An app: `Celery("tasks", broker="redis://localhost:6379/0")`. Keywords are settings, such as task_always_eager.

    The URL of the broker names the store; `backend` needs none of its own, because results are kept with their jobs.
    """

    def __init__(
        self,
        main: str | None = None,
        *,
        broker: str | None = None,
        backend: str | None = None,
        include: Iterable[str] | None = None,
        config_source: Any = None,
        namespace: str | None = None,
        task_cls: type[CeleryTask] | None = None,
        set_as_current: bool = True,
        **settings: Any,
    ) -> None:
        self.main = main
        self.conf = CeleryConf()
        self.Task = CeleryTask if task_cls is None else task_cls
        self.control = Control(self)
        self.on_after_configure = Hook()
        self.on_after_finalize = Hook()
        self.own_tasks: dict[str, CeleryTask] = {}
        self.shared_tasks: dict[current.SharedTask, CeleryTask] = {}
        self._discovery = Discovery()
        self._lock = threading.RLock()
        self._millrace: App | None = None
        self._order: brokers.PriorityOrder | None = None  # fixed with the settings
        self._elsewhere: App | None = None  # for calls of tasks that only workers know
        given = {"broker_url": broker, "result_backend": backend, "include": include, **settings}
        self.conf.update({name: value for name, value in given.items() if value is not None})
        if config_source is not None:
            self.config_from_object(config_source, namespace=namespace)
        current.add(self, current=set_as_current)

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    def task(self, *args: Any, **options: Any) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(bind=True, max_retries=5)`."""
        if len(args) == 1 and callable(args[0]) and not isinstance(args[0], CeleryTask):
            return self.make_task(args[0], options)
        if args:
            raise InvalidInput(f"{user_line()}: @app.task takes options by name, not {args[0]!r}")
        return lambda function: self.make_task(function, options)

    def make_task(self, function: Callable[..., Any], options: Mapping[str, Any]) -> CeleryTask:
        """Return the task of a function with these options, registered."""
        name = str(options.get("name") or self.name_of(function))
        check_task_options(name, options)
        if iscoroutinefunction(function):
            raise NotCovered(f"the coroutine function of task {name!r}", "Write @app.millrace.task, which takes both")
        attributes = {key: value for key, value in options.items() if key not in ("base", "bind", "name")}
        run: Any = function if options.get("bind") else staticmethod(function)
        facts = {"run": run, "__doc__": function.__doc__, "__module__": function.__module__, "__wrapped__": function}
        kind = type(function.__name__, (options.get("base") or self.Task,), {**attributes, **facts, "name": name})
        return self.register_task(kind())

    def register_task(self, task: CeleryTask | type[CeleryTask]) -> CeleryTask:
        """Register a task that is a class of its own, and return it."""
        made = task() if isinstance(task, type) else task
        made.app = self
        made.name = made.name or f"{type(made).__module__}.{type(made).__name__}"
        check_task_options(made.name, {name: getattr(made, name) for name in ("rate_limit", "soft_time_limit")})
        known = self.own_tasks.get(made.name)
        if known is not None:
            return known  # as in Celery, the first one stays
        self.own_tasks[made.name] = made
        if self._millrace is not None:
            self._register(self._millrace, made)
        return made

    @property
    def is_final(self) -> bool:
        """Whether the app of Millrace is made."""
        return self._millrace is not None

    def share(self, task: current.SharedTask) -> CeleryTask:
        """Make the task of this app for a `@shared_task`."""
        made = self.shared_tasks[task] = self.make_task(task.__wrapped__, task.options)
        return made

    def name_of(self, function: Callable[..., Any]) -> str:
        """Return the default name of a task: its module, or the app's name in a main program, and its function."""
        module = function.__module__
        return f"{self.main if module == '__main__' and self.main else module}.{function.__name__}"

    @property
    def tasks(self) -> dict[str, CeleryTask]:
        """The tasks of the app by name, including shared tasks."""
        if len(self.shared_tasks) < len(current.shared):
            for task in list(current.shared):
                task.of(self)
        return self.own_tasks

    def signature(self, task: str, *args: Any, **options: Any) -> CelerySignature:
        """Return a signature of a task of this app, by name."""
        return signature(task, *args, app=self, **options)

    def send_task(
        self, name: str, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        """Enqueue a job of a task by name. This process need not know the task."""
        sent: AsyncResult = CelerySignature(name, args, kwargs, options, app=self).apply_async()
        return sent

    def AsyncResult(self, id: str, **_: Any) -> AsyncResult:
        """Return the result object of the job with this id."""
        return AsyncResult(id, app=self)

    # ── settings ──────────────────────────────────────────────────────────────────────────────

    def config_from_object(
        self, source: Any, silent: bool = False, force: bool = False, namespace: str | None = None
    ) -> None:
        """Read settings from an object, a mapping, or a module by name: `app.config_from_object("celeryconfig")`."""
        self.conf.read(source, namespace)

    def config_from_envvar(self, variable: str, silent: bool = False, force: bool = False) -> None:
        """Read settings from the module that an environment variable names."""
        name = os.environ.get(variable)
        if name:
            self.conf.read(name)
        elif not silent:
            raise InvalidInput(f"{user_line()}: the environment variable {variable} is not set")

    def autodiscover_tasks(
        self,
        packages: Packages = None,
        related_name: str | None = "tasks",
        force: bool = False,
    ) -> None:
        """Import the module `tasks` of each package when the app is first used; without packages, of Django's apps."""
        self._discovery.add(packages, related_name)

    def add_periodic_task(
        self,
        schedule: Any,
        signature: CelerySignature,
        args: Any = (),
        kwargs: Any = None,
        name: str | None = None,
        **options: Any,
    ) -> str:
        """Declare a schedule: `app.add_periodic_task(30.0, ping.s(), name="ping")`. Return its name."""
        key = name or repr(signature)
        entry = entry_of(schedule, signature.clone(args, kwargs) if args or kwargs else signature, options)
        self.conf.beat_schedule[key] = entry
        return key

    @property
    def timezone(self) -> tzinfo:
        """The time zone of schedules, and of instants without one."""
        return ZoneInfo(self.conf.timezone or "UTC")

    zone = timezone

    def priority(self, number: int | None) -> int:
        """Return Millrace's priority for a priority of Celery."""
        given = self.conf.task_default_priority if number is None else number
        return brokers.priority(given, self._order or priority_order(self))

    def broker(self) -> str:
        """Return the URL of the broker: the setting, or the environment variable CELERY_BROKER_URL or MILLRACE_URL."""
        url = self.conf.broker_url or os.environ.get("CELERY_BROKER_URL") or os.environ.get("MILLRACE_URL")
        if url is None:
            raise InvalidInput(
                f"the Celery app {self.main or ''!r} has no broker. Pass broker='sqlite:///jobs.db', or another URL"
            )
        return str(url)

    # ── Millrace ──────────────────────────────────────────────────────────────────────────────

    @property
    def millrace(self) -> App:
        """The app of Millrace, with all tasks and schedules. It is made at the first use; then settings are fixed."""
        with self._lock:  # another thread must not see an app without its schedules
            if self._millrace is None:
                self._finalize()
            assert self._millrace is not None
            return self._millrace

    def finalize(self, auto: bool = False) -> None:
        """Make the app of Millrace now."""
        _ = self.millrace

    def registered(self, name: str) -> Task[..., Any]:
        """Return the task of Millrace with this name. If only workers know the task, return one for calls alone."""
        app = self.millrace
        if name in app.tasks:
            return app.tasks[name]
        if self._elsewhere is None:
            self._elsewhere = App(app.store)
        if name not in self._elsewhere.tasks:
            unknown = CeleryTask()
            unknown.name = name
            self._elsewhere.task(**registered_as(self, unknown))(handler_of(unknown))
        return self._elsewhere.tasks[name]

    def _finalize(self) -> None:
        app = App(brokers.store_url(self.broker()))
        self._order = priority_order(self)
        self.on_after_configure.send(self)
        self._discovery.import_all(self.conf.include, self.conf.imports)
        for task in self.tasks.values():
            self._register(app, task)
        app.task(name=LINK_ERROR, queue=self.conf.task_default_queue)(hook_of(self))
        self._millrace = app
        try:
            self.on_after_finalize.send(self)
            for name, entry in self.conf.beat_schedule.items():
                declare(self, name, entry)
        except BaseException:
            # The next use fails too: nobody would notice an app with only some of its schedules.
            self._millrace = self._elsewhere = None
            raise
        self.conf.freeze()

    def _register(self, app: App, task: CeleryTask) -> None:
        app.task(**registered_as(self, task))(handler_of(task))

    # ── the rest of Celery's app ──────────────────────────────────────────────────────────────

    def set_default(self) -> None:
        """Make this the app of shared tasks."""
        current.set_current(self)

    set_current = set_default

    def close(self) -> None:
        """Close the connections of the app."""
        if self._millrace is not None:
            blocking(self._millrace.sync.close)

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_COVERED:
            raise NotCovered(f"Celery.{name}", _NOT_COVERED[name])
        raise AttributeError(f"'Celery' object has no attribute {name!r}")

    def __enter__(self) -> Celery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Celery {self.main or '__main__'}>"


_NOT_COVERED = {
    "Beat": _WORKER.format("module:app"),
    "Worker": _WORKER.format("module:app"),
    "amqp": "Remove it: there is no AMQP",
    "backend": "Read results with AsyncResult",
    "connection": "Read and change jobs with app.millrace.sync.jobs",
    "connection_for_read": "Read and change jobs with app.millrace.sync.jobs",
    "connection_for_write": "Read and change jobs with app.millrace.sync.jobs",
    "events": "Read app.millrace.sync.events()",
    "log": "Configure `logging`",
    "pool": "Remove it: the app has its connections",
    "start": _WORKER.format("module:app"),
    "steps": "Write middleware: @app.millrace.middleware",
    "user_options": "Read the environment",
    "worker_main": _WORKER.format("module:app"),
}
