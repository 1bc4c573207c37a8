"""The audit log: who changed what, when, and with which status. It also records refused requests, but never payloads.

Each entry is logged to the logger `millrace.audit` and, if a file is configured, appended to it as a line of JSON. The
latest entries stay in memory, where admins can read them. Requests without sufficient rights have a separate, smaller
buffer in memory, because anyone can send many of them.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec

from millrace.app.format import instant
from millrace.store.clock import system_clock
from millrace.views.job_view import Instant

KEPT = 1_000
REFUSED_KEPT = 200
NOT_ADMITTED = (401, 403)
LONGEST = 500  # characters of any text in an entry
log = logging.getLogger("millrace.audit")


class AuditEntry(msgspec.Struct, frozen=True):
    at: Instant
    who: str
    client: str
    action: str
    path: str
    status: int
    facts: dict[str, Any] = {}  # msgspec copies it


class Audit:
    def __init__(self, file: Path | str | None = None) -> None:
        self._file = None if file is None else Path(file)
        self._numbers = count()
        self._kept: deque[tuple[int, AuditEntry]] = deque(maxlen=KEPT)
        self._refused: deque[tuple[int, AuditEntry]] = deque(maxlen=REFUSED_KEPT)
        if self._file is not None:
            self._append(b"")  # a file that cannot be written fails at the start

    def note(self, who: str, client: str, action: str, path: str, status: int, facts: dict[str, Any]) -> None:
        path, facts = _cut(path), _cut(facts)
        entry = AuditEntry(instant(system_clock()), who, client, action, path, status, facts)
        (self._refused if status in NOT_ADMITTED else self._kept).append((next(self._numbers), entry))
        level = logging.INFO if status < 400 else logging.WARNING
        if log.isEnabledFor(level):
            extra = {"audit": action, "who": who, "client": client, "path": path, "status": status, "facts": facts}
            shown = _cut(msgspec.json.encode(facts).decode()) if facts else ""
            log.log(level, "%s %s by %s from %s: %s %s", action, _line(path), who, client, status, shown, extra=extra)
        if self._file is None:
            return
        try:
            self._append(msgspec.json.encode(entry) + b"\n")
        except OSError:  # the change is done; the log of this process has it
            log.exception("the audit log %s cannot be written", self._file)

    def latest(self, limit: int) -> list[AuditEntry]:
        """Return the latest entries that are kept in memory, newest first."""
        both = heapq.merge(reversed(self._kept), reversed(self._refused), key=lambda kept: -kept[0])
        return [entry for _, entry in islice(both, limit)]

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        with self._file.open("ab") as file:  # opened each time, so that it can be rotated
            file.write(line)


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…"
    if isinstance(value, dict):
        return {_cut(name): _cut(inner) for name, inner in value.items()}
    return [_cut(inner) for inner in value] if isinstance(value, list | tuple) else value


def _line(path: str) -> str:
    """Return the path with non-printing characters escaped, so that an id in it cannot start a new log line."""
    return path if path.isprintable() else ascii(path)[1:-1]
