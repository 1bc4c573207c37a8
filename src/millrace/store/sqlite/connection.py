"""Opening a connection the way this store wants it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from millrace.domain.errors import StoreError
from millrace.store.sqlite.io import Io
from millrace.store.sqlite.trouble import is_busy, store_error

T = TypeVar("T")

CACHE_KIB = 16 * 1024  # more would cost: SQLite walks all of it after a commit that has rearranged pages
CHECKPOINT_PAGES = 4_000  # 16 MiB of log, then it is written back and used again from its start
MAX_LOG = 64 << 20
BUSY_MS = 1_000  # SQLite's own patience; ours begins after it
PATIENCE = 30.0
_QUICK_CHECK_UP_TO = 256 << 20  # bytes; a larger file is checked on demand only


def open_writer(path: str, io: Io, durability: str) -> sqlite3.Connection:
    connection = _open(path, io)
    try:
        _prepare_writer(connection, path, io, durability)
    except BaseException:
        io.close(connection)
        raise
    return connection


def _prepare_writer(connection: sqlite3.Connection, path: str, io: Io, durability: str) -> None:
    mode = patiently(lambda: io.execute(connection, "PRAGMA journal_mode = WAL"))[0][0]
    if mode != "wal":
        raise StoreError(f"{path}: SQLite refuses write-ahead logging here ({mode}). Put the file on a local disk.")
    for pragma in (
        f"synchronous = {'NORMAL' if durability == 'relaxed' else 'FULL'}",
        f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
        f"journal_size_limit = {MAX_LOG}",
        "secure_delete = OFF",
    ):
        io.execute(connection, f"PRAGMA {pragma}")


def open_reader(path: str, io: Io) -> sqlite3.Connection:
    connection = _open(path, io)
    io.execute(connection, "PRAGMA query_only = ON")
    return connection


def _open(path: str, io: Io) -> sqlite3.Connection:
    connection = io.open(path)
    for pragma in (f"busy_timeout = {BUSY_MS}", f"cache_size = -{CACHE_KIB}", "temp_store = MEMORY"):
        io.execute(connection, f"PRAGMA {pragma}")
    return connection


def patiently(act: Callable[[], T], patience: float = PATIENCE) -> T:
    """Try again while another connection is in the way; `database is locked` is no answer to a user."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return act()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.001 + 0.02 * os.urandom(1)[0] / 255)  # not in step with the others


def check(connection: sqlite3.Connection, io: Io, path: str, *, thorough: bool) -> list[str]:
    """What is wrong with the file, in SQLite's words; empty when it is sound."""
    if not thorough and os.path.getsize(path) > _QUICK_CHECK_UP_TO:
        return []
    pragma = "PRAGMA integrity_check(20)" if thorough else "PRAGMA quick_check(1)"
    try:
        found = [str(row[0]) for row in io.execute(connection, pragma)]
    except sqlite3.DatabaseError as error:
        raise store_error(error, path) from error
    return [] if found == ["ok"] else found
