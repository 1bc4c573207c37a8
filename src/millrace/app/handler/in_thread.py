"""`in_thread`: calls a function of the user in a thread, whatever it raises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a thread, like `asyncio.to_thread`, and return its result.

    A StopIteration becomes a RuntimeError, as in a coroutine: on Python 3.11, a future cannot hold it, and the caller
    would wait forever.
    """

    def call() -> R:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError("the function raised StopIteration") from error

    return await asyncio.to_thread(call)
