"""Outcomes: how a run ended, as the worker saw it. `rules/decide.py` derives a change from an outcome.

Errors are stored as text, never as pickled exceptions: loading a pickle runs code that the stored bytes choose.
"""

from __future__ import annotations

import traceback as _traceback

import msgspec

MAX_ERROR_TEXT = 10_000
CUT_END = "\n… (cut)"  # appended to a text whose end was cut
CUT_HEAD = "… (cut)\n"  # prepended to a text whose beginning was cut


class Failure(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An error as text: the exception's type, its message and its traceback."""

    type: str
    message: str = ""
    traceback: str = ""

    @classmethod
    def from_exception(cls, error: BaseException) -> Failure:
        try:
            message = str(error)
        except Exception as broken:  # a user's __str__ may raise; that error must not replace the original one
            message = f"<message unavailable: {type(broken).__name__}>"
        trace = "".join(_traceback.format_exception(type(error), error, error.__traceback__, limit=50))
        return cls(encodable(type(error).__qualname__), encodable(message), encodable(trace)).capped()

    def capped(self) -> Failure:
        """Return the failure with its three texts cut to MAX_ERROR_TEXT characters in total."""
        if len(self.type) + len(self.message) + len(self.traceback) <= MAX_ERROR_TEXT:
            return self
        kind = _cut(self.type, 200)
        message = _cut(self.message, MAX_ERROR_TEXT // 2)
        room = MAX_ERROR_TEXT - len(kind) - len(message)
        return Failure(kind, message, _cut_head(self.traceback, room))


def encodable(text: str) -> str:
    """Return the text with lone surrogates (from file names that are not UTF-8) escaped: no store accepts them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - len(CUT_END)] + CUT_END


def _cut_head(text: str, room: int) -> str:
    """Return a traceback of at most `room` characters. The beginning is cut, since the end names the failing line."""
    if len(text) <= room:
        return text
    return CUT_HEAD + text[len(text) - room + len(CUT_HEAD) :] if room > len(CUT_HEAD) else ""


class Returned(msgspec.Struct, frozen=True):
    """The handler returned. `result` is the encoded return value."""

    result: bytes | None = None


class Raised(msgspec.Struct, frozen=True):
    """The handler raised an exception. `after` is the delay in ms that it chose with `Retry(after=…)`, or None."""

    error: Failure
    after: int | None = None


class TimedOut(msgspec.Struct, frozen=True):
    """The run exceeded its timeout while its lease was valid."""

    error: Failure


class Lost(msgspec.Struct, frozen=True):
    """The lease expired, or the child process died. `worker_gone`: whether the worker's heartbeat has stopped."""

    error: Failure
    worker_gone: bool = False


class Snoozed(msgspec.Struct, frozen=True):
    """The handler asked to run again after `delay` milliseconds. This does not count as a failure."""

    delay: int


class Released(msgspec.Struct, frozen=True):
    """The worker returned the unfinished job to its queue, for example at shutdown. This is not a failure."""

    delay: int = 0


class Buried(msgspec.Struct, frozen=True):
    """The job dies without a retry: `Bury` was raised, the task is unknown, or the payload or result is invalid."""

    error: Failure
    reason: str = "explicit_fail"


class CancelledOnRequest(msgspec.Struct, frozen=True):
    """The handler was stopped because the running job is being cancelled."""


Outcome = Returned | Raised | TimedOut | Lost | Snoozed | Released | Buried | CancelledOnRequest
