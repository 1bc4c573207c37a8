"""The caller's connection as a `Wire`: a connection of psycopg, asyncpg or SQLAlchemy, blocking or asynchronous.

A step runs in a thread that may block. A blocking connection is used in that thread. An asynchronous connection is used
on its event loop, and the thread waits for the result.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from millrace.domain.errors import InvalidInput
from millrace.store.postgres.sql import Held
from millrace.store.sql.ports import Row

KNOWN = "a psycopg, asyncpg or SQLAlchemy connection to PostgreSQL"


class Blocking:
    """A `Wire` over a blocking psycopg connection."""

    on_loop = False

    def __init__(self, connection: Any) -> None:
        import psycopg

        self._cursor = psycopg.RawCursor(connection)
        self._connection = connection

    def rows(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        try:
            self._cursor.execute(sql, list(args))
            return self._cursor.fetchall() if self._cursor.description is not None else []
        except Exception as error:
            raise _translated(error) from error

    def begun(self) -> bool:
        """Return whether a transaction is open or begins with the next statement.

        In autocommit mode, a statement begins no transaction.
        """
        return not self._connection.autocommit or self._connection.info.transaction_status != 0


class OnLoop:
    """A `Wire` over an asyncpg connection or an asynchronous psycopg connection."""

    on_loop = True

    def __init__(self, connection: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop

    def rows(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        try:
            return asyncio.run_coroutine_threadsafe(self._ask(sql, args), self._loop).result()
        except Exception as error:
            raise _translated(error) from error

    async def _ask(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        if _is(self._connection, "psycopg", "AsyncConnection"):
            import psycopg

            cursor = psycopg.AsyncRawCursor(self._connection)
            await cursor.execute(sql, list(args))
            return await cursor.fetchall() if cursor.description is not None else []
        return await self._connection.fetch(sql, *args)  # type: ignore[no-any-return]

    def begun(self) -> bool:
        if hasattr(self._connection, "is_in_transaction"):
            return bool(self._connection.is_in_transaction())
        return not self._connection.autocommit or self._connection.info.transaction_status != 0


def _translated(error: Exception) -> Exception:
    return Held() if getattr(error, "sqlstate", None) == "55P03" else error


def _is(connection: object, module: str, name: str) -> bool:
    """Return whether the connection has the type `module.name`. The module is not imported if the program does not use
    it.
    """
    loaded: Any = sys.modules.get(module)
    return loaded is not None and isinstance(connection, getattr(loaded, name))


async def reach(connection: object) -> Blocking | OnLoop:
    """Return the wire of the caller's connection. Call this on the event loop of the connection, if it is asynchronous.

    Raise InvalidInput if the type of the connection is not supported.
    """
    loop = asyncio.get_running_loop()
    if _is(connection, "sqlalchemy.ext.asyncio", "AsyncSession"):
        session: Any = connection
        connection = await session.connection()
    if _is(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        given: Any = connection
        if not given.in_transaction():
            await given.begin()
        await given.exec_driver_sql("SELECT 1")  # the driver's transaction begins with the first statement
        return OnLoop((await given.get_raw_connection()).driver_connection, loop)
    if _is(connection, "psycopg", "AsyncConnection") or _is(connection, "asyncpg", "Connection"):
        return OnLoop(connection, loop)
    if _is(connection, "asyncpg.pool", "PoolConnectionProxy"):
        return OnLoop(connection, loop)
    return reach_now(connection)


def reach_now(connection: object) -> Blocking:
    """Like `reach`, for a caller without an event loop. Also raises InvalidInput for an asynchronous connection."""
    if _is(connection, "sqlalchemy.orm", "Session"):
        session: Any = connection
        connection = session.connection()
    if _is(connection, "sqlalchemy.engine", "Connection"):
        given: Any = connection
        given.exec_driver_sql("SELECT 1")
        connection = given.connection.driver_connection
    if _is(connection, "psycopg", "Connection"):
        return Blocking(connection)
    if _is(connection, "asyncpg", "Connection") or _is(connection, "psycopg", "AsyncConnection"):
        raise InvalidInput("this connection belongs to an event loop: await the call there, without `sync` or `_now`")
    raise InvalidInput(f"within takes {KNOWN}, not {type(connection).__module__}.{type(connection).__name__}")
