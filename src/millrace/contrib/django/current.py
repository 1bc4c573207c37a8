"""The apps of the task backends for the command line: `millrace worker --app millrace.contrib.django.current:default`.

Each alias in TASKS is a name of this module. Set DJANGO_SETTINGS_MODULE, or use `manage.py millrace`, which does.
"""

from __future__ import annotations

from millrace.contrib.django.app import DjangoApp, get_worker_app


def __getattr__(alias: str) -> DjangoApp:
    if alias.startswith("__"):
        raise AttributeError(alias)
    return get_worker_app(alias)
