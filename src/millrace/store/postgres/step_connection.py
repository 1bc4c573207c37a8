"""Connections for steps of the ledger. Each has its own event loop, which runs only during a query.

The ledger is synchronous code that queries rows when it needs them, so a step runs in a thread. If its connection
belonged to the store's event loop, every query would switch between two threads, which takes longer than the query
itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

import asyncpg

from millrace.store.postgres.address import Address
from millrace.store.postgres.connections import FORGET_PLANS, Age, open_connection
from millrace.store.postgres.sql import Held
from millrace.store.sql.ports import Row

T = TypeVar("T")
_IDLE = 1.0  # seconds after which a connection is checked before it is used


class StepConnection:
    """A connection with its own event loop. Any thread may use it, but only one at a time."""

    def __init__(self, address: Address, generation: int = 0) -> None:
        self._loop = asyncio.new_event_loop()
        self._used = 0.0
        self.age = Age(generation, reads_only=address.reads_only)
        try:
            self._connection: Any = self._wait(open_connection(address.arguments_for_steps()))
        except BaseException:
            self._loop.close()
            raise

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def rows(self, sql: str, args: Sequence[Any]) -> Sequence[Row]:
        try:
            return self._wait(self._connection.fetch(sql, *args))
        except asyncpg.LockNotAvailableError as error:
            raise Held from error

    def begin(self, sql: str) -> None:
        self.execute(f"{sql}; {FORGET_PLANS}" if self.age.plans_are_old() else sql)

    def execute(self, sql: str) -> None:
        self._wait(self._connection.execute(sql))

    def is_alive(self) -> bool:
        """Return whether the connection is open and can still be used (see `Age.is_over`).

        The event loop of an idle connection runs for a moment first, because otherwise a disconnect is not noticed.
        """
        if time.monotonic() - self._used > _IDLE:
            self._wait(_turns())
        return not self._connection.is_closed() and not self.age.is_over(self._connection)

    def mark_used(self) -> None:
        self._used = time.monotonic()

    def end(self) -> None:
        if not self._loop.is_closed():
            self._connection.terminate()
            self._wait(_turns())
            self._loop.close()

    def close(self) -> None:
        """Close the connection gracefully, and then its event loop."""
        with suppress(Exception):  # it ends either way
            self._wait(self._connection.close(timeout=2))
        self.end()


async def _turns() -> None:
    """Let the event loop read received data and run pending callbacks."""
    for _ in range(3):
        await asyncio.sleep(0)


class StepConnections:
    """A pool of connections for steps. `total` counts the free connections and those in use."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._free: list[StepConnection] = []
        self._closed = False
        self._counting = Lock()
        self.generation = 0
        self.total = 0

    def run(self, begin: str, work: Callable[[StepConnection], T], make_room: Callable[[], None]) -> T:
        """Run `work` in a transaction in the calling thread, and return its result. Roll back if `work` raises an
        exception.

        `begin` is the SQL that begins the transaction. `make_room` is called before a new connection is opened.
        """
        connection = self._take(make_room)
        try:
            connection.begin(begin)
            answer = work(connection)
            connection.execute("COMMIT")
        except BaseException as error:
            self._undo(connection, error)
            raise
        self._give_back(connection)
        return answer

    def _take(self, make_room: Callable[[], None]) -> StepConnection:
        with suppress(IndexError):  # other threads take from it as well
            while True:
                connection = self._free.pop()
                if connection.age.generation == self.generation and connection.is_alive():
                    return connection
                self._end(connection)
        self._count(1)
        make_room()
        try:
            return StepConnection(self._address, self.generation)
        except BaseException:
            self._count(-1)
            raise

    def _undo(self, connection: StepConnection, error: BaseException) -> None:
        if isinstance(error, TimeoutError):  # the server would not reply to a rollback either
            self._end(connection)
            return
        try:
            connection.execute("ROLLBACK")
        except Exception:  # the connection is unusable, whatever the reason
            self._end(connection)
        else:
            self._give_back(connection)

    def _give_back(self, connection: StepConnection) -> None:
        if connection.age.generation != self.generation:
            self._end(connection)
            return
        connection.mark_used()
        self._free.append(connection)
        if self._closed:
            self.close()

    def renew(self) -> None:
        """Close the free connections at once. A connection in use is closed after its transaction. Blocks."""
        self.generation += 1
        with suppress(IndexError):
            while True:
                self._end(self._free.pop())

    def end_idle(self) -> None:
        """Close one free connection, if there is one, because a connection for the event loop is being opened."""
        with suppress(IndexError):
            self._end(self._free.pop())

    def _end(self, connection: StepConnection) -> None:
        self._count(-1)
        connection.end()

    def _count(self, more: int) -> None:
        with self._counting:
            self.total += more

    def close(self) -> None:
        """Close the free connections gracefully. A connection in use is closed after its transaction. Blocks."""
        self._closed = True
        with suppress(IndexError):
            while True:
                connection = self._free.pop()
                self._count(-1)
                connection.close()
