"""Access to the database file: system calls (`Io`), retries while the file is locked, and the named statements.

The store's own statements, file locks, flushes and datagrams go through `Io`. Tests wrap it to crash, to fail, or to
lose a reply, before or after any single call.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from millrace.domain.errors import StoreError
from millrace.store.sql.ports import Statements, load_statements
from millrace.store.sql.record import texts
from millrace.store.sqlite.errors import is_busy

T = TypeVar("T")
Params = Sequence[Any] | Mapping[str, Any]
Rows = list[tuple[Any, ...]]

PATIENCE = 30.0  # seconds for which a statement is retried while another connection holds a lock
LOOK_AT_LOG = 1.0  # seconds between two checks of the log file
SIZES = (256, 64, 16, 4, 1)  # rows per statement: each size is prepared once and then reused
_NAMED = re.compile(r"--.*|:(\w+)")
_ROW = re.compile(r"\((?:\?, )*\?\)")
_COLUMNS = re.compile(r"\(([\w,\s]+)\)\s+VALUES\s+$")


class OwnConnection(sqlite3.Connection):
    """A connection that the store has opened itself. Connections of callers do not have this type."""


class Io:
    def open(self, path: str, options: str = "mode=rw") -> sqlite3.Connection:
        """Return a new connection without Python's implicit transactions: the store begins and commits explicitly."""
        uri = f"{Path(path).absolute().as_uri()}?{options}"
        return sqlite3.connect(
            uri,
            timeout=0,
            isolation_level=None,
            cached_statements=512,
            uri=True,
            check_same_thread=False,
            factory=OwnConnection,
        )

    def close(self, connection: sqlite3.Connection) -> None:
        connection.close()

    def create(self, path: str) -> None:
        """Create the file, readable by its owner only. If the file exists, do nothing: it must not even be opened.

        When a process closes any handle to a file, it loses all its locks on that file, including those of SQLite's
        connections. Without these locks, another process would conclude that it is the last user, and delete a log that
        is still in use.
        """
        target = os.path.realpath(path)  # a symbolic link may point to a file that does not exist yet
        if os.path.exists(target):
            return
        draft = f"{target}-{os.urandom(6).hex()}"
        _make(draft)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(draft, target)  # closed before it has this name, so no other thread can have locks on it
        except OSError:  # a file system without hard links
            with contextlib.suppress(FileExistsError):
                _make(target)
        finally:
            os.unlink(draft)

    def execute(self, connection: sqlite3.Connection, sql: str, params: Params = ()) -> Rows:
        return connection.execute(sql, params).fetchall()

    def script(self, connection: sqlite3.Connection, sql: str) -> None:
        """Run several statements in the current transaction. (`executescript` of sqlite3 would commit it first.)"""
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
        """Flush the file to disk, including data written by other processes. Do nothing if the file does not exist."""
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

    def send(self, sender: socket.socket, address: str, message: bytes) -> None:
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


def retry_while_busy(act: Callable[[], T], busy: Callable[[float], None] | None = None) -> T:
    """Call `act` and return its result. While another connection holds a lock, retry for up to `PATIENCE` seconds.

    Before each retry, `busy` is called with the number of seconds waited so far. It may raise an exception to stop.
    """
    begun = time.monotonic()
    shortest = 0.0005  # most locks are held for a short time, so the first retries follow each other quickly
    while True:
        try:
            return act()
        except sqlite3.OperationalError as error:
            waited = time.monotonic() - begun
            if not is_busy(error) or waited > PATIENCE:
                raise
        if busy is not None:
            busy(waited)
        shortest = min(0.02, 2 * shortest)
        time.sleep(shortest * (1 + os.urandom(1)[0] / 255))  # jitter


class OpenedFile:
    """The identity (device and inode) that the database file and its log had when they were opened.

    If a file is removed or replaced, this process continues to write to the old one. Without a check, every call would
    succeed, and nothing would be stored. `file_error` detects this.
    """

    def __init__(self, path: str) -> None:
        self._path, self._log = path, path + "-wal"
        self._file_was: tuple[int, int] | None = None
        self._log_was: tuple[int, int] | None = None
        self._log_seen = 0.0

    def note_file(self) -> None:
        """Remember the identity of the database file. Call this before the file is opened."""
        self._file_was, self._log_was = _identity(self._path), None

    def note_log(self) -> None:
        """Remember the identity of the log. Call this after the first statement, which makes SQLite create the log."""
        self._log_was = _identity(self._log)

    def file_error(self) -> StoreError | None:
        """Return an error if the file or its log was removed or replaced, otherwise None.

        The log is checked at most once per `LOOK_AT_LOG` seconds.
        """
        if _identity(self._path) != self._file_was:
            return self._gone(self._path)
        if self._log_was is not None and time.monotonic() - self._log_seen > LOOK_AT_LOG:
            if _identity(self._log) != self._log_was:
                return self._gone(self._log)
            self._log_seen = time.monotonic()
        return None

    def _gone(self, name: str) -> StoreError:
        return StoreError(
            f"{name} was removed or replaced while this process had it open. What this call changed is lost, and so is "
            "what was written since then. Stop every process that uses the file, put the right one in place (a backup, "
            "without the -wal and -shm of another file), and start them again."
        )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# ── named statements ──────────────────────────────────────────────────────────────────────────


