"""Problems: the errors that the HTTP API returns (RFC 9457), and the status for each exception.

The detail of a problem is the message of the exception: what happened and what to do next. Unexpected exceptions are
logged, and the client gets no details.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from millrace.domain import errors

log = logging.getLogger("millrace.web")
Plain = dict[str, Any]

STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.PayloadInvalid, 422, "payload_invalid"),
    (errors.UnknownTask, 422, "unknown_task"),
    (errors.LanesInUse, 409, "lanes_in_use"),
    (errors.DependencyCycle, 409, "dependency_cycle"),
    (errors.UnknownDependency, 409, "unknown_dependency"),
    (errors.DuplicateKey, 409, "duplicate_key"),
    (errors.DeadLettersFull, 429, "dead_letters_full"),
    (errors.QueueFull, 429, "queue_full"),
    (errors.InvalidInput, 400, "invalid"),
    (errors.UnknownPool, 404, "not_found"),
    (errors.JobNotFound, 404, "not_found"),
    (errors.ResultExpired, 410, "result_expired"),
    (errors.CursorExpired, 410, "cursor_expired"),
    (errors.CursorUnknown, 410, "cursor_unknown"),
    (errors.MissingExtra, 501, "missing_extra"),
    (errors.MissingDriver, 503, "store"),
    (errors.ReadOnlyStore, 403, "read_only"),
    (errors.StoreError, 503, "store"),
    (errors.QueueError, 409, "refused"),
)
TITLES = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "Gone",
    413: "Body too large",
    415: "Not JSON",
    421: "Wrong host",
    422: "Invalid payload",
    429: "Queue full",
    500: "Internal error",
    501: "Not installed",
    503: "Unavailable",
}


class Problem(Exception):
    """An exception that becomes an HTTP error response."""

    def __init__(
        self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        self.status, self.code, self.detail = status, code, detail
        self.headers = dict(headers or {})
        self.more = more
        super().__init__(detail)

    def plain(self) -> Plain:
        title = TITLES.get(self.status, "Refused")
        return {"title": title, "status": self.status, "code": self.code, "detail": self.detail, **self.more}


def problem_of(error: Exception) -> Problem | None:
    """Return the problem for an exception; None if the exception is unexpected."""
    if isinstance(error, Problem):
        return error
    for kind, status, code in STATUS:
        if isinstance(error, kind):
            return Problem(status, code, _words(error), headers=_headers(status), **_more(error))
    return None


def as_problem(error: Exception) -> Problem:
    problem = problem_of(error)
    if problem is None:
        log.error("a request failed with an unexpected error", exc_info=error)
        return Problem(500, "defect", "an unexpected error; the server's log has the details")
    return problem


def _words(error: Exception) -> str:
    notes = getattr(error, "__notes__", ())
    return "\n".join([str(error), *notes])


def _headers(status: int) -> dict[str, str]:
    return {"retry-after": "1"} if status in (429, 503) else {}


def _more(error: Exception) -> Plain:
    match error:
        case errors.CursorExpired():
            return {"lost": error.lost, "oldest": error.oldest}
        case errors.QueueFull():
            return {"queue": error.queue, "depth": error.depth, "max_depth": error.max_depth}
        case errors.DuplicateKey():
            return {"owner": error.owner}
        case _:
            return {}
