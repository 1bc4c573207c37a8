"""What a handler in a child returned or raised, as the worker and its middleware see it.

An exception of another process arrives as text and stays text: `RemoteError`. Retry, Snooze and Bury are this
library's own words, so they are themselves here too.
"""

from __future__ import annotations

from millrace.domain.outcome import Buried, Failure, Lost, Outcome, Raised, Released
from millrace.runtime.process.death import Death
from millrace.runtime.process.wire import Done
from millrace.runtime.run import Reported, Run
from millrace.runtime.verdict import Aborted, Bury, Retry, Snooze

NO_CHILD_DELAY = 5_000


class Encoded:
    """A result as its child has encoded it."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | None) -> None:
        self.data = data


class RemoteError(Reported):
    """An exception that a handler raised in another process: its type, message and traceback, as text."""

    def __init__(self, failure: Failure, outcome: Outcome | None = None) -> None:
        self.failure = failure
        self._outcome = Raised(failure) if outcome is None else outcome
        super().__init__(f"{failure.type}: {failure.message}")

    def outcome(self) -> Outcome:
        return self._outcome


class ProcessDied(RemoteError):
    """The process ended under its handler. Counted as a failure and as a stall, like a job that kills its worker."""

    def __init__(self, attempt: int, death: Death) -> None:
        self.death = death
        failure = death.failure(attempt)
        super().__init__(failure, Lost(failure, worker_gone=False))


class NoChild(Reported):
    """No process could be started for it: the attempt has not begun."""

    def outcome(self) -> Outcome:
        return Released(NO_CHILD_DELAY)


class _RemoteRetry(Retry):
    told: Outcome

    def outcome(self) -> Outcome:
        return self.told


class _RemoteBury(Bury):
    told: Outcome

    def outcome(self) -> Outcome:
        return self.told


def told(run: Run, done: Done) -> Encoded | BaseException:
    """The result, or whatever the handler raised instead."""
    failure = done.error or Failure("Unknown", "the process sent no error")
    match done.how:
        case "returned":
            return Encoded(done.result)
        case "snooze":
            return Snooze((done.delay or 0) / 1000)
        case "retry":
            retry = _RemoteRetry(failure.message)
            retry.after, retry.told = done.delay, Raised(failure, done.delay)
            return retry
        case "bury":
            bury = _RemoteBury(failure.message)
            bury.told = Buried(failure)
            return bury
        case "unfit":
            return RemoteError(failure, Buried(failure, "payload_invalid"))
        case "aborted":
            return Aborted(run.job.id, run.why or "it was told to end")
        case "raised":
            return RemoteError(failure)
