"""Parser of log levels: one level, or levels by module, as in `warn` or `millrace.store=debug,info`."""

from __future__ import annotations

import logging
import re

from millrace.domain.errors import InvalidInput
from millrace.store.trace import TRACE

LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 10,
}
OURS = "millrace"
_MODULE = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")


def levels_of(where: str, text: str) -> dict[str, int]:
    """Parse log levels and return the level of each logger. A level without a module applies to `millrace`.

    Raises InvalidInput if `text` is invalid; the message names the setting `where`.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, level = (word.strip() for word in part.partition("="))
        if not equals and name.lower() in LEVELS:
            name, level = OURS, name
        if not _MODULE.fullmatch(name) or level.lower() not in LEVELS:
            raise InvalidInput(
                f"{where} must be one of {', '.join(LEVELS)}, or levels by module such as millrace.store=debug,warn; "
                f"not {text!r}"
            )
        if name in found:
            advice = "Leave one, or name the module of the other: millrace.store=debug"
            raise InvalidInput(f"{where} has two levels for {name}: {text!r}. {advice}")
        found[name] = LEVELS[level.lower()]
    return found


def log_filter(where: str, value: object) -> str:
    """Check log levels and return them as text. Raises InvalidInput if they are invalid."""
    text = value.strip() if isinstance(value, str) else str(value)
    levels_of(where, text)
    return text
