"""Access to the caller's own connection: find the sqlite3 connection inside a wrapper, and use it on the right thread.

Supported wrappers are connections of aiosqlite and Django, and connections and sessions of SQLAlchemy, synchronous or
asynchronous. They are recognized by their attributes, not by their type, so that none of these libraries is imported.
The connection's settings are left as the caller has chosen them.
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
    """The caller's connection, with a cursor that always returns tuples. It ignores the caller's row factory."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._cursor = sqlite3.Cursor(raw)

    def execute(self, sql: str, params: Any = ()) -> sqlite3.Cursor:
        return self._cursor.execute(sql, params)


@contextmanager
def text_as_str(raw: sqlite3.Connection) -> Iterator[None]:
    """Make the connection return text as `str` inside the block; restore the caller's `text_factory` afterwards."""
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
    """Return whether the connection is in autocommit mode, as set by `autocommit` or `isolation_level`."""
    autocommit = getattr(raw, "autocommit", -1)  # since Python 3.12; -1 means that isolation_level decides
    return raw.isolation_level is None if autocommit == -1 else bool(autocommit)


def reach(connection: object) -> sqlite3.Connection:
    """Return the sqlite3 connection inside a wrapper.

    Raise InvalidInput if there is none, or if only the wrapper's own thread may use it.
    """
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
    """Call `act` with the sqlite3 connection and return its result.

    `act` runs in the calling thread, or in the wrapper's thread if the wrapper has one, as aiosqlite does.
    """
    if isinstance(connection, sqlite3.Connection):
        return act(connection)
    if hasattr(connection, "sync_session"):  # an asynchronous session: its connection must be awaited
        connection = await connection.connection()  # type: ignore[attr-defined]
    found, runner = _look(_begun(connection))
    return act(found) if runner is None else await runner(act, found)


def _begun(connection: object) -> object:
    """Return the SQLAlchemy connection inside a session or an asynchronous wrapper. Return any other object unchanged.

    If SQLAlchemy has no transaction open, begin one: SQLAlchemy commits only transactions that it has begun.
    """
    inner = getattr(connection, "sync_connection", connection)
    if hasattr(inner, "get_bind"):  # a session
        inner = inner.connection()  # type: ignore[attr-defined]
    begin, in_transaction = getattr(inner, "begin", None), getattr(inner, "in_transaction", None)
    if callable(begin) and callable(in_transaction) and not in_transaction():
        begin()
    return inner


def _look(connection: object) -> tuple[sqlite3.Connection, Callable[..., Awaitable[Any]] | None]:
    """Return the sqlite3 connection, and a function that runs code on the wrapper's own thread.

    The function is None if the wrapper has no thread of its own. Raise InvalidInput if the object contains no sqlite3
    connection.
    """
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
    """Raise InvalidInput if the connection's main database is not the store's file.

    One commit can cover the caller's tables and the jobs only if both are in the main database. `files` is the result
    of PRAGMA database_list.
    """
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
    """Raise InvalidInput if a converter registered with the sqlite3 module would change the values that the store
    reads.

    A converter for BLOB is always refused. For INTEGER and TEXT, the function reads known values with `first_row` and
    compares them.
    """
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
