"""The audit log: who changed what, when, and how it was answered; refusals too. Payloads are never in it.

Each entry goes to the logger `millrace.audit`, to a file of JSON lines when one is named, and the latest stay in memory
for admins to look at. Those that were not let in are kept apart: anybody can make many of them, and long ones.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec

from millrace.runtime.words import instant
from millrace.store.clock import system_clock

KEPT = 1_000
REFUSED_KEPT = 200
NOT_LET_IN = (401, 403)
LONGEST = 500  # characters of any text in an entry
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
        self._numbers = count()
        self._kept: deque[tuple[int, Entry]] = deque(maxlen=KEPT)
        self._refused: deque[tuple[int, Entry]] = deque(maxlen=REFUSED_KEPT)
        if self._file is not None:
            self._append(b"")  # a place that cannot be written to shows at the start

    def note(self, who: str, client: str, action: str, path: str, status: int, facts: dict[str, Any]) -> None:
        path, facts = _cut(path), _cut(facts)
        entry = Entry(instant(system_clock()), who, client, action, path, status, facts)
        (self._refused if status in NOT_LET_IN else self._kept).append((next(self._numbers), entry))
        level = logging.INFO if status < 400 else logging.WARNING
        if log.isEnabledFor(level):
            extra = {"audit": action, "who": who, "client": client, "path": path, "status": status, "facts": facts}
            told = _cut(msgspec.json.encode(facts).decode()) if facts else ""
            log.log(level, "%s %s by %s from %s: %s %s", action, _line(path), who, client, status, told, extra=extra)
        if self._file is None:
            return
        try:
            self._append(msgspec.json.encode(entry) + b"\n")
        except OSError:  # what was changed is changed; the log of this process has it
            log.exception("the audit log %s cannot be written", self._file)

    def latest(self, limit: int) -> list[Entry]:
        """The newest first."""
        both = heapq.merge(reversed(self._kept), reversed(self._refused), key=lambda kept: -kept[0])
        return [entry for _, entry in islice(both, limit)]

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        with self._file.open("ab") as file:  # opened each time: whoever rotates it need not tell us
            file.write(line)


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…"
    if isinstance(value, dict):
        return {_cut(name): _cut(inner) for name, inner in value.items()}
    return [_cut(inner) for inner in value] if isinstance(value, list | tuple) else value


def _line(path: str) -> str:
    """On one line of a log, whatever an id holds."""
    return path if path.isprintable() else ascii(path)[1:-1]
