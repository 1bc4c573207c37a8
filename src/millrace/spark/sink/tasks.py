"""The tasks for which rows are enqueued. They come from the app if the options name one, otherwise from the options
alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from millrace.app.app import App
from millrace.app.batch_task import BatchTask
from millrace.app.duration import milliseconds
from millrace.app.handler.batch_results import ITEM
from millrace.app.options import read_job_options, read_task_options
from millrace.app.pools.task import PoolTask
from millrace.app.task import Task
from millrace.domain.errors import InvalidInput, PayloadInvalid, QueueError
from millrace.domain.job import Spec
from millrace.domain.rules.check import check_name
from millrace.spark.options import SourceOptions
from millrace.spark.sink.plan import SinkPlan
from millrace.store.protocol import Store

_GIVEN = {
    "queue": "queue",
    "priority": "priority",
    "delay": "delay",
    "expires": "expires",
    "max_attempts": "maxAttempts",
    "timeout": "timeout",
}
_OF_KEYS = {"scope": "keyScope", "window": "keyWindow", "on_hit": "onHit"}


class Target:
    """A task for which rows are enqueued. Without an app, `template` is the spec of its jobs without the payload."""

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
        """Return for each row a spec from the app's task, or the reason why the row is invalid."""
        assert self.task is not None
        try:
            return [*next(self.task.chunks(rows, len(rows)))]
        except PayloadInvalid as one_of_them:
            if len(rows) == 1:
                return [str(one_of_them).removeprefix("item 0: ")]
        return [self.specs([row])[0] for row in rows]


class Targets:
    """All tasks of a write, by name. `of_keys` has the options that apply only to rows with a key: scope, window and
    on_hit.
    """

    def __init__(self, options: SourceOptions, plan: SinkPlan) -> None:
        self._plan = plan
        self._app = None if options["app"] is None else load_app(options["app"])
        self._keywords = {name: options[option] for name, option in _GIVEN.items() if options[option] is not None}
        self.of_keys = {name: options[option] for name, option in _OF_KEYS.items() if options[option] is not None}
        if "window" in self.of_keys:
            self.of_keys["window"] = milliseconds("option keyWindow", self.of_keys["window"])
        self._keywords["reuse"] = False  # writing a row again never runs its job again
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
            raise InvalidInput(f"the jobs of pool {name!r} run in its own lanes; remove queueColumn")
        return Target(name, self._keywords, task)

    async def check_pool(self, name: str, store: Store) -> None:
        """Raise InvalidInput if the pool has different numbers of lanes in the store and in the app. Otherwise jobs
        with the same partition key could get different lanes.
        """
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
    """Return the parameters of the job of each row, by name. For a batch task, the whole row is the parameter `item`,
    unless the rows have a column of that name.
    """
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return [{ITEM: row} for row in rows] if target.takes_items and ITEM not in names else rows


def load_app(name: str) -> App:
    """Import the app `module:name` in a Spark process and return it. Raises InvalidInput if that fails."""
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")]):
        raise InvalidInput(f"option app names an app as module:name, e.g. shop.tasks:app; not {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found: object = import_module(module_name)
    except Exception as error:  # the user's module may raise anything on import
        raise InvalidInput(
            f"option app: importing {module_name!r} failed in a Spark process: {type(error).__name__}: {error}. Its "
            "code must be installed where driver and executors run, or be sent with --py-files"
        ) from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise InvalidInput(f"option app: {name!r} is {type(found).__name__}, not a Millrace App")
    return found
