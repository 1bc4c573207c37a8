"""The Millrace app of a task backend. There is one per alias and process.

Django makes a backend object for each thread, so what a process shares is here: the app with its store, and the tasks
that Django knows. A task is registered when its module is imported, but the app is made at its first use, because the
database of a test run is not known earlier.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules, import_string

from millrace.app.app import App
from millrace.contrib.django.api import InvalidTask, Task, task_backends
from millrace.contrib.django.database import database_url
from millrace.contrib.django.handlers import finished_listener, handler_for
from millrace.contrib.django.task_options import DEFAULTS, level_of, options_of
from millrace.domain.job import Job
from millrace.worker.worker import Worker

PRIORITY, RUN_AFTER = "django.priority", "django.run_after"  # headers of a job

_lock = threading.RLock()
_apps: dict[str, DjangoApp] = {}
_declared: defaultdict[str, dict[str, Task]] = defaultdict(dict)  # by alias, then by the path of the function


class DjangoApp(App):
    """The app of a task backend: `millrace.contrib.django.get_app()`. Its tasks are named by their module paths.

    Tasks of Millrace can be registered on it too, with `@app.task`, and run on the same workers.
    """

    def __init__(self, alias: str) -> None:
        super().__init__("memory://")
        self.alias = alias
        self._place = ""
        listener = finished_listener(self)
        for kind in ("completed", "failed", "cancelled"):
            self.on(kind, listener)

    @property
    def backend(self) -> Any:
        """The task backend, as Django has it for this thread."""
        return task_backends[self.alias]

    def declared(self, path: str) -> Task | None:
        """Return the task of Django with this module path, or None if this backend has no such task.

        If it is not known yet, its module is imported, but only if it belongs to an installed app: the path is data.
        """
        known = _declared[self.alias]
        if path not in known and apps.get_containing_app_config(path) is not None:
            with suppress(ImportError):
                import_string(path)  # declares it
        return known.get(path)

    def task_of(self, job: Job) -> Task:
        """Return the task of Django that a job was enqueued with, including what `using` has changed."""
        declared: Task = self.declared(job.task)
        headers = job.spec.headers or {}
        changes: dict[str, Any] = {}
        if job.queue != declared.queue_name:
            changes["queue_name"] = job.queue
        if PRIORITY in headers:
            changes["priority"] = int(headers[PRIORITY])
        if RUN_AFTER in headers:
            changes["run_after"] = datetime.fromisoformat(headers[RUN_AFTER])
        with suppress(InvalidTask):  # the settings have changed since the enqueue, for example QUEUES
            return declared.using(**changes) if changes else declared
        return declared

    def register(self, task: Task) -> None:
        path = task.module_path
        if path in self.tasks:
            return
        given = {**DEFAULTS, **self.backend.defaults, **options_of(task.func)}
        given |= {"queue": task.queue_name, "priority": level_of(task.priority)}
        self.task(name=path, **given)(handler_for(self, task.func))

    def place(self, url: str) -> None:
        """Use the store at this URL. The URL changes when a test run replaces the databases of the settings."""
        if url != self._place:
            self.use(url)
            self._place = url

    def open(self) -> None:
        """Open the store for `app.sync`, which creates its tables."""
        self.sync.run(self.connected())

    def worker(self, queues: Sequence[str] | str | None = None, **options: Any) -> Worker:
        """Return a worker. By default, it serves the queues of the tasks and those in QUEUES of the backend."""
        if queues is None and options.get("tasks") is None:
            queues = sorted({*self.backend.queues, *(task.options.queue for task in self.tasks.values())})
        return super().worker(queues, **options)


def get_app(alias: str = "default") -> DjangoApp:
    """Return the app of a task backend. Raises ImproperlyConfigured if the alias is that of another kind of backend."""
    backend = task_backends[alias]
    if getattr(backend, "store_url", None) is None:
        raise ImproperlyConfigured(
            f"TASKS[{alias!r}] has the backend {type(backend).__module__}.{type(backend).__name__}. For Millrace, set "
            "'BACKEND': 'millrace.contrib.django.MillraceBackend'"
        )
    with _lock:
        app = _apps.get(alias)
        if app is None:
            app = DjangoApp(alias)
            for task in list(_declared[alias].values()):
                app.register(task)
            _apps[alias] = app
    app.place(backend.store_url())
    return app


def get_worker_app(alias: str) -> DjangoApp:
    """Return the app of a task backend with all tasks: of modules that are imported, and of `tasks` of each Django app.

    Sets Django up if the program has not done so.
    """
    if not apps.ready:
        import django

        django.setup()
    autodiscover_modules("tasks")
    return get_app(alias)


def declare(alias: str, task: Task) -> None:
    """Remember a task of Django, so that workers know it."""
    with _lock:
        if _declared[alias].setdefault(task.module_path, task) is task and alias in _apps:
            _apps[alias].register(task)


def url_of(options: dict[str, Any]) -> str:
    """Return the URL of the store that the OPTIONS of a backend name."""
    url = options.get("url")
    return database_url(options.get("database", "default")) if url is None else str(url)
