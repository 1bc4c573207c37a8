"""Log records as lines of JSON. They never contain payloads."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from millrace.app.format import instant
from millrace.app.telemetry.redaction import HIDDEN, Redaction

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLogFormatter(logging.Formatter):
    """Formats each log record as one line of JSON: `handler.setFormatter(JsonLogFormatter())`.

    A line has the fields of `extra`. Fields such as `password`, and those in `redact`, are hidden. Values that JSON
    cannot represent become text.
    """

    def __init__(self, redact: Iterable[str] = ()) -> None:
        super().__init__()
        self._rule = Redaction(redact)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        facts = vars(record).items()
        more = {name: self._shown(name, value) for name, value in facts if name not in _STANDARD and value is not None}
        line: dict[str, Any] = {
            "at": instant(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": text_of(self, record),
            **more,
        }
        return msgspec.json.encode(line).decode()

    def _shown(self, name: str, value: Any) -> Any:
        if self._rule.hides(name):
            return HIDDEN
        return _plain(self._rule.plain(value)) if isinstance(value, dict | list | tuple) else str(value)


def _plain(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def text_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the message of a record, and the traceback if it has one."""
    try:
        text = record.getMessage()
    except Exception:  # the arguments do not fit the format string; log the record anyway
        text = str(record.msg)
    trace = record.exc_text  # already redacted
    if not trace and record.exc_info is not None:
        trace = formatter.formatException(record.exc_info)
    return f"{text}\n{trace}" if trace else text
