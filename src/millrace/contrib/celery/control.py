"""`app.control`, and the signals of an app: `on_after_configure` and `on_after_finalize`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from millrace.contrib.celery.exceptions import NotCovered

if TYPE_CHECKING:
    from millrace.contrib.celery.app import Celery


class Hook:
    """A signal of an app: `@app.on_after_configure.connect` registers a function, called with `sender`."""

    def __init__(self) -> None:
        self._functions: list[Callable[..., Any]] = []

    def connect(self, function: Callable[..., Any] | None = None, **_: Any) -> Any:
        """Register a function, and return it."""
        if function is None:
            return self.connect
        self._functions.append(function)
        return function

    def send(self, sender: Celery) -> None:
        """Call the functions."""
        for function in self._functions:
            function(sender=sender)


class Control:
    """`app.control`, as far as it changes jobs."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def revoke(self, task_id: str | Iterable[str], terminate: bool = False, **_: Any) -> None:
        """Cancel jobs by id. With `terminate`, also request those that run to stop."""
        for one in [task_id] if isinstance(task_id, str) else task_id:
            self._app.AsyncResult(one).revoke(terminate=terminate)

    def __getattr__(self, name: str) -> Any:
        raise NotCovered(
            f"app.control.{name}", "Use `millrace workers`, `millrace queues` and `millrace list`, or app.millrace.sync"
        )
