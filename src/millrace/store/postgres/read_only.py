"""The PostgreSQL store with read access: every session is read-only, and the role needs only SELECT.

Events get their numbers in the feed after their commit, from processes that may write: from workers in each round of
upkeep, and from readers of the feed. A reader with read access cannot number events, so it computes the numbers that
they will get. This is possible for an event if no other event can come before it any more. Events are numbered in the
order of their places, and a transaction that has taken a place holds a lock until its end. So the reader looks at the
last place, and then at the locks. If there is no lock, all events up to this place are committed and visible.

If transactions hold locks all the time, or the server is a standby, the reader shows the events that have numbers, and
those that a reader has shown before, which it knows from its own reads and from the cursors that it gets. The others
are shown later, when they have been numbered. `history` needs no numbers and returns all events of a job.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec

from millrace.domain import feed
from millrace.domain.ledger import Ledger
from millrace.domain.request import EventPage
from millrace.store.clock import Clock
from millrace.store.postgres.address import Address
from millrace.store.postgres.migrate import require_version
from millrace.store.postgres.session import Question
from millrace.store.postgres.store import PostgresStore, tables_of
from millrace.store.read_access import ReadAccess

T = TypeVar("T")
_LOOKS = 10  # how often the locks are looked at before the events without numbers are left out
_PAUSE = 0.01  # seconds between two looks; most transactions are shorter


class ReadOnlyPostgresStore(ReadAccess, PostgresStore):
    def __init__(self, address: Address, *, clock: Clock | None = None) -> None:
        super().__init__(msgspec.structs.replace(address, reads_only=True), clock=clock)
        self._settled = -1  # the last known result of `_settled_place`

    async def _prepare(self, connection: Any) -> None:
        await require_version(connection, self.address.schema)

    async def events(self, cursor: str | None, limit: int) -> EventPage:
        return await self._read_feed(lambda ledger, _: feed.events(ledger.tables, cursor, limit), cursor)

    async def _read_feed(self, question: Question[T], *cursors: str | None, numbered: bool = False) -> T:
        settled = await self._settled_place()
        shown = max((feed.parse(cursor).witness for cursor in cursors if cursor not in (None, feed.END)), default=0)

        def look(ledger: Ledger, now: int) -> T:
            tables_of(ledger).events.show_unnumbered(settled, shown)
            return question(ledger, now)

        return await self._read(look)

    async def _settled_place(self) -> int:
        """Return a place up to which all events are committed: the last one, or, if that is not known in time, the one
        that was known before.
        """
        for _ in range(_LOOKS):
            [(place, may_come)] = await self.session().call("settled_place")
            if place is None:
                break
            if not may_come:
                self._settled = max(self._settled, place)
                break
            await asyncio.sleep(_PAUSE)
        return self._settled
