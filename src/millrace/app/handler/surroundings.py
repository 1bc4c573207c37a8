"""Surroundings: a context manager of the app that is open while a handler and its providers run.

An integration with a framework overrides `App.surroundings`; the app context of Flask is an example. A `def` handler
runs in a thread, and its surroundings are entered and left in that thread.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Surroundings = Callable[[], AbstractContextManager[object]]


def within(surroundings: Surroundings, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler, called inside its surroundings."""
    if is_async(handler):

        @functools.wraps(handler)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with surroundings():
                return await handler(*args, **kwargs)

        return run_async

    @functools.wraps(handler)
    def run(*args: Any, **kwargs: Any) -> Any:
        with surroundings():
            return handler(*args, **kwargs)

    return run


def is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
