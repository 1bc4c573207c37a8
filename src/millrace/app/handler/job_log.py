"""The log of a job: the lines that its handler writes with `ctx.log`, kept if its task has `keep_log`.

The worker holds the whole log of the job and hands it to the store with the heartbeat and with the end of the run, as
one value. The log is bounded: of too many lines, the first and the latest are kept, and one line between them says how
many are missing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from millrace.domain.job import Job
from millrace.domain.outcome import CUT_END, encodable

MOST_LINES = 200
MOST_BYTES = 64 << 10  # of the encoded log
FIRST_LINES = 50  # that stay when later lines are dropped
MOST_TEXT = 4_000  # characters of one line
MOST_FIELDS = 4 << 10  # bytes of the encoded fields of one line
LEAST_LEVEL = logging.INFO
_FIRST_BYTES = MOST_BYTES // 4


class LogLine(msgspec.Struct, frozen=True, omit_defaults=True, rename={"instant": "at"}):
    """One line that a handler wrote with `ctx.log`, or a line that says how many lines are `dropped`."""

    attempt: int
    instant: int  # milliseconds
    level: str
    text: str
    fields: dict[str, Any] = {}
    dropped: int = 0

    @property
    def at(self) -> datetime:
        """When the line was written, as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.instant / 1000, UTC)


_decode = msgspec.json.Decoder(list[LogLine]).decode
_encode = msgspec.json.Encoder().encode


def read_log(stored: bytes | None) -> list[LogLine]:
    """Return the lines of a stored log, oldest first."""
    return [] if stored is None else _decode(stored)


class JobLog:
    """The log of a job that runs here. Lines can be added in any thread."""

    def __init__(self, stored: bytes | None) -> None:
        self._lock = threading.Lock()
        self._first: list[bytes] = []
        self._latest: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._dropped_at: LogLine | None = None
        self._version = self._written = 0
        self._encoded = (0, b"")  # the version that was encoded last, and its bytes
        for line in read_log(stored):
            if line.dropped:
                self._dropped, self._dropped_at = line.dropped, line
            else:
                self._add(line)

    def add(self, line: LogLine) -> None:
        with self._lock:
            self._add(line)
            self._version += 1

    def _add(self, line: LogLine) -> None:
        packed = _encode(line)
        self._bytes += len(packed) + 1
        is_first = not self._dropped and not self._latest
        if is_first and len(self._first) < FIRST_LINES and self._bytes <= _FIRST_BYTES:
            self._first.append(packed)
            return
        self._latest.append(packed)
        room = MOST_LINES - 1 - len(self._first)  # one line for the number of dropped lines
        while len(self._latest) > room or self._bytes > MOST_BYTES - 200:
            self._bytes -= len(self._latest.popleft()) + 1
            self._dropped += 1
            self._dropped_at = self._dropped_at or line

    def unwritten(self) -> bytes | None:
        """Return the whole log if it has changed since it was last written, otherwise None."""
        with self._lock:
            if self._version == self._written:
                return None
            if self._encoded[0] != self._version:
                self._encoded = (self._version, b"[" + b",".join(self._lines()) + b"]")
            return self._encoded[1]

    def _lines(self) -> list[bytes]:
        if self._dropped_at is None:
            return [*self._first, *self._latest]
        gap = LogLine(
            self._dropped_at.attempt,
            self._dropped_at.instant,
            "INFO",
            f"… {self._dropped} {'line' if self._dropped == 1 else 'lines'} dropped",
            dropped=self._dropped,
        )
        return [*self._first, _encode(gap), *self._latest]

    def written(self, log: bytes) -> None:
        """Note that the store has this log."""
        with self._lock:
            if self._encoded[1] is log:
                self._written = self._encoded[0]


def make_line(job: Job, elapsed: float, level: int, text: str, fields: Mapping[str, Any]) -> LogLine:
    """Return a line of the current attempt, `elapsed` seconds after its start. A long text or many fields are cut."""
    text = encodable(text)
    if len(text) > MOST_TEXT:
        text = text[: MOST_TEXT - len(CUT_END)] + CUT_END  # by this mark, the redactor finds a secret that was cut
    at = (job.started_at or 0) + max(0, round(elapsed * 1000))
    return LogLine(job.attempt, at, logging.getLevelName(level), text, _fields(fields))


def _fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    if not fields:
        return {}
    try:
        packed = _encode(fields)
    except Exception:  # values that are not JSON, that contain themselves, or whose methods raise
        packed = _encode({safe_text(name): safe_text(value, repr) for name, value in fields.items()})
    if len(packed) > MOST_FIELDS:
        return {"…": f"the fields have {len(packed):,} bytes; {MOST_FIELDS:,} are kept"}
    plain: dict[str, Any] = msgspec.json.decode(packed)
    return plain


def safe_text(value: object, spell: Callable[[object], str] = str) -> str:
    """Return a value as text. If its `__str__` or `__repr__` raises, return text that says so."""
    try:
        return encodable(spell(value))
    except Exception as error:
        return f"<{type(value).__name__}: its text is unavailable: {type(error).__name__}>"


Keep = Callable[[int, str, Mapping[str, Any]], None]  # level, text, fields
