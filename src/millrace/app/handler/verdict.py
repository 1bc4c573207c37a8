"""Verdicts: Retry, Snooze and Bury, with which a handler decides how its run ends.

A handler may raise or return a verdict. The verdict applies even after the run was requested to stop, except after a
timeout or a lost lease.
"""

from __future__ import annotations

from enum import StrEnum

from millrace.app.duration import Duration, milliseconds
from millrace.domain.outcome import Buried, Failure, Outcome, Raised, Snoozed


class Verdict(Exception):  # an exception, so that it ends a run from any depth
    """Base class of the verdicts Retry, Snooze and Bury."""

    def outcome(self) -> Outcome:
        """Return how the run ended, for the rules of the queue."""
        raise NotImplementedError


class Retry(Verdict):
    """A verdict: run the job again and count a failure. `after` (a number is seconds) replaces the backoff."""

    def __init__(self, reason: object = "", *, after: Duration | None = None) -> None:
        super().__init__(str(reason))
        self.after = None if after is None else milliseconds("after", after)

    def outcome(self) -> Outcome:
        return Raised(Failure.from_exception(self), self.after)


class Snooze(Verdict):
    """A verdict: run the job again after `delay` (a number is seconds), without counting a failure."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = milliseconds("the delay", delay)

    def outcome(self) -> Outcome:
        return Snoozed(self.delay)


class Bury(Verdict):
    """A verdict: bury the job now, even if attempts are left. The reason of the dead letter is `explicit_fail`."""

    def __init__(self, reason: object = "") -> None:
        super().__init__(str(reason))

    def outcome(self) -> Outcome:
        return Buried(Failure.from_exception(self))


class Abort(StrEnum):
    """The reason why a run must stop before its handler has returned."""

    TIMEOUT = "it ran longer than its timeout"
    CANCEL = "the job was cancelled"
    SHUTDOWN = "the worker is shutting down"
    SILENT = "the store has not answered for almost a whole lease"
    LOST = "its lease was taken over"


class Aborted(BaseException):
    """Raised by `ctx.check()` when the run must stop. A BaseException, so that `except Exception` does not catch it."""

    def __init__(self, job: str, why: str) -> None:
        self.job, self.why = job, why
        super().__init__(f"the run of job {job!r} must stop: {why}")
