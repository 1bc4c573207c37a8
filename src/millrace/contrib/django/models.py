"""A model without a table, so that Django's admin shows a link to the dashboard, and has permissions for it."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Dashboard(models.Model):
    """The dashboard. The permission `view` shows it, `change` also allows actions on jobs."""

    class Meta:
        managed = False
        default_permissions = ("view", "change")
        verbose_name = "job"
        verbose_name_plural: ClassVar[str] = "jobs"