def _positional(sql: str) -> tuple[str, tuple[int, ...]]:
    """Return the statement with `?` in place of each `:name`, and for each `?` the index of its argument."""
    names: list[str] = []

    def mark(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        names.append(found[1])
        return "?"

    text = _NAMED.sub(mark, sql)
    numbers = list(dict.fromkeys(names))
    return text, tuple(numbers.index(name) for name in names)


_STATEMENTS = {name: _positional(sql) for name, sql in load_statements(__package__).items()}
SQL: dict[str, str] = {name: sql for name, (sql, _) in _STATEMENTS.items()}
# Statements that use an argument twice: the number of the argument for each question mark.
_REPEATED = {name: marks for name, (_, marks) in _STATEMENTS.items() if len(set(marks)) < len(marks)}


class ManyRows:
    """A statement in which the group `(?, ?, …)` is repeated, once for each row of arguments.

    With `columns`, the statement is an INSERT that writes only these of its columns, given by their indexes.
    """

    def __init__(self, name: str, columns: tuple[int, ...] | None = None) -> None:
        row = _ROW.search(SQL[name])
        if row is None:
            raise ValueError(f"statement {name!r} has no row of question marks")
        head, group, tail = SQL[name][: row.start()], row.group(), SQL[name][row.end() :]
        self.width = group.count("?")
        if columns is not None and len(columns) < self.width:
            names = _COLUMNS.search(head)
            if names is None:
                raise ValueError(f"statement {name!r} names no columns")
            kept = [names[1].split(",")[column].strip() for column in columns]
            head = f"{head[: names.start(1)]}{', '.join(kept)}{head[names.end(1) :]}"
            self.width = len(kept)
            group = f"({', '.join('?' * self.width)})"
        self.by_size = {size: head + ", ".join([group] * size) + tail for size in SIZES}


@cache
def many_rows(name: str, columns: tuple[int, ...] | None = None) -> ManyRows:
    return ManyRows(name, columns)


class SqliteStatements(Statements):
    """Runs named statements on one connection.

    Arguments are passed in the order in which their names first appear in the statement. A list argument is passed as
    JSON. Rows to write are passed in VALUES lists of up to 256 rows.
    """

    def __init__(self, connection: sqlite3.Connection, io: Io) -> None:
        self._connection = connection
        self._io = io

    def rows(self, name: str, *args: Any) -> Rows:
        if list in map(type, args):
            args = tuple(_json(arg) if type(arg) is list else arg for arg in args)
        if name in _REPEATED:
            args = tuple(args[number] for number in _REPEATED[name])
        return self._io.execute(self._connection, SQL[name], args)

    def rows_of(self, name: str, keys: Sequence[tuple[Any, ...]]) -> Rows:
        return self.rows(name, list(keys))

    def delete(self, name: str, keys: Sequence[tuple[Any, ...]]) -> None:
        self.rows_of(name, keys)

    def write(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run an INSERT of these rows. Columns in which all rows have None are left out of the statement.

        sqlite3 takes four times as long to bind None, a bool or bytes as to bind an int: it looks for an adapter first.
        """
        columns = list(zip(*rows, strict=True))
        filled = [n for n, column in enumerate(columns) if column[0] is not None or column.count(None) < len(column)]
        if len(filled) < len(columns):
            rows = list(zip(*(columns[n] for n in filled), strict=True))
        self._write(many_rows(name, tuple(filled)), list(chain.from_iterable(rows)))

    def write_flat(self, name: str, values: list[Any]) -> None:
        """Run a statement that writes rows. The values of all rows are given in one list, row after row."""
        self._write(many_rows(name), values)

    def _write(self, statement: ManyRows, values: list[Any]) -> None:
        width = statement.width
        start, left = 0, len(values) // width
        for size in SIZES:
            while left >= size:
                part = values[start : start + size * width] if left > size or start else values
                self._io.execute(self._connection, statement.by_size[size], part)
                start += size * width
                left -= size


def _json(items: list[Any]) -> str:
    try:
        return msgspec.json.encode(items).decode()
    except UnicodeEncodeError:  # a lone surrogate: no job can have such an id, so it cannot be found
        return msgspec.json.encode(texts(items)).decode()
