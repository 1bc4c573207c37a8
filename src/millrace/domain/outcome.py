"""Outcomes: how a run ended, as the worker saw it. `decide` turns one into a change.

Errors cross the store as text. An exception object is never stored and never re-created from a store:
that would let stored bytes choose which code runs.
"""

from __future__ import annotations

import traceback as _traceback

import msgspec

MAX_ERROR_TEXT = 10_000
CUT_END = "\n… (cut)"  # behind what was cut at its end
CUT_HEAD = "… (cut)\n"  # before what was cut at its beginning


class Failure(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An error as text: the exception's type, its message and its traceback."""

    type: str
    message: str = ""
    traceback: str = ""

    @classmethod
    def from_exception(cls, error: BaseException) -> Failure:
        try:
            message = str(error)
        except Exception as broken:  # a user's __str__ may raise; its error must not replace the first one
            message = f"<message unavailable: {type(broken).__name__}>"
        trace = "".join(_traceback.format_exception(type(error), error, error.__traceback__, limit=50))
        return cls(encodable(type(error).__qualname__), encodable(message), encodable(trace)).capped()

    def capped(self) -> Failure:
        """The same failure, its three texts together within MAX_ERROR_TEXT characters."""
        if len(self.type) + len(self.message) + len(self.traceback) <= MAX_ERROR_TEXT:
            return self
        kind = _cut(self.type, 200)
        message = _cut(self.message, MAX_ERROR_TEXT // 2)
        room = MAX_ERROR_TEXT - len(kind) - len(message)
        return Failure(kind, message, _cut_head(self.traceback, room))


def encodable(text: str) -> str:
    """The same text, with what no store can write (half a surrogate pair, as in names of files) spelled out."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - len(CUT_END)] + CUT_END


def _cut_head(text: str, room: int) -> str:
    """The end of a traceback names the failing line, so the beginning is what goes."""
    if len(text) <= room:
        return text
    return CUT_HEAD + text[len(text) - room + len(CUT_HEAD) :] if room > len(CUT_HEAD) else ""


class Returned(msgspec.Struct, frozen=True):
    """The handler returned; `result` is its encoded value (null is a value)."""

    result: bytes | None = None


class Raised(msgspec.Struct, frozen=True):
    """The handler raised; `after` is set when it asked for a particular delay (milliseconds)."""

    error: Failure
    after: int | None = None


class TimedOut(msgspec.Struct, frozen=True):
    """The attempt ran past its timeout while its lease was live."""

    error: Failure


class Lost(msgspec.Struct, frozen=True):
    """The lease expired under its holder; `worker_gone` tells a dead worker from a stalled one."""

    error: Failure
    worker_gone: bool = False


class Snoozed(msgspec.Struct, frozen=True):
    """The handler asked to run later; that is a wish, not a failure."""

    delay: int


class Released(msgspec.Struct, frozen=True):
    """The worker gave the job back unfinished, e.g. at shutdown; uncounted."""

    delay: int = 0


class Buried(msgspec.Struct, frozen=True):
    """Give up at once: the handler said so, or the job can never run (bad payload, unknown task)."""

    error: Failure
    reason: str = "explicit_fail"


class Aborted(msgspec.Struct, frozen=True):
    """The handler ended because somebody asked for the running job to be cancelled."""


Outcome = Returned | Raised | TimedOut | Lost | Snoozed | Released | Buried | Aborted
