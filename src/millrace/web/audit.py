"""The audit log: who changed what, when, and how it was answered; refusals too. Payloads are never in it.

Each entry goes to the logger `millrace.audit`, to a file of JSON lines when one is named, and the latest stay in memory
for admins to look at.
"""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from millrace.runtime.words import instant
from millrace.store.clock import system_clock

KEPT = 1_000
log = logging.getLogger("millrace.audit")


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    at: str
    who: str
    client: str
    action: str
    path: str
    status: int
    facts: dict[str, Any] = {}  # msgspec copies it


class Audit:
    def __init__(self, file: Path | str | None = None) -> None:
        self._file = None if file is None else Path(file)
        self._kept: deque[Entry] = deque(maxlen=KEPT)
        if self._file is not None:
            self._append(b"")  # a place that cannot be written to shows at the start

    def note(self, who: str, client: str, action: str, path: str, status: int, facts: dict[str, Any]) -> None:
        entry = Entry(instant(system_clock()), who, client, action, path, status, facts)
        self._kept.append(entry)
        level = logging.INFO if status < 400 else logging.WARNING
        if log.isEnabledFor(level):
            extra = {"audit": action, "who": who, "client": client, "path": path, "status": status, "facts": facts}
            log.log(level, "%s by %s from %s: %s", action, who, client, status, extra=extra)
        if self._file is None:
            return
        try:
            self._append(msgspec.json.encode(entry) + b"\n")
        except OSError:  # what was changed is changed; the log of this process has it
            log.exception("the audit log %s cannot be written", self._file)

    def latest(self, limit: int) -> list[Entry]:
        """The newest first."""
        return list(self._kept)[::-1][:limit]

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        with self._file.open("ab") as file:  # opened each time: whoever rotates it need not tell us
            file.write(line)
