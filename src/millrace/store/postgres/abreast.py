"""Two chunks of jobs abreast: the next one is written while the one before is being committed.

A server's process works on one core, and waits for the disk when it commits. So chunks of one call go over two
connections in turn. Each draws its instant and its seqs before the next one may begin, and is committed after the one
before: order and "what came before is in" are as if they had been written one after the other.

Whatever does not go smoothly is rolled back and enqueued once more, in its turn, which is safe to repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from millrace.domain.errors import QueueError
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued
from millrace.store.postgres import plain
from millrace.store.postgres.trouble import code_of, is_cut

if TYPE_CHECKING:
    from millrace.store.postgres.store import PostgresStore

_BEGIN = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '15s'"
# Seconds for the one before. If it takes longer it may be waiting for what is locked here, so this one makes way.
_PATIENCE = 0.5

Writing = asyncio.Future[list[Enqueued]]


class Place:
    """One chunk. `found` is done once it has its instant and seqs, or will be written after the one before."""

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
                self._before.result()  # raises what that raised
            return await self._store.enqueue(self._specs)
        self._store.announce(plain.opened(self._specs), (), ())
        return plain.enqueued(self._specs, seqs)

    async def _ahead(self) -> Sequence[int] | None:
        """The seqs; None when nothing was written, or nobody knows."""
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
            written = await connection.fetchval(session.sql["enqueue_plain"], now, *arguments, seqs)
            if written is not None and await self._is_in():
                await connection.execute("COMMIT")
                return seqs  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            raise  # the connection goes, and with it what was not committed
        except BaseException:
            with suppress(Exception):
                await connection.execute("ROLLBACK")
            raise
        await connection.execute("ROLLBACK")
        return None

    async def _is_in(self) -> bool:
        """Is the one before committed?"""
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
