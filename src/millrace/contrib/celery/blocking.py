"""Blocking calls of the store, from any thread: Celery's calls may also be made on a thread that runs an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def blocking(call: Callable[[], T]) -> T:
    """Return the result of `call`, which uses `app.sync`.

    On a thread that runs an event loop, `app.sync` refuses to block. Celery does block there, so the call is made in
    another thread, and this one waits for it.
    """
    if asyncio._get_running_loop() is None:
        return call()
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:  # raised again in the caller's thread
            outcome.append((None, error))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="millrace-celery", daemon=True)
    thread.start()
    thread.join()
    value, error = outcome[0]
    if error is not None:
        raise error
    result: T = value
    return result
