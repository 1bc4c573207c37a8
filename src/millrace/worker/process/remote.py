"""Converts the end of a handler in a child process to a result or an exception in the worker.

Retry, Snooze and Bury are raised again in the worker. Any other exception arrives as text and is raised as
`RemoteError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.app.handler.verdict import Aborted, Bury, Retry, Snooze
from millrace.domain.outcome import Buried, Failure, Lost, Outcome, Raised, Released
from millrace.worker.process.death import Death
from millrace.worker.process.wire import AttemptDone

if TYPE_CHECKING:
    from millrace.worker.run import Run

NO_CHILD_DELAY = 5_000


class OutcomeError(Exception):
    """An exception that determines the outcome of the run in which it is raised."""

    def outcome(self) -> Outcome:
        raise NotImplementedError


class Encoded:
    """A result that the child process has already encoded."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | None) -> None:
        self.data = data


class RemoteError(OutcomeError):
    """An exception that a handler raised in another process: its type, message and traceback, as text."""

    def __init__(self, failure: Failure, outcome: Outcome | None = None) -> None:
        self.failure = failure
        self._outcome = Raised(failure) if outcome is None else outcome
        super().__init__(f"{failure.type}: {failure.message}")

    def outcome(self) -> Outcome:
        """Return how the run ended, for the rules of the queue."""
        return self._outcome


class ProcessDied(RemoteError):
    """The child process died while the handler ran. This counts as a failure and as a stall, like a dead worker."""

    def __init__(self, attempt: int, death: Death) -> None:
        self.death = death
        failure = death.failure(attempt)
        super().__init__(failure, Lost(failure, worker_gone=False))


class NoChild(OutcomeError):
    """No child process could be started, so the handler has not run. The job is released for a later attempt."""

    def outcome(self) -> Outcome:
        return Released(NO_CHILD_DELAY)


class _RemoteRetry(Retry):
    decided: Outcome

    def outcome(self) -> Outcome:
        return self.decided


class _RemoteBury(Bury):
    decided: Outcome

    def outcome(self) -> Outcome:
        return self.decided


def result_of(run: Run, done: AttemptDone) -> Encoded | BaseException:
    """Return the encoded result of an attempt, or the exception to raise in the worker."""
    failure = done.error or Failure("Unknown", "the process sent no error")
    match done.how:
        case "returned":
            return Encoded(done.result)
        case "snooze":
            return Snooze((done.delay or 0) / 1000)
        case "retry":
            retry = _RemoteRetry(failure.message)
            retry.after, retry.decided = done.delay, Raised(failure, done.delay)
            return retry
        case "bury":
            bury = _RemoteBury(failure.message)
            bury.decided = Buried(failure)
            return bury
        case "payload_invalid" | "result_invalid" | "not_retried" as reason:
            return RemoteError(failure, Buried(failure, reason))
        case "aborted":
            return Aborted(run.job.id, run.why or "it was asked to stop")
        case "raised":
            return RemoteError(failure)


def for_future(error: BaseException) -> BaseException:
    """Return the error, wrapped in a RemoteError if it cannot be set on a future.

    A future refuses StopIteration. SystemExit and KeyboardInterrupt would end the event loop.
    """
    if isinstance(error, StopIteration | SystemExit | KeyboardInterrupt):
        return RemoteError(Failure.from_exception(error))
    return error
