"""The lifespan of an app: a function that prepares what the handlers of a worker share, and cleans up after them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from millrace.domain.errors import InvalidInput

LifespanFunction = Callable[[], AsyncIterator[Any]] | Callable[[], AbstractAsyncContextManager[Any]]


def read_lifespan(function: Callable[[], Any]) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """Return the function that makes the context manager of a lifespan. Raises InvalidInput for any other function."""
    if not callable(function):
        raise InvalidInput(f"app.lifespan takes a function, not {function!r}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidInput(f"app.lifespan: {function!r} must be `async def` with one `yield`, like a context manager")
    required = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    if required:
        raise InvalidInput(f"app.lifespan: a worker calls {function!r} without arguments; remove {required[0].name!r}")
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)
    return function
