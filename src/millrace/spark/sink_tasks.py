"""The tasks that rows are enqueued for: through the app where it is at hand, else by what the options say alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from millrace.domain.check import check_name
from millrace.domain.errors import InvalidInput, PayloadInvalid, QueueError
from millrace.domain.job import Spec
from millrace.runtime.answers import ITEM
from millrace.runtime.app import App
from millrace.runtime.batch_task import BatchTask
from millrace.runtime.options import read_job_options, read_task_options
from millrace.runtime.pool_task import PoolTask
from millrace.runtime.task import Task
from millrace.spark.options import Options
from millrace.spark.sink_plan import Plan
from millrace.store.protocol import Store

_GIVEN = {
    "queue": "queue",
    "priority": "priority",
    "delay": "delay",
    "expires": "expires",
    "max_attempts": "maxAttempts",
    "timeout": "timeout",
    "scope": "keyScope",
    "window": "keyWindow",
    "on_hit": "onHit",
}


class Target:
    """One task. `template` is a spec of its jobs, without payload."""

    def __init__(self, name: str, keywords: dict[str, Any], task: Task[..., Any] | None) -> None:
        self.name = name
        self.task = task
        if task is None:
            check_name("task", name)
            self.template = read_job_options(name, keywords, *read_task_options(name, {}, "json"))[1]
        else:
            self.task = task.bound(keywords)

    @property
    def takes_items(self) -> bool:
        return isinstance(self.task, BatchTask)

    def specs(self, rows: Sequence[dict[str, Any]]) -> list[Spec | str]:
        """By the app's task: its spec for each row, or the reason why there is none."""
        assert self.task is not None
        try:
            return [*next(self.task.chunks(rows, len(rows)))]
        except PayloadInvalid as one_of_them:
            if len(rows) == 1:
                return [str(one_of_them).removeprefix("item 0: ")]
        return [self.specs([row])[0] for row in rows]


class Targets:
    """Every task that a write has met, by name."""

    def __init__(self, options: Options, plan: Plan) -> None:
        self._plan = plan
        self._app = None if options["app"] is None else load_app(options["app"])
        self._keywords = {name: options[option] for name, option in _GIVEN.items() if options[option] is not None}
        self._keywords["reuse"] = False  # a row that was written once is never run again by writing it again
        self._found: dict[str, Target | str] = {}

    @property
    def by_app(self) -> bool:
        return self._app is not None

    def __getitem__(self, name: str) -> Target:
        found = self._found.get(name)
        if found is None:
            try:
                found = self._target(name)
            except QueueError as error:
                found = str(error)
            self._found[name] = found
        if isinstance(found, str):
            raise InvalidInput(found)
        return found

    def _target(self, name: str) -> Target:
        task = None if self._app is None else self._app.find_task(name)
        if isinstance(task, PoolTask) and self._plan.queue is not None:
            raise InvalidInput(f"the jobs of pool {name!r} stand in its own lanes: leave out queueColumn")
        return Target(name, self._keywords, task)

    async def check_pool(self, name: str, store: Store) -> None:
        """The lanes of a pool are written to its store by its app; without them, its order would not hold."""
        task = self[name].task
        if not isinstance(task, PoolTask):
            return
        settings: Any = await store.control("queue", name, {})
        if settings.lanes != task.pool.lanes:
            raise InvalidInput(
                f"pool {name!r} has {task.pool.lanes} lanes in the app and {settings.lanes or 'none'} in this store. "
                "Start a worker of the app once, or open the app (`async with app:`), so that it is declared there"
            )


def rows_as_dicts(names: Sequence[str], columns: Sequence[Sequence[Any]], target: Target) -> list[dict[str, Any]]:
    """The parameters of each row's job. The item of a batch task is the row itself, unless a column is named so."""
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return [{ITEM: row} for row in rows] if target.takes_items and ITEM not in names else rows


def load_app(name: str) -> App:
    """The app called `module:name`, as every Spark process that has its code finds it."""
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")]):
        raise InvalidInput(f"option app names an app as module:name, e.g. shop.tasks:app; not {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found: object = import_module(module_name)
    except Exception as error:  # whatever the user's module does when it is imported
        raise InvalidInput(
            f"option app: importing {module_name!r} failed in a Spark process: {type(error).__name__}: {error}. Its "
            "code must be installed where driver and executors run, or be sent with --py-files"
        ) from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise InvalidInput(f"option app: {name!r} is {type(found).__name__}, not a millrace App")
    return found
