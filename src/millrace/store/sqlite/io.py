"""The one seam through which this store touches the disk, the lock and the sockets.

Tests wrap it to crash, fail or lose an answer before or after any single call; nothing else in this package
opens a file, runs a statement or sends a datagram.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Params = Sequence[Any] | Mapping[str, Any]
Rows = list[tuple[Any, ...]]


class Io:
    def open(self, path: str) -> sqlite3.Connection:
        """A connection without Python's own transactions: this store begins and commits by itself."""
        uri = Path(path).absolute().as_uri() + "?mode=rw"
        return sqlite3.connect(
            uri, timeout=0, isolation_level=None, cached_statements=512, uri=True, check_same_thread=False
        )

    def close(self, connection: sqlite3.Connection) -> None:
        connection.close()

    def create(self, path: str) -> None:
        """The file, for its owner only, unless it is there already; then it must not even be opened.

        A process loses every lock on a file when it closes any handle to it: those of its other connections as well.
        Another process would then take itself for the last one, and remove a log that is still written to.
        """
        target = os.path.realpath(path)  # a link may lead to a file that is yet to be made
        if os.path.exists(target):
            return
        draft = f"{target}-{os.urandom(6).hex()}"
        _make(draft)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(draft, target)  # closed before it has its name, so no other thread can have locks on it
        except OSError:  # a file system without links
            with contextlib.suppress(FileExistsError):
                _make(target)
        finally:
            os.unlink(draft)

    def execute(self, connection: sqlite3.Connection, sql: str, params: Params = ()) -> Rows:
        return connection.execute(sql, params).fetchall()

    def script(self, connection: sqlite3.Connection, sql: str) -> None:
        """Many statements inside the caller's transaction (sqlite3's own executescript would commit first)."""
        for statement in _statements(sql):
            connection.execute(statement)

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def begin_read(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def rollback(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def sync(self, path: str) -> None:
        """What was written to this file is on disk, whoever wrote it; one that is not there has nothing to lose."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def lock(self, file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)

    def try_lock(self, file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)

    def poke(self, sender: socket.socket, address: str, message: bytes) -> None:
        sender.sendto(message, address)


def _make(path: str) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _statements(sql: str) -> list[str]:
    found: list[str] = []
    rest = ""
    for part in sql.split(";"):
        rest += part + ";"
        if sqlite3.complete_statement(rest):
            found.append(rest)
            rest = ""
    return [statement for statement in found if statement.strip(" \n;")]
