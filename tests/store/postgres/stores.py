"""The store as the shared sentences use it: with a transaction of the caller's in hand, and connections that are kept.

A new connection is a new server process, which reads every table's description and makes every plan again. Step
connections are therefore passed on from one store to the next. Connections of an event loop are passed on where many
stores are opened one after the other on one loop (`kept_open`).
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
from millrace.store.postgres.connections import Age, Connections
from millrace.store.postgres.session import Session
from millrace.store.postgres.step_connection import StepConnection, StepConnections

_kept: dict[asyncio.AbstractEventLoop, list[Any]] = {}
_step_connections: dict[tuple[int, str, str], list[StepConnection]] = {}


class KeptStepConnections(StepConnections):
    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._kept = _step_connections.setdefault((os.getpid(), address.dsn, address.pooler), [])
        self._free, self._kept[:] = list(self._kept), []
        self.total = len(self._free)

    def close(self) -> None:
        self._closed = True
        while self._free:
            self._kept.append(self._free.pop())


class KeptConnections(Connections):
    def __init__(self, address: Address, kept: list[Any] | None) -> None:
        super().__init__(address, KeptStepConnections(address))
        self._kept = kept
        if kept is not None:
            # One call at a time: with more, connections of the loop and of steps would close each other to make room.
            self.room = asyncio.Semaphore(1)
            self._free, kept[:] = [connection for connection in kept if not connection.is_closed()], []
            self._total = len(self._free)
            self._ages.update((connection, Age(self.generation)) for connection in self._free)

    async def close(self) -> None:
        if self._kept is not None:
            self._kept += self._free
            self._free = []
        await super().close()


class PostgresForTests(PostgresStore):
    def transaction(self) -> Any:
        connection = psycopg.connect(self.address.dsn)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # whatever the database has by default
        return connection

    def for_loop(self) -> PostgresForTests:
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
def _close_step_connections() -> None:
    for (owner, _, _), step_connections in _step_connections.items():
        for connection in step_connections if owner == os.getpid() else ():
            connection.end()
