"""Creates job specs from JSON input of the command line or the HTTP API, with or without the app's code.

With the app's code, the payload is validated against the task's annotations, and the task's options apply. Without it,
the payload is stored unchanged, and the worker validates it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.app.app import App
from millrace.app.ids import new_ids, new_token
from millrace.app.options import read_job_options, read_task_options
from millrace.app.task import Task
from millrace.domain.errors import PayloadInvalid, UnknownTask
from millrace.domain.job import Spec
from millrace.domain.rules.check import MAX_PAYLOAD


class SpecBuilder:
    """Creates the specs of jobs of one task. Without an app, it uses only the input and the default options."""

    def __init__(self, app: App | None, task: str, keywords: dict[str, Any]) -> None:
        self._named = "id" in keywords
        self._task = None if app is None else _found(app, task).options(**keywords)
        if self._task is None:
            base, template = read_task_options(task, {}, "json")
            self._template = read_job_options(task, keywords, base, template)[1]

    def specs(self, app: App, many: list[dict[str, Any]]) -> list[Spec]:
        if self._task is not None:
            return [self._checked(values) for values in many]
        ids = new_ids(app.store.ids, len(many))
        return [self._raw(job_id, values) for job_id, values in zip(ids, many, strict=True)]

    def _checked(self, values: dict[str, Any]) -> Spec:
        assert self._task is not None
        try:
            parameters = self._task.load(msgspec.json.encode(values), "json")
        except PayloadInvalid:
            if "self" not in values:
                self._task.spec(**values)  # raises an error that explains more
            raise
        try:
            return self._task.spec(**parameters)
        except TypeError:  # a parameter called `self` cannot be passed by name
            raise PayloadInvalid("a payload cannot have a parameter 'self'; give it another name") from None

    def _raw(self, job_id: str, values: dict[str, Any]) -> Spec:
        payload = msgspec.json.encode(values)
        if len(payload) > MAX_PAYLOAD:
            raise PayloadInvalid(
                f"the payload has {len(payload):,} bytes; the limit is {MAX_PAYLOAD:,}. "
                "Store large data elsewhere and pass a reference to it."
            )
        if self._named:
            return msgspec.structs.replace(self._template, payload=payload, token=new_token())
        return msgspec.structs.replace(self._template, id=job_id, payload=payload, token=job_id)


def _found(app: App, name: str) -> Task[..., Any]:
    """Return the task with this name. Raises UnknownTask if there is none.

    If `name` is the name of a function whose task has another name, the message has the name of the task.
    """
    try:
        return app.find_task(name)
    except UnknownTask as unknown:
        for task in app.tasks.values():
            if getattr(task.handler, "__name__", None) == name:
                raise UnknownTask(f"the task of function {name!r} is called {task.name!r}: submit that") from unknown
        raise
