"""The log of a worker, on stderr: lines for people, or JSON for machines (O-37). Payloads are never in it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from millrace.cli.text import instant, safe_block, span
from millrace.runtime.app import App
from millrace.runtime.bus import LocalEvent
from millrace.runtime.log_context import JobLogFilter
from millrace.runtime.redaction import Redaction, failure_without, secrets_of
from millrace.runtime.secrets import HIDDEN

log = logging.getLogger("millrace.jobs")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def start_logging(level: str, form: str, redact: Iterable[str] = ()) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json(Redaction(redact)) if form == "json" else _Text())
    handler.addFilter(JobLogFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("millrace").setLevel(level.upper())


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = self.formatTime(record, "%Y-%m-%d %H:%M:%S")
        return f"{at} {record.levelname:<7} {safe_block(_message(self, record))}"


class _Json(logging.Formatter):
    """Facts of a record by the rule that hides fields of payloads; what is no plain data becomes text."""

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
    except Exception:  # arguments that do not fit the text: somebody else's mistake, and no reason to lose it
        text = str(record.msg)
    return text if record.exc_info is None else f"{text}\n{formatter.formatException(record.exc_info)}"


def tell_of_jobs(app: App, redact: Iterable[str] = ()) -> None:
    """Failures at once, the rest for those who ask for it. No message repeats what is hidden."""
    rule = Redaction(redact)

    def told(event: LocalEvent) -> None:
        job, took = event.job, "" if event.duration is None else f" after {span(event.duration)}"
        where = {"job": job.id, "task": job.task, "queue": job.queue, "attempt": job.attempt}
        error = ""
        if event.error is not None:
            shown = failure_without(event.error, secrets_of(job, rule, app.serdes)) or event.error
            error = f"{shown.type}: {shown.message}"
        match event.kind:
            case "failed":
                log.error("%s %s is dead (%s)%s: %s", job.task, job.id, event.reason, took, error, extra=where)
            case "retried":
                later = span(event.delay or 0)
                log.warning("%s %s failed%s, again in %s: %s", job.task, job.id, took, later, error, extra=where)
            case _:
                log.debug("%s %s %s%s", job.task, job.id, event.kind, took, extra=where)

    app.on("failed", told)
    app.on("retried", told)
    if log.isEnabledFor(logging.DEBUG):
        app.on("claimed", told)
        app.on("completed", told)
        app.on("released", told)
