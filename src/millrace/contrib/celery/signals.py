"""The place of `celery.signals`, which is not covered: importing a signal raises NotCovered."""

from __future__ import annotations

from typing import Any

from millrace.contrib.celery.exceptions import NotCovered

_INSTEAD = {
    "task_failure": "Write on_failure in a base class of tasks, or listen: @app.millrace.on('failed')",
    "task_success": "Write on_success in a base class of tasks, or listen: @app.millrace.on('completed')",
    "task_retry": "Write on_retry in a base class of tasks, or listen: @app.millrace.on('retried')",
}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    how = _INSTEAD.get(name, "Write middleware: @app.millrace.middleware runs around every attempt")
    raise NotCovered(f"the signal {name!r}", how)
