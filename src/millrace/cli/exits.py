"""Exit codes and their meaning. `docs/cli.md` and `millrace --help` show the same table."""

from __future__ import annotations

from millrace.domain.errors import (
    InvalidInput,
    MissingDriver,
    MissingExtra,
    PayloadInvalid,
    QueueError,
    StoreError,
    UnknownTask,
    WaitTimeout,
)

OK = 0
NO = 1
USAGE = 2
STORE = 3
WAITING = 4
BUG = 70
INTERRUPTED = 130
PIPE_CLOSED = 141

MEANING: dict[int, str] = {
    OK: "done",
    NO: "not found, refused, failed, or a check failed",
    USAGE: "wrong usage: an argument, a setting, a payload or the app",
    STORE: "the store cannot be reached or used",
    WAITING: "not finished within the given time; the job continues",
    BUG: "a bug in Millrace; please report it",
    INTERRUPTED: "interrupted (Ctrl-C)",
    PIPE_CLOSED: "the reader of the output closed the pipe (| head)",
}


def code_of(error: QueueError | OSError) -> int:
    match error:
        case WaitTimeout():
            return WAITING
        case InvalidInput() | PayloadInvalid() | UnknownTask() | MissingExtra():
            return USAGE
        case StoreError() | MissingDriver() | OSError():
            return STORE
        case _:
            return NO
