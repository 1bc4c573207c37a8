"""Connections to one server, for one event loop: few, opened when needed, thrown away when anything was wrong."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from millrace.store.postgres.address import Address

_LAST_WORD = 2.0  # seconds
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


def _keep_alive(connection: Any) -> None:
    """Have the system notice a server that is gone without a word, also while nothing is asked of it."""
    transport = getattr(connection, "_transport", None)  # the driver has no word for it
    line = None if transport is None else transport.get_extra_info("socket")
    if line is None or line.family not in (socket.AF_INET, socket.AF_INET6):
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):  # not everywhere
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Connections:
    def __init__(self, address: Address, most: int = 8) -> None:
        self._address = address
        self._free: list[Any] = []
        self._silent: set[Any] = set()
        self._room = asyncio.Semaphore(most)
        self._closed = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Any]:
        """A connection for one step; it comes back only if the step left it between transactions."""
        async with self._room:
            connection = await self._take()
            try:
                yield connection
            except TimeoutError:
                self._leave(connection)
                raise
            except BaseException:
                if connection.is_closed() or connection.is_in_transaction():
                    connection.terminate()
                raise
            finally:
                if self._closed or connection.is_closed():
                    connection.terminate()
                elif connection not in self._silent:
                    self._free.append(connection)

    def _leave(self, connection: Any) -> None:
        """A server that did not answer in time may do so later, to the wrong question: this line is not used again.

        The driver asks it to give up what it is at; that has a moment to get through.
        """
        self._silent.add(connection)
        asyncio.get_running_loop().call_later(_LAST_WORD, self._end, connection)

    def _end(self, connection: Any) -> None:
        self._silent.discard(connection)
        connection.terminate()

    async def _take(self) -> Any:
        while self._free:
            connection = self._free.pop()
            if not connection.is_closed():
                return connection
        return await self.open()

    async def open(self) -> Any:
        """A connection of one's own, to be closed by who asked for it."""
        connection = await asyncpg.connect(**self._address.arguments())
        _keep_alive(connection)
        return connection

    async def close(self) -> None:
        self._closed = True
        for connection in list(self._silent):
            self._end(connection)
        while self._free:
            with suppress(Exception):  # it goes either way
                await self._free.pop().close(timeout=2)

    def abandon(self) -> None:
        """In a forked child: they are the parent's, and closing them here would end its sessions."""
        self._free = []
