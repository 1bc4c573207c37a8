"""The store as the shared sentences use it: with a transaction of the caller's in hand, and connections that are kept.

A new connection is a new process of the server, which has to read every table's description and make every plan anew.
So one store's desks are the next one's. Connections of an event loop are handed on where many stores are opened one
after the other on one loop (`kept_open`).
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from millrace.store.postgres import PostgresStore
from millrace.store.postgres.address import Address
from millrace.store.postgres.connections import Connections
from millrace.store.postgres.desk import Desk, Desks
from millrace.store.postgres.session import Session

_kept: dict[asyncio.AbstractEventLoop, list[Any]] = {}
_desks: dict[tuple[int, str, str], list[Desk]] = {}


class KeptDesks(Desks):
    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._kept = _desks.setdefault((os.getpid(), address.dsn, address.pooler), [])
        self._free, self._kept[:] = list(self._kept), []
        self.lines = len(self._free)

    def close(self) -> None:
        self._closed = True
        while self._free:
            self._kept.append(self._free.pop())


class KeptConnections(Connections):
    def __init__(self, address: Address, kept: list[Any] | None) -> None:
        super().__init__(address)
        self.desks = KeptDesks(address)
        self._kept = kept
        if kept is not None:
            self._free, kept[:] = [connection for connection in kept if not connection.is_closed()], []
            self._lines = len(self._free)

    async def close(self) -> None:
        if self._kept is not None:
            self._kept += self._free
            self._free = []
        await super().close()


class PostgresForTests(PostgresStore):
    def transaction(self) -> Any:
        return psycopg.connect(self.address.dsn)

    def beside(self) -> PostgresForTests:
        return PostgresForTests(self.address, clock=self._clock)

    def _new_session(self) -> Session:
        session = super()._new_session()
        session.connections = KeptConnections(self.address, _kept.get(session.loop))
        return session


@contextmanager
def kept_open() -> Iterator[asyncio.Runner]:
    """An event loop on which stores hand their connections on."""
    with asyncio.Runner() as runner:
        kept = _kept.setdefault(runner.get_loop(), [])
        try:
            yield runner
        finally:
            runner.run(_close_all(kept))
            del _kept[runner.get_loop()]


async def _close_all(connections: list[Any]) -> None:
    for connection in connections:
        await connection.close()


@atexit.register
def _close_desks() -> None:
    for (owner, _, _), desks in _desks.items():
        for desk in desks if owner == os.getpid() else ():
            desk.end()
