"""The Django app of the integration, for INSTALLED_APPS."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class MillraceConfig(AppConfig):
    """`INSTALLED_APPS = [..., "millrace.contrib.django"]`."""

    name = "millrace.contrib.django"
    label = "millrace"
    verbose_name = "Millrace"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        post_migrate.connect(create_tables, sender=self)


def create_tables(using: str, **_: Any) -> None:
    """Create Millrace's tables in a database that has jobs, when `manage.py migrate` has changed it.

    An enqueue inside a transaction cannot create them.
    """
    from millrace.contrib.django.api import task_backends
    from millrace.contrib.django.backend import MillraceBackend
    from millrace.contrib.django.database import can_hold_jobs

    for backend in task_backends.all():
        ours = isinstance(backend, MillraceBackend) and "url" not in backend.options and backend.database == using
        if ours and can_hold_jobs(using):
            backend.app.open()
