"""A store that counts the statements which its own steps send, and no other store's in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millrace.store.clock import Clock
from millrace.store.postgres import PostgresStore
from millrace.store.postgres.step_connection import StepConnection


class Counted:
    """A store, and how many statements its steps have sent."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.sent = 0

    async def of(self, call: Any) -> tuple[Any, int]:
        before = self.sent
        answer = await call
        return answer, self.sent - before


@asynccontextmanager
async def counted_store(
    url: str, monkeypatch: pytest.MonkeyPatch, clock: Clock | None = None
) -> AsyncIterator[Counted]:
    found = Counted(PostgresStore(url, clock=clock))
    await found.store.connect()
    connections = found.store.session().connections.step_connections
    mine: set[StepConnection] = set()
    run, rows = connections.run, StepConnection.rows

    def running(begin: str, work: Callable[[StepConnection], Any], make_room: Callable[[], None]) -> Any:
        def counted_work(connection: StepConnection) -> Any:
            mine.add(connection)
            return work(connection)

        return run(begin, counted_work, make_room)

    def counting(self: StepConnection, sql: str, args: Sequence[Any]) -> Any:
        found.sent += self in mine
        return rows(self, sql, args)

    monkeypatch.setattr(connections, "run", running)
    monkeypatch.setattr(StepConnection, "rows", counting)
    try:
        yield found
    finally:
        await found.store.close()
