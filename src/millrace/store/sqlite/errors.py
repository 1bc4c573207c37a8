"""Converts errors of SQLite to StoreErrors that tell the user what to do."""

from __future__ import annotations

import sqlite3

from millrace.domain.errors import StoreError

BUSY = frozenset(
    {"SQLITE_BUSY", "SQLITE_BUSY_RECOVERY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_BUSY_TIMEOUT", "SQLITE_LOCKED"}
)

_ADVICE = {
    "SQLITE_FULL": "the disk is full. Nothing of this call was written; free some room and call again",
    "SQLITE_IOERR": "the disk failed, or is full. Nothing of this call was written; look at it and call again",
    "SQLITE_READONLY": "it is read-only. Let this user write the file and its directory",
    "SQLITE_CANTOPEN": "it cannot be opened. Let this user write the file and its directory",
    "SQLITE_PERM": "this user may not open it. Let this user write the file and its directory",
    "SQLITE_NOTADB": "it is not a SQLite database. Choose another file, or move this one away",
    "SQLITE_CORRUPT": "it is damaged. Stop all workers, copy it, and recover it with: sqlite3 FILE .recover",
}


def is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", None) in BUSY


def store_error(error: BaseException, path: str) -> StoreError:
    """Return a StoreError that explains an error of SQLite and gives advice; `path` is the database file."""
    name = getattr(error, "sqlite_errorname", None) or ""
    if name in BUSY:
        return StoreError(
            f"{path}: another connection keeps this database locked. Nothing of this call was written; close what "
            "holds a transaction open on it (a database browser, a long script, another thread) and call again."
        )
    for code, advice in _ADVICE.items():
        if name.startswith(code):
            return StoreError(f"{path}: {advice}. (SQLite: {error})")
    return StoreError(f"{path}: {error}")
