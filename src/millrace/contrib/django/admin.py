"""A link to the dashboard on the front page of Django's admin, if MILLRACE_DASHBOARD_URL is in the settings."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from millrace.contrib.django.models import Dashboard


class DashboardLink(admin.ModelAdmin):
    """Redirects to the dashboard. Users with the permission to view it see the link."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        return HttpResponseRedirect(settings.MILLRACE_DASHBOARD_URL)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


if getattr(settings, "MILLRACE_DASHBOARD_URL", None):
    admin.site.register(Dashboard, DashboardLink)
