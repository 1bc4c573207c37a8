"""The connections to one server for one event loop. They are opened when needed, and discarded when an error leaves
them unusable.

Steps run in threads and have their own connections (`step_connection.py`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import asyncpg

from millrace.store.postgres.address import Address

if TYPE_CHECKING:
    from millrace.store.postgres.step_connection import StepConnections

_LAST_WORD = 2.0  # seconds
# The server caches the plans of a session. A plan made while a table was small may scan all of it, and stays in use
# when the table has grown, until it is analyzed. Plans are therefore discarded from time to time.
PLAN_AGAIN = 2.0  # seconds
FORGET_PLANS = "DISCARD PLANS"
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
# After a failover, a host name or a proxy leads to another server, while open connections stay with the old one. A
# write there fails, but reads would continue forever.
READ_ONLY_KEPT = 5.0  # seconds for which a connection to a read-only server is used


class Age:
    """The age of a connection and of its cached query plans. `generation` counts the renewals before the connection was
    opened. With `reads_only`, the session has been made read-only on purpose.
    """

    def __init__(self, generation: int, *, reads_only: bool = False) -> None:
        self.generation = generation
        self._reads_only = reads_only
        self.opened = self._planned = monotonic()

    def plans_are_old(self) -> bool:
        """Return whether the session's cached query plans are old. If so, the caller must discard them: their age
        restarts now.
        """
        old = monotonic() - self._planned > PLAN_AGAIN
        if old:
            self._planned = monotonic()
        return old

    def is_over(self, connection: Any) -> bool:
        """Return whether the connection is to a read-only server and too old to be kept."""
        return is_read_only(connection, self._reads_only) and monotonic() - self.opened > READ_ONLY_KEPT


def is_read_only(connection: Any, on_purpose: bool = False) -> bool:
    """Return whether the server says that it is read-only. PostgreSQL reports this since version 14.

    With `on_purpose`, the session itself is read-only, so only a standby counts.
    """
    settings = connection.get_settings()
    if getattr(settings, "in_hot_standby", None) == "on":
        return True
    return not on_purpose and getattr(settings, "default_transaction_read_only", None) == "on"


async def open_connection(arguments: dict[str, Any]) -> Any:
    connection = await asyncpg.connect(**arguments)
    _keep_alive(connection)
    return connection


def _keep_alive(connection: Any) -> None:
    """Turn on TCP keepalive, so that the system notices when the server disappears, even on an idle connection."""
    transport = getattr(connection, "_transport", None)  # the driver has no public option for it
    line = None if transport is None else transport.get_extra_info("socket")
    if line is None or line.family not in (socket.AF_INET, socket.AF_INET6):
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):  # not on every platform
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Connections:
    """The connections for statements that run on the event loop.

    `step_connections` has the connections for steps, which run in threads. The semaphore `room` limits how many
    connections of both kinds are in use.
    """

    def __init__(self, address: Address, step_connections: StepConnections) -> None:
        self._address = address
        self._most = max(2, address.connections)  # a step and a statement need one each
        self._free: list[Any] = []
        self._silent: set[Any] = set()
        self._ages: WeakKeyDictionary[Any, Age] = WeakKeyDictionary()
        self._apart: WeakSet[Any] = WeakSet()
        self.generation = 0
        self._total = 0
        self._closed = False
        self.room = asyncio.Semaphore(address.connections)
        self.step_connections = step_connections

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Any]:
        """Yield a connection for one statement.

        The connection is kept for reuse. It is discarded if it is closed or outdated, after a timeout, or if an error
        leaves it in a transaction.
        """
        async with self.room:
            connection = await self._take()
            try:
                if self._ages[connection].plans_are_old():
                    await connection.execute(FORGET_PLANS)
                yield connection
            except TimeoutError:
                self._leave(connection)
                raise
            except BaseException:
                if connection.is_closed() or connection.is_in_transaction():
                    connection.terminate()
                raise
            finally:
                if self._closed or connection in self._silent or not self._is_current(connection):
                    self._total -= 1
                    if connection not in self._silent:
                        connection.terminate()
                else:
                    self._free.append(connection)

    async def _take(self) -> Any:
        while self._free:
            connection = self._free.pop()
            age = self._ages[connection]
            is_over = age.is_over(connection)
            if self._is_current(connection) and not is_over:
                return connection
            self._total -= 1
            connection.terminate()
            if is_over:  # the other connections lead to the same server
                await self.renew(age.generation)
        self._total += 1
        generation = self.generation
        try:
            if self._total + self.step_connections.total > self._most:
                await asyncio.to_thread(self.step_connections.end_idle)
            connection = await open_connection(self._address.arguments())
        except BaseException:
            self._total -= 1
            raise
        self._ages[connection] = Age(generation, reads_only=self._address.reads_only)
        return connection

    def _is_current(self, connection: Any) -> bool:
        return not connection.is_closed() and self._ages[connection].generation == self.generation

    async def open(self) -> Any:
        """Open and return a connection that is used by this caller only. The caller closes it; `renew` may close it
        earlier.
        """
        generation = self.generation
        connection = await open_connection(self._address.arguments())
        if generation != self.generation:
            connection.terminate()
            raise ConnectionError("the server may have moved while this connection was opened")
        self._apart.add(connection)
        return connection

    async def renew(self, seen: int) -> None:
        """Discard all connections, because the host name may lead to another server now. New ones are opened when
        needed.

        `seen` is the value of `generation` when the failure was noticed. Do nothing if it has changed since: the
        connections are already renewed.
        """
        if seen != self.generation:
            return
        self.generation += 1
        while self._free:
            self._total -= 1
            self._free.pop().terminate()
        for connection in list(self._apart):
            connection.terminate()
        await asyncio.to_thread(self.step_connections.renew)

    def make_room(self) -> None:
        """Close idle connections while there are too many in total. Called when another connection is opened for a
        step.
        """
        while self._free and self._total + self.step_connections.total > self._most:
            self._free.pop().terminate()
            self._total -= 1

    def _leave(self, connection: Any) -> None:
        """Discard a connection after a timeout, because a late reply would be taken for the reply to the next
        statement.

        The connection is closed after a short delay, so that the driver can ask the server to cancel the running
        statement.
        """
        self._silent.add(connection)
        asyncio.get_running_loop().call_later(_LAST_WORD, self._end, connection)

    def _end(self, connection: Any) -> None:
        self._silent.discard(connection)
        connection.terminate()

    async def close(self) -> None:
        self._closed = True
        for connection in list(self._silent):
            self._end(connection)
        while self._free:
            with suppress(Exception):  # it is discarded either way
                await self._free.pop().close(timeout=2)
