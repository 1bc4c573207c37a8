"""The store as the shared sentences use it: with a transaction of the caller's in hand, and connections that are kept.

A new connection is a new process of the server, which has to read every table's description and make every plan anew;
where many stores are opened one after the other on one event loop (`kept_open`), they hand their connections on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from millrace.store.postgres import PostgresStore
from millrace.store.postgres.address import Address
from millrace.store.postgres.connections import Connections
from millrace.store.postgres.session import Session

_kept: dict[asyncio.AbstractEventLoop, list[Any]] = {}


class KeptConnections(Connections):
    def __init__(self, address: Address, most: int, kept: list[Any]) -> None:
        super().__init__(address, most)
        self._free = [connection for connection in kept if not connection.is_closed()]
        kept.clear()
        self._kept = kept

    async def close(self) -> None:
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
        if session.loop in _kept:
            session.connections = KeptConnections(self.address, self.address.connections, _kept[session.loop])
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
