"""The PostgreSQL store with read access: every session is read-only, and the role needs only SELECT.

Events get their numbers in the feed after their commit, from processes that may write: from workers in each round of
upkeep, and from readers of the feed. A reader with read access cannot number events. It cannot compute the numbers
either, because an open transaction may still write an event that comes before the others. So it shows the feed up to
the last number; later events follow when they have one. `history` needs no numbers and returns all events of a job.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.domain import feed
from millrace.domain.request import EventPage
from millrace.store.clock import Clock
from millrace.store.postgres.address import Address
from millrace.store.postgres.migrate import require_version
from millrace.store.postgres.store import PostgresStore
from millrace.store.read_access import ReadAccess


class ReadOnlyPostgresStore(ReadAccess, PostgresStore):
    def __init__(self, address: Address, *, clock: Clock | None = None) -> None:
        super().__init__(msgspec.structs.replace(address, reads_only=True), clock=clock)

    async def _prepare(self, connection: Any) -> None:
        await require_version(connection, self.address.schema)

    async def _number(self) -> None:
        """Do nothing: numbering events writes."""

    async def events(self, cursor: str | None, limit: int) -> EventPage:
        return await self._read(lambda ledger, _: feed.events(ledger.tables, cursor, limit))
