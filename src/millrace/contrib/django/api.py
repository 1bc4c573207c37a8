"""The API of Django's tasks: from Django 6, or from the package django-tasks for earlier versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # Django has no types, and only one of the two packages is installed
    Task: TypeAlias = Any
    TaskContext: TypeAlias = Any
    TaskError: TypeAlias = Any
    TaskResult: TypeAlias = Any
    BaseTaskBackend: TypeAlias = Any
    TaskResultStatus: Any
    InvalidTask: type[Exception]
    TaskResultDoesNotExist: type[Exception]
    signals: Any
    task_backends: Any
else:
    try:
        from django.tasks import signals, task_backends
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    except ModuleNotFoundError as missing:
        if missing.name != "django.tasks":
            raise
        from django_tasks import signals, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "signals",
    "task_backends",
]
