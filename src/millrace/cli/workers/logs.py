"""The log of a worker on stderr: text for people, or lines of JSON. It never contains payloads."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from millrace.app.format import instant
from millrace.app.telemetry.log_context import JobLogFilter
from millrace.app.telemetry.log_levels import OURS, levels_of
from millrace.app.telemetry.redaction import HIDDEN, Redaction
from millrace.cli.text import safe_block

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def start_logging(levels: str, form: str, redact: Iterable[str] = ()) -> None:
    """Configure logging to stderr. `levels` is a level (`info`), or levels by logger (`millrace.store=debug,warn`). If
    `form` is "json", each record is a line of JSON; otherwise it is text.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(Redaction(redact)) if form == "json" else _Text())
    handler.addFilter(JobLogFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name, level in {OURS: logging.INFO, **levels_of("log_level", levels)}.items():
        logging.getLogger(name).setLevel(level)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = self.formatTime(record, "%Y-%m-%d %H:%M:%S")
        return f"{at} {record.levelname:<7} {safe_block(_message(self, record))}"


class _Json(logging.Formatter):
    """Formats each log record as one line of JSON. Redacted fields are hidden, and values that JSON cannot represent
    become text.
    """

    def __init__(self, rule: Redaction) -> None:
        super().__init__()
        self._rule = rule

    def _shown(self, name: str, value: Any) -> Any:
        if self._rule.hides(name):
            return HIDDEN
        return _plain(self._rule.plain(value)) if isinstance(value, dict | list | tuple) else str(value)

    def format(self, record: logging.LogRecord) -> str:
        facts = vars(record).items()
        more = {name: self._shown(name, value) for name, value in facts if name not in _STANDARD and value is not None}
        line: dict[str, Any] = {
            "at": instant(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(self, record),
            **more,
        }
        return msgspec.json.encode(line).decode()


def _plain(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:  # the arguments do not fit the format string; log the record anyway
        text = str(record.msg)
    trace = record.exc_text  # already redacted
    if not trace and record.exc_info is not None:
        trace = formatter.formatException(record.exc_info)
    return f"{text}\n{trace}" if trace else text
