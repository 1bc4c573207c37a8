"""Options of Millrace for tasks of Django: those that Django's own decorator does not have, and its priorities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack

from millrace.app.options import TaskKeywords
from millrace.domain.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])
_NAME = "millrace_options"
OF_DJANGO = {"queue": "queue_name", "priority": "priority"}
LOWEST, HIGHEST = -100, 100  # priorities of Django
LEVELS = 16  # priorities of Millrace: 0 to 15

# Django has no time limit for results: a result is kept as long as the record of its job.
DEFAULTS: Mapping[str, Any] = {"keep_result": None}


def options(**given: Unpack[TaskKeywords]) -> Callable[[F], F]:
    """Set options of Millrace for one task. Write it below `@task`: `@options(max_attempts=10, timeout="1m")`."""

    for name, instead in OF_DJANGO.items():
        if name in given:
            raise InvalidInput(f"set {name} on Django's decorator: @task({instead}=…)")

    def decorate(function: F) -> F:
        setattr(function, _NAME, dict(given))
        return function

    return decorate


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = getattr(function, _NAME, {})
    return found


def level_of(priority: int) -> int:
    """Return Millrace's priority. Each one stands for 12 or 13 priorities of Django, whose default 0 becomes 7."""
    return (priority - LOWEST) * LEVELS // (HIGHEST - LOWEST + 1)
