"""Connections to one server, for one event loop: few, opened when needed, thrown away when anything was wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

from millrace.store.postgres.address import Address
from millrace.store.postgres.desk import Desks
from millrace.store.postgres.line import FORGET_PLANS, Plans, open_line

_LAST_WORD = 2.0  # seconds


class Connections:
    """For statements on the event loop. `desks` are those of steps, which run in threads; `room` is for both."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._most = max(2, address.connections)  # a step and a statement need one each
        self._free: list[Any] = []
        self._silent: set[Any] = set()
        self._plans: WeakKeyDictionary[Any, Plans] = WeakKeyDictionary()
        self._lines = 0
        self._closed = False
        self.room = asyncio.Semaphore(address.connections)
        self.desks = Desks(address)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Any]:
        """A connection for one statement; it comes back only if that left it between transactions."""
        async with self.room:
            connection = await self._take()
            try:
                if self._plans.setdefault(connection, Plans()).are_old():
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
                if self._closed or connection.is_closed() or connection in self._silent:
                    self._lines -= 1
                    if connection not in self._silent:
                        connection.terminate()
                else:
                    self._free.append(connection)

    async def _take(self) -> Any:
        while self._free:
            connection = self._free.pop()
            if not connection.is_closed():
                return connection
            self._lines -= 1
        self._lines += 1
        try:
            if self._lines + self.desks.lines > self._most:
                await asyncio.to_thread(self.desks.end_idle)
            return await self.open()
        except BaseException:
            self._lines -= 1
            raise

    async def open(self) -> Any:
        """A connection of one's own, to be closed by who asked for it."""
        return await open_line(self._address.arguments())

    def make_room(self) -> None:
        """One more is being opened for a step: idle ones make way, if there are too many."""
        while self._free and self._lines + self.desks.lines > self._most:
            self._free.pop().terminate()
            self._lines -= 1

    def _leave(self, connection: Any) -> None:
        """A server that did not answer in time may do so later, to the wrong question: this line is not used again.

        The driver asks it to give up what it is at; that has a moment to get through.
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
            with suppress(Exception):  # it goes either way
                await self._free.pop().close(timeout=2)
