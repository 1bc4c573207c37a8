"""The SQLite store's way to the disk, with a fault at one chosen call. A new kind of call is covered by itself."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from typing import Any

from millrace.store.sqlite.connection import Io

CRASHED = 9


def die() -> None:
    """As under SIGKILL: no `finally`, no buffers written, connections and locks left to the kernel."""
    os._exit(CRASHED)


class FaultyIo(Io):
    """Counts calls from `arm` on; at call number `at` the fault happens.

    crash: the process ends before the call. error: the call fails and does nothing. lost: the call is made, and fails
    all the same, as when a disk or a system call reports an error too late.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._at: int | None = None
        self._fault = ""
        self._armed = False

    def arm(self, fault: str = "", at: int | None = None) -> None:
        self.calls = []
        self._armed, self._fault, self._at = True, fault, at

    def disarm(self) -> int:
        """Answers how many calls there were."""
        self._armed = False
        return len(self.calls)

    def call(self, name: str, real: Callable[..., Any], *args: Any) -> Any:
        if not self._armed:
            return real(self, *args)
        self.calls.append(name)
        if len(self.calls) != self._at:
            return real(self, *args)
        if self._fault == "crash":
            die()
        if self._fault == "lost":
            real(self, *args)
        raise _error_of(name)


def _error_of(name: str) -> Exception:
    if name in ("lock", "try_lock", "unlock", "send", "create"):
        return OSError(errno.ENOLCK, f"simulated: {name} failed")
    return sqlite3.OperationalError(f"simulated: {name} failed")


def _wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: FaultyIo, *args: Any) -> Any:
        return self.call(name, real, *args)

    return method


for _name, _real in list(vars(Io).items()):
    if callable(_real) and not _name.startswith("_"):
        setattr(FaultyIo, _name, _wrap(_name, _real))
