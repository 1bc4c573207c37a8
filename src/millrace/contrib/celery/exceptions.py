"""The exceptions that task modules import from `celery.exceptions`, and the error for what is not covered."""

from __future__ import annotations

import os
import sys
from types import FrameType

from millrace.domain.errors import InvalidInput, JobCancelled, JobFailed, WaitTimeout

_PACKAGE = __name__.rpartition(".")[0]

# Under Celery's names, what `AsyncResult.get` raises.
TimeoutError = WaitTimeout
TaskRevokedError = JobCancelled
TaskError = JobFailed


class NotCovered(InvalidInput):
    """The code uses a part of Celery that this module does not cover. The message names the line, and what to do."""

    def __init__(self, what: str, fix: str) -> None:
        self.what = what
        super().__init__(f"{user_line()}: {what} is not covered by millrace.contrib.celery. {fix}")


class CeleryRetry(Exception):
    """Raised by `self.retry(…)` in a task, to run it again after a delay."""

    def __init__(self, exc: BaseException | None, countdown: float) -> None:
        self.exc = exc
        self.countdown = countdown
        cause = "" if exc is None else f": {type(exc).__name__}: {exc}"
        super().__init__(f"Retry in {countdown:g} s{cause}")


class MaxRetriesExceededError(Exception):
    """Raised by `self.retry(…)` without `exc` in a task that has no retries left."""


class Ignore(Exception):
    """Raised by a task to end without a result. Here it completes, and its result is None."""


class Reject(Exception):
    """Raised by a task that does not accept its job. The job is dead; with `requeue`, it runs again after a second."""

    def __init__(self, reason: object = "", requeue: bool = False) -> None:
        self.requeue = requeue
        super().__init__(str(reason))


def user_line() -> str:
    """Return the file and line of the innermost code that is not of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_inner(frame):
        frame = frame.f_back
    if frame is None:
        return "the program"
    file = frame.f_code.co_filename
    inside = os.path.relpath(file)
    return f"{file if inside.startswith('..') else inside}, line {frame.f_lineno}"


def _is_inner(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name == _PACKAGE or name.startswith((_PACKAGE + ".", "importlib."))
