"""The integration with Django: a backend for Django's tasks, a management command, and the dashboard behind the admin.

Add "millrace.contrib.django" to INSTALLED_APPS. `backend.py` is what TASKS names; `app.py` has the Millrace app of a
backend; `handlers.py` runs a task in a worker. Django 6 has the tasks itself; for earlier versions, the package
django-tasks has the same API (`api.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.contrib.django.app import DjangoApp, get_app
    from millrace.contrib.django.backend import MillraceBackend
    from millrace.contrib.django.task_options import options

__all__ = ["DjangoApp", "MillraceBackend", "get_app", "options"]


def __getattr__(name: str) -> Any:
    """Import what is asked for. Django imports this package before its apps and settings are ready."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millrace.contrib.django import app, backend, task_options

    places: dict[str, Any] = {"MillraceBackend": backend, "options": task_options}
    return getattr(places.get(name, app), name)
