"""The log of a worker on stderr: text for people, or lines of JSON. It never contains payloads."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

from millrace.app.telemetry.log_context import JobLogFilter
from millrace.app.telemetry.log_json import JsonLogFormatter, text_of
from millrace.app.telemetry.log_levels import OURS, levels_of
from millrace.cli.text import safe_block


def start_logging(levels: str, form: str, redact: Iterable[str] = ()) -> None:
    """Configure logging to stderr. `levels` is a level (`info`), or levels by logger (`millrace.store=debug,warn`). If
    `form` is "json", each record is a line of JSON; otherwise it is text.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLogFormatter(redact) if form == "json" else _Text())
    handler.addFilter(JobLogFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name, level in {OURS: logging.INFO, **levels_of("log_level", levels)}.items():
        logging.getLogger(name).setLevel(level)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = self.formatTime(record, "%Y-%m-%d %H:%M:%S")
        return f"{at} {record.levelname:<7} {safe_block(text_of(self, record))}"
