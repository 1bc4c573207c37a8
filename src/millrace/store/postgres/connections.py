"""Connections to one server, for one event loop: few, opened when needed, thrown away when anything was wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from millrace.store.postgres.address import Address


class Connections:
    def __init__(self, address: Address, most: int = 8) -> None:
        self._address = address
        self._free: list[Any] = []
        self._room = asyncio.Semaphore(most)
        self._closed = False

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Any]:
        """A connection for one step; it comes back only if the step left it between transactions."""
        async with self._room:
            connection = await self._take()
            try:
                yield connection
            except BaseException:
                if connection.is_closed() or connection.is_in_transaction():
                    connection.terminate()
                raise
            finally:
                if self._closed or connection.is_closed():
                    connection.terminate()
                else:
                    self._free.append(connection)

    async def _take(self) -> Any:
        while self._free:
            connection = self._free.pop()
            if not connection.is_closed():
                return connection
        return await self.open()

    async def open(self) -> Any:
        """A connection of one's own, to be closed by who asked for it."""
        return await asyncpg.connect(**self._address.arguments())

    async def close(self) -> None:
        self._closed = True
        while self._free:
            with suppress(Exception):  # it goes either way
                await self._free.pop().close(timeout=2)

    def abandon(self) -> None:
        """In a forked child: they are the parent's, and closing them here would end its sessions."""
        self._free = []
