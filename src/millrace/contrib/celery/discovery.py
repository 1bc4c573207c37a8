"""The modules of tasks that an app imports when it is first used: `include`, `imports` and `autodiscover_tasks`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from millrace.contrib.celery.exceptions import user_line
from millrace.domain.errors import InvalidInput

Packages = Iterable[str] | Callable[[], Iterable[str]] | None


class Discovery:
    """The packages in which an app searches for modules of tasks."""

    def __init__(self) -> None:
        self._searches: list[tuple[Packages, str | None]] = []

    def add(self, packages: Packages, related_name: str | None) -> None:
        """Search for modules with this name in packages; in those of Django, if `packages` is None."""
        if packages is None and not os.environ.get("DJANGO_SETTINGS_MODULE"):
            raise InvalidInput(
                f"{user_line()}: autodiscover_tasks() without packages finds those of Django, and "
                "DJANGO_SETTINGS_MODULE is not set. Pass the packages: app.autodiscover_tasks(['shop', 'mail'])"
            )
        self._searches.append((packages, related_name))

    def import_all(self, *modules: Any) -> None:
        """Import these modules, each a name or several, and those that the searches find."""
        for names in modules:
            for name in [names] if isinstance(names, str) else names or ():
                import_module(name)
        for packages, related_name in self._searches:
            found = _django_packages() if packages is None else packages() if callable(packages) else packages
            for package in found:
                name = package if related_name is None else f"{package}.{related_name}"
                if _exists(name):
                    import_module(name)


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            return False
        raise


def _django_packages() -> list[str]:
    import django
    from django.apps import apps

    if not apps.ready:
        django.setup()
    return [config.name for config in apps.get_app_configs()]
