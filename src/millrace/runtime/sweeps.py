"""Sweeps of a store that has no server, by whoever works on it: a round now and then, never for long at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millrace.domain.request import WorkerRecord
from millrace.runtime.polling import Chance, spread
from millrace.store.protocol import Store, Sweeping
from millrace.store.swept import Swept

log = logging.getLogger("millrace.monitor")

ROUND = 5.0  # seconds that one sweep may take; the next goes on from there


async def sweep_for_a_while(store: Sweeping, seconds: float = ROUND) -> Swept:
    """Piece by piece until the round is over, or the time is."""
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    swept = await store.sweep()
    while swept.more and clock() < until:
        await asyncio.sleep(0)
        swept = swept.plus(await store.sweep())
    if swept.repairs:
        log.warning("swept %s", ", ".join(f"{name} {number}" for name, number in swept.repairs.items()))
    return swept


class StaleWorkers:
    """Workers that stopped beating, each warned about once, and again only after it has come back."""

    def __init__(self, threshold: float) -> None:
        self._threshold = round(threshold * 1000)
        self._known: set[str] = set()

    async def look(self, store: Store) -> list[WorkerRecord]:
        """All that are silent for too long."""
        now = await store.now()
        silent = [record for record in await store.workers() if now - record.last_beat > self._threshold]
        for record in silent:
            if record.info.id not in self._known:
                log.warning(
                    "worker %s has been silent for %.0f s; what it ran is taken over when its leases end",
                    record.info.id,
                    (now - record.last_beat) / 1000,
                )
        self._known = {record.info.id for record in silent}
        return silent


class Sweeps:
    """Beside a worker's loop: recovery never delays dispatch."""

    def __init__(
        self, store: Store, *, interval: float, threshold: float, chance: Chance, failed: Callable[[Exception], None]
    ) -> None:
        self._store = store
        self._interval = interval
        self._stale = StaleWorkers(threshold)
        self._chance = chance
        self._failed = failed
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._interval > 0 and isinstance(self._store, Sweeping):
            self._task = asyncio.create_task(self._go_on(self._store))

    async def stop(self) -> None:
        """At once: a sweep that is cut off is no worse than any other crash, and the next one knows what to do."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _go_on(self, store: Sweeping) -> None:
        await asyncio.sleep(self._interval * self._chance())  # many workers that start together do not sweep together
        while True:
            try:
                await sweep_for_a_while(store)
                await self._stale.look(self._store)
            except Exception as error:  # the store may be away for a while
                self._failed(error)
            await asyncio.sleep(spread(self._interval, self._chance))
