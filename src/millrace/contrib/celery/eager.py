"""`EagerResult`: the outcome of a task that ran in the caller's process."""

from __future__ import annotations

from typing import Any

from millrace.contrib.celery import states
from millrace.contrib.celery.result import AsyncResult


class EagerResult(AsyncResult):
    """The outcome of a task that ran in the caller's process."""

    def __init__(self, id: str, value: Any, state: str, name: str | None, traceback: str | None = None) -> None:
        self.id = id
        self.parent = None
        self.children = []
        self._value = value
        self._state = state
        self._name = name
        self._traceback = traceback

    def get(self, timeout: float | None = None, propagate: bool = True, *_: Any, **__: Any) -> Any:
        """Return the result, or raise the exception of the task."""
        if self._state != states.SUCCESS and propagate:
            raise self._value
        return self._value

    @property
    def state(self) -> str:
        """SUCCESS or FAILURE."""
        return self._state

    status = state

    @property
    def result(self) -> Any:
        """The result, or the exception."""
        return self._value

    info = result

    @property
    def traceback(self) -> str | None:
        """The traceback of the exception, as text."""
        return self._traceback

    @property
    def name(self) -> str | None:
        """The name of the task."""
        return self._name

    def revoke(self, *_: Any, **__: Any) -> None:
        """Do nothing: the task has run."""

    def forget(self) -> None:
        """Do nothing: nothing is stored."""
