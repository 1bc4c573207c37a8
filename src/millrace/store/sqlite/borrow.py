"""The caller's own connection: finding SQLite's in what was given, on its thread, and using it without a trace.

Wrappers are known by what they have, not by their type, so that none of their libraries is imported: aiosqlite's
connections, SQLAlchemy's connections and sessions (both kinds), Django's.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from millrace.domain.errors import InvalidInput

T = TypeVar("T")
Act = Callable[[sqlite3.Connection], T]

ACCEPTED = (
    "within takes the sqlite3.Connection that your transaction runs on, or an object around one: "
    "a connection of aiosqlite, a connection or session of SQLAlchemy, a connection of Django"
)
_INSIDE = ("driver_connection", "dbapi_connection", "connection")
_DEPTH = 5


class Borrowed:
    """Runs statements and gives plain tuples, whatever row factory the caller has set."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._cursor = sqlite3.Cursor(raw)

    def execute(self, sql: str, params: Any = ()) -> sqlite3.Cursor:
        return self._cursor.execute(sql, params)


@contextmanager
def plain_text(raw: sqlite3.Connection) -> Iterator[None]:
    """Text comes as `str` meanwhile; the caller's choice is back afterwards."""
    chosen = raw.text_factory
    if chosen is str:
        yield
        return
    raw.text_factory = str
    try:
        yield
    finally:
        raw.text_factory = chosen


def commits_by_itself(raw: sqlite3.Connection) -> bool:
    """Is it in autocommit mode, by either of Python's two ways to say so?"""
    autocommit = getattr(raw, "autocommit", -1)  # since Python 3.12; -1 there means: as isolation_level says
    return raw.isolation_level is None if autocommit == -1 else bool(autocommit)


def reach(connection: object) -> sqlite3.Connection:
    """SQLite's connection in what was given, for use on this thread."""
    if isinstance(connection, sqlite3.Connection):
        return connection
    found, runner = _look(_begun(connection))
    if runner is not None:
        raise InvalidInput(
            f"{_kind(connection)} works on a thread of its own, so it can be used with await only: "
            "await task.options(within=connection).enqueue(…)"
        )
    return found


async def on_its_thread(connection: object, act: Act[T]) -> T:
    """Run `act` with SQLite's connection where that connection is at home: here, or on the wrapper's thread."""
    if isinstance(connection, sqlite3.Connection):
        return act(connection)
    if hasattr(connection, "sync_session"):  # an asynchronous session: its connection comes by await
        connection = await connection.connection()  # type: ignore[attr-defined]
    found, runner = _look(_begun(connection))
    return act(found) if runner is None else await runner(act, found)


def _begun(connection: object) -> object:
    """SQLAlchemy commits only what it knows to have begun, and it does not see what is done past it."""
    inner = getattr(connection, "sync_connection", connection)
    if hasattr(inner, "get_bind"):  # a session
        inner = inner.connection()  # type: ignore[attr-defined]
    begin, in_transaction = getattr(inner, "begin", None), getattr(inner, "in_transaction", None)
    if callable(begin) and callable(in_transaction) and not in_transaction():
        begin()
    return inner


def _look(connection: object) -> tuple[sqlite3.Connection, Callable[..., Awaitable[Any]] | None]:
    """SQLite's connection, and what runs a function on its thread when that is not this one."""
    inner: object | None = connection
    for _ in range(_DEPTH):
        if isinstance(inner, sqlite3.Connection):
            return inner, None
        owned, runner = _held(inner, "_conn"), getattr(inner, "_execute", None)
        if isinstance(owned, sqlite3.Connection) and iscoroutinefunction(runner):
            return owned, runner
        inner = next((held for name in _INSIDE if (held := _held(inner, name)) is not None), None)
    raise InvalidInput(f"{ACCEPTED}; not {_kind(connection)}")


def _held(outer: object, name: str) -> object | None:
    try:
        held: object = getattr(outer, name, None)
        return held() if callable(held) and not isinstance(held, sqlite3.Connection) else held
    except Exception:  # closed, not connected yet, or not what the name promised
        return None


def _kind(connection: object) -> str:
    kind = type(connection)
    return f"a {kind.__module__}.{kind.__qualname__}" if connection is not None else "None"


def refuse_other_file(files: list[tuple[Any, ...]], path: str) -> None:
    """The connection's main database must be the store's: only then is one commit for both."""
    names = {name: file for _, name, file in files}
    if _same(names.get("main", ""), path):
        return
    if any(_same(file, path) for file in names.values()):
        raise InvalidInput(
            f"this connection has {path} attached beside {names['main'] or 'a database in memory'}. A commit over two "
            "files is not atomic in write-ahead mode: keep your tables in the file of the jobs, and open that one."
        )
    raise InvalidInput(
        f"this connection is to {names.get('main') or 'a database in memory'}, and the jobs are in {path}. Only work "
        f"in the same file can be part of the same transaction: open your connection with sqlite3.connect({path!r})."
    )


def refuse_converted(first_row: Callable[[str], tuple[Any, ...]]) -> None:
    """A program may have SQLite's own column types converted on its connections; then nothing reads as we wrote it."""
    if not sqlite3.converters.keys() & {"INTEGER", "TEXT", "BLOB"}:
        return
    name = first_row("SELECT name FROM sqlite_schema WHERE name = 'millrace_store'")
    if "BLOB" in sqlite3.converters or (*first_row("SELECT one FROM millrace_store"), *name) != (1, "millrace_store"):
        raise InvalidInput(
            "sqlite3.register_converter was called for INTEGER, TEXT or BLOB, and this connection uses it "
            "(detect_types). Open the connection that you give as within without detect_types."
        )


def _same(file: str | None, path: str) -> bool:
    if not file:
        return False
    if file == path:
        return True
    try:
        return os.path.samefile(file, path)
    except OSError:
        return False
