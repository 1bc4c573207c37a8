"""Waiting: written down in the same step that looks whether there is anything to wait for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from millrace.domain.errors import StoreError
from millrace.store.redis.listen import Listener
from millrace.store.redis.wire import Wire

_GRACE = 5_000  # milliseconds beyond its time for which a sleeper is still believed in
_WATCHED = 3_600_000  # milliseconds for which a watch is kept that nobody renews or ends


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


async def _within(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


class _Watch:
    """Told from the moment it exists."""

    def __init__(self, told: asyncio.Event) -> None:
        self._told = told

    async def wait(self, timeout: float) -> None:
        await _within(self._told, timeout)
        self._told.clear()


@asynccontextmanager
async def watching(wire: Wire, listener: Listener, job_id: str) -> AsyncIterator[_Watch]:
    await listener.ready()
    word = "e" + job_id
    told = listener.expect(word)
    try:
        await wire.ask("watch", [job_id, listener.name, _WATCHED, True])
        yield _Watch(told)
    finally:
        if listener.forget(word, told):  # not waited for: whoever has an answer goes on with it
            listener.in_passing(wire.ask("watch", [job_id, listener.name, _WATCHED, False]))
