"""The backend for Django's tasks: `enqueue` makes a job, and `get_result` reads it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone

from millrace.app.ids import new_ids
from millrace.app.options import read_task_options
from millrace.contrib.django.api import BaseTaskBackend, Task, TaskResult, TaskResultDoesNotExist, signals
from millrace.contrib.django.app import PRIORITY, RUN_AFTER, DjangoApp, declare, get_app, url_of
from millrace.contrib.django.database import open_transaction
from millrace.contrib.django.results import new_result, result_of
from millrace.contrib.django.task_options import level_of
from millrace.domain.errors import InvalidInput, QueueError, did_you_mean
from millrace.domain.event import Event
from millrace.domain.job import Job, State
from millrace.store.connect import connect

KNOWN = ("url", "database", "on_commit", "defaults")


class MillraceBackend(BaseTaskBackend):
    """A backend for Django's tasks: `TASKS = {"default": {"BACKEND": "millrace.contrib.django.MillraceBackend"}}`.

    Without OPTIONS, jobs are in the database "default", and an enqueue is part of the open transaction. The OPTIONS
    are: `database`, the alias of another database; `url`, another store, where jobs are enqueued after the commit of
    the open transaction, or at once with `"on_commit": False`; `defaults`, options of Millrace for all tasks.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        for name in self.options:
            if name not in KNOWN:
                raise ImproperlyConfigured(
                    f"TASKS[{alias!r}]: there is no option {name!r}. {did_you_mean(name, KNOWN)}"
                )
        self.defaults: dict[str, Any] = dict(self.options.get("defaults", {}))
        self.database: str = self.options.get("database", "default")

    @property
    def app(self) -> DjangoApp:
        """The Millrace app of this backend, for what Django's API does not have: cancel, replay, queues, …"""
        return get_app(self.alias)

    def store_url(self) -> str:
        """Return the URL of the store."""
        return url_of(self.options)

    def validate_task(self, task: Task) -> None:
        """Check a task as Django does, and register it for workers. Django calls this for each task that is made."""
        super().validate_task(task)
        declare(self.alias, task)

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: dict[str, Any]) -> TaskResult:
        """Enqueue a job and return its result, which is READY.

        If a transaction is open on the database, the job is part of it, or is enqueued after its commit.
        """
        self.validate_task(task)
        app = self.app
        [job_id] = new_ids(app.store.ids, 1)
        result = new_result(task, self.alias, job_id, args, kwargs)
        put = partial(self._put, app, task, result)
        if "url" not in self.options:
            put(open_transaction(self.database))
        elif self.options.get("on_commit", True):
            transaction.on_commit(put, using=self.database)  # at once, if no transaction is open
        else:
            put()
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """Return the result of a job. Raises TaskResultDoesNotExist if there is no such job, or it was pruned."""
        app = self.app
        record, history = app.sync.run(_read(app, str(result_id)))
        if record is None or app.declared(record.task) is None:
            raise TaskResultDoesNotExist(result_id)
        payload = app.serdes.decode(record.spec.payload, record.spec.serde)
        result = result_of(record, app.task_of(record), self.alias, payload, history)
        if record.state is State.COMPLETED and record.result is not None:
            object.__setattr__(result, "_return_value", app.serdes.decode(record.result, record.spec.serde))
        return result

    def check(self, **kwargs: Any) -> Iterable[CheckMessage]:
        """Report a store or options that cannot be used, for `manage.py check`."""
        yield from super().check(**kwargs)
        try:
            connect(self.store_url())
            read_task_options("defaults", self.defaults, "json")
            _ = self.app
        except (ImproperlyConfigured, QueueError) as error:
            yield Error(f"TASKS[{self.alias!r}]: {error}", id="millrace.E001")

    def _put(self, app: DjangoApp, task: Task, result: TaskResult, within: object = None) -> None:
        made = app.tasks[task.module_path]
        options = {"id": result.id, **_changes(task, app.declared(task.module_path))}
        if within is not None:
            options["within"] = within
            if not isinstance(within, sqlite3.Connection):  # which needs no open store: opening it would wait for it
                app.open()
        made.options(**options).sync.enqueue(result.args, result.kwargs)
        signals.task_enqueued.send(sender=type(self), task_result=result)


async def _read(app: DjangoApp, job_id: str) -> tuple[Job | None, list[Event]]:
    try:
        status = await app.jobs.get(job_id)
    except InvalidInput:  # no id of a job
        return None, []
    return (None, []) if status is None else (status.record, await app.jobs.history(job_id))


def _changes(task: Task, declared: Task) -> dict[str, Any]:
    """Return the options by which the jobs of a task differ from those of its declaration."""
    changes: dict[str, Any] = {}
    headers: dict[str, str] = {}
    if task.queue_name != declared.queue_name:
        changes["queue"] = task.queue_name
    if task.priority != declared.priority:
        changes["priority"] = level_of(task.priority)
        headers[PRIORITY] = str(task.priority)
    if task.run_after is not None:  # not `at`: inside a transaction, the store's clock cannot be read
        changes["delay"] = max(timedelta(0), task.run_after - timezone.now())
        headers[RUN_AFTER] = task.run_after.isoformat()
    return {**changes, "headers": headers} if headers else changes
