"""Waiting: written down in the same step that looks whether there is anything to wait for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from millrace.domain.errors import StoreError
from millrace.domain.job import State
from millrace.store.protocol import Ending
from millrace.store.redis.listen import Listener, Word
from millrace.store.redis.record import job_in
from millrace.store.redis.wire import Wire

_GRACE = 5_000  # milliseconds beyond its time for which a sleeper is still believed in
WATCHED = 3_600_000  # milliseconds for which a watch is kept that nobody renews or ends


async def sleep(
    wire: Wire, listener: Listener, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float
) -> None:
    await listener.ready()
    places = list(dict.fromkeys(queues))
    name = listener.new_name()
    word = "w" + name
    heard = listener.expect(word)
    asleep = True  # as far as the server may know
    try:
        length = int(timeout * 1000) + _GRACE
        known = None if tasks is None else list(tasks)
        left = await wire.ask("sleep", [places, known, listener.name, name, length])
        asleep = left != 0
        if left >= 0:
            timeout = min(timeout, left / 1000)
        if timeout > 0:
            await _within(heard, timeout)
    except asyncio.CancelledError:
        heard.clear()  # whoever is cancelled claims nothing: a hint it has heard is somebody else's
        raise
    finally:
        listener.forget(word, heard)
        if asleep and not heard.is_set():
            with contextlib.suppress(StoreError):
                await asyncio.shield(wire.ask("wake_up", [places, name, False]))


async def _within(word: Word, seconds: float) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        async with asyncio.timeout(seconds):
            await word.wait()


class _Watch:
    """Told from the moment it exists: by whoever enqueues the job from here, who says so in the same step, or by the
    first wait, which looks whether there is anything to wait for."""

    def __init__(self, wire: Wire, listener: Listener, job_id: str, told: Word) -> None:
        self._wire = wire
        self._listener = listener
        self._id = job_id
        self._told = told

    async def wait(self, timeout: float) -> Ending | None:
        told = self._told
        if not told.is_set() and self._id not in self._listener.registered and not await self._register():
            return None
        await _within(told, timeout)
        news, told.news = told.news, None
        told.clear()
        if news is None:
            return None
        job = job_in(news)
        return Ending(job.generation, job.result) if job.state is State.COMPLETED else None

    async def _register(self) -> bool:
        """False when there is nothing to wait for, as far as one can know."""
        try:
            waits = await self._wire.ask("watch", [self._id, self._listener.name, WATCHED, True])
        except StoreError:  # whoever waits looks at the job next, and is told what is wrong
            return False
        self._listener.registered.add(self._id)
        return bool(waits)


@asynccontextmanager
async def watching(wire: Wire, listener: Listener, job_id: str) -> AsyncIterator[_Watch]:
    await listener.ready()
    word = "e" + job_id
    told = listener.expect(word)
    try:
        yield _Watch(wire, listener, job_id, told)
    finally:
        if listener.forget(word, told) and job_id in listener.registered:
            listener.registered.discard(job_id)  # not waited for: whoever has an answer goes on with it
            listener.in_passing(wire.ask("watch", [job_id, listener.name, WATCHED, False]))
