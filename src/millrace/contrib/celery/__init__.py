"""Celery's API on Millrace: an existing module of tasks runs with `from millrace.contrib.celery import …` instead.

What is not covered fails at import, or at the call, with the line to change. Start at `app.py`; `flow.py` enqueues, and
`runs.py` runs the tasks. No part of this package needs Celery.
"""

from __future__ import annotations

from typing import Any

from millrace.contrib.celery import exceptions, states
from millrace.contrib.celery.app import Celery
from millrace.contrib.celery.canvas import chain, chord, group
from millrace.contrib.celery.current import Proxy as _Proxy
from millrace.contrib.celery.current import current_app as _current_app
from millrace.contrib.celery.current import running_task as _running_task
from millrace.contrib.celery.current import shared_task
from millrace.contrib.celery.eager import EagerResult
from millrace.contrib.celery.exceptions import NotCovered
from millrace.contrib.celery.group_result import GroupResult
from millrace.contrib.celery.log import get_task_logger
from millrace.contrib.celery.result import AsyncResult
from millrace.contrib.celery.schedules import crontab, schedule
from millrace.contrib.celery.signature import CelerySignature as Signature
from millrace.contrib.celery.signature import signature
from millrace.contrib.celery.task import CeleryTask as Task

subtask = signature
current_app: Any = _Proxy(_current_app)
current_task: Any = _Proxy(_running_task)

__all__ = [
    "AsyncResult",
    "Celery",
    "EagerResult",
    "GroupResult",
    "NotCovered",
    "Signature",
    "Task",
    "chain",
    "chord",
    "crontab",
    "current_app",
    "current_task",
    "exceptions",
    "get_task_logger",
    "group",
    "schedule",
    "shared_task",
    "signature",
    "states",
    "subtask",
]

_NOT_COVERED = {
    "bootsteps": "Write middleware: @app.millrace.middleware",
    "chunks": "Write a task for a list of items, and group(task.s(part) for part in parts)",
    "maybe_signature": "Write signature(…)",
    "platforms": "Remove it",
    "uuid": "Write str(uuid.uuid4())",
    "xmap": "Write group(task.s(item) for item in items)",
    "xstarmap": "Write group(task.s(*items) for items in many)",
}


def __getattr__(name: str) -> Any:
    if name in _NOT_COVERED:
        raise NotCovered(f"celery.{name}", _NOT_COVERED[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
