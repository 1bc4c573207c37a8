"""Verdicts: what a handler may say about its own run, besides returning and raising.

Raised or returned, they mean the same. They are wishes of the handler, so an abort that came first does not
overrule them; only a timeout does.
"""

from __future__ import annotations

from millrace.domain.outcome import Buried, Failure, Outcome, Raised, Snoozed
from millrace.runtime.duration import Duration, milliseconds


class Verdict(Exception):  # not an error: a way to end a run from any depth
    """The root of Retry, Snooze and Bury."""

    def outcome(self) -> Outcome:
        raise NotImplementedError


class Retry(Verdict):
    """Run again, counted as a failure; `after` overrides the backoff (a number is seconds)."""

    def __init__(self, reason: object = "", *, after: Duration | None = None) -> None:
        super().__init__(str(reason))
        self.after = None if after is None else milliseconds("after", after)

    def outcome(self) -> Outcome:
        return Raised(Failure.from_exception(self), self.after)


class Snooze(Verdict):
    """Run again later, by wish: not a failure, not counted (a number is seconds)."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = milliseconds("the delay", delay)

    def outcome(self) -> Outcome:
        return Snoozed(self.delay)


class Bury(Verdict):
    """Give up now, whatever the budget: the job is dead with reason `explicit_fail`."""

    def __init__(self, reason: object = "") -> None:
        super().__init__(str(reason))

    def outcome(self) -> Outcome:
        return Buried(Failure.from_exception(self))


class Aborted(BaseException):
    """Raised by `ctx.check()` once the run is to end; no `except Exception` in a handler swallows it."""

    def __init__(self, job: str, why: str) -> None:
        self.job, self.why = job, why
        super().__init__(f"the run of job {job!r} is to end now: {why}")
