"""Enqueues in chunks: each chunk is written while the previous chunk is being committed.

A server process uses one core, and waits for the disk during a commit. So the chunks of one call use two connections in
turn. A chunk gets its time and its seqs before the next chunk may begin, and is committed after the previous chunk. The
result is the same as if the chunks had been written one after the other.

After an error, a chunk is rolled back, and enqueued again once the previous chunk has ended. Enqueuing twice is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from millrace.domain.errors import QueueError
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued
from millrace.store.postgres import fast_path
from millrace.store.postgres.address import BEGIN
from millrace.store.postgres.errors import code_of, is_cut

if TYPE_CHECKING:
    from millrace.store.postgres.store import PostgresStore

_BEGIN = f"{BEGIN}; SET LOCAL idle_in_transaction_session_timeout = '15s'"
# Seconds to wait for the previous chunk. If that takes longer, it may wait for a lock of this one, which rolls back.
_PATIENCE = 0.5

Writing = asyncio.Future[list[Enqueued]]


class Place:
    """One chunk of an enqueue. The next chunk may begin once `found` is set.

    `found` is set when this chunk has its time and its seqs. It is also set when this chunk cannot be written while the
    previous one is being committed, and has to wait for it.
    """

    def __init__(self, store: PostgresStore, specs: Sequence[Spec], before: Writing | None) -> None:
        self._store = store
        self._specs = specs
        self._before = before
        self.found = asyncio.Event()

    async def write(self) -> list[Enqueued]:
        try:
            seqs = await self._ahead()
        finally:
            self.found.set()
        if seqs is None:
            if self._before is not None:
                await asyncio.wait([self._before])
                self._before.result()  # raises its error
            return await self._store.enqueue(self._specs)
        self._store.announce(fast_path.opened(self._specs), (), ())
        return fast_path.enqueued(self._specs, seqs)

    async def _ahead(self) -> Sequence[int] | None:
        """Write this chunk while the previous one is being committed, and return the seqs of its jobs.

        Return None if nothing was written, or if the outcome is unknown.
        """
        if any(spec.group is not None for spec in self._specs):
            return None  # the seqs of a group are drawn under the lock of its line
        arguments = await self._store.plain_arguments(self._specs)
        if arguments is None:
            return None
        try:
            async with self._store.session().connections.one() as connection:
                return await self._write_on(connection, arguments)
        except QueueError:
            raise
        except Exception as error:
            if not code_of(error) and not is_cut(error):
                raise
            return None

    async def _write_on(self, connection: Any, arguments: Sequence[Any]) -> Sequence[int] | None:
        session = self._store.session()
        await connection.execute(_BEGIN)
        try:
            now, seqs = await connection.fetchrow(session.sql["draw_seqs"], session.given(), len(self._specs))
            self.found.set()
            written = await connection.fetchval(session.sql["enqueue_plain"], now, *arguments, seqs, False)
            if written is not None and await self._is_in():
                await connection.execute("COMMIT")
                return seqs  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            raise  # the connection is closed, which rolls back
        except BaseException:
            with suppress(Exception):
                await connection.execute("ROLLBACK")
            raise
        await connection.execute("ROLLBACK")
        return None

    async def _is_in(self) -> bool:
        """Wait a short time for the previous chunk, and return whether it is committed."""
        before = self._before
        if before is None:
            return True
        await asyncio.wait([before], timeout=_PATIENCE)
        return before.done() and not before.cancelled() and before.exception() is None


async def enqueue_behind(store: PostgresStore, specs: Sequence[Spec], before: Writing | None) -> Writing:
    place = Place(store, specs, before)
    writing = asyncio.ensure_future(place.write())
    try:
        await place.found.wait()
    except asyncio.CancelledError:
        writing.cancel()
        await asyncio.wait([writing])
        raise
    return writing
