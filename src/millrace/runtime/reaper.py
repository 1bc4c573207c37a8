"""The reaper: takes over jobs whose lease ran out, and lets the store do its upkeep.

Beside the worker's loop, not in it: recovery never delays dispatch (BL-06). It goes on while it finds something,
bounded by time, so ten thousand lost jobs are back in seconds (BL-04). It takes every task of its queues, known
or not: the retry policy travels with the job, so a job whose task nobody here knows does not stay running for
ever (BL-05).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping

from millrace.domain.job import Job
from millrace.domain.request import Reclaim
from millrace.runtime.hold import Hold, Holds
from millrace.runtime.host import Runnable
from millrace.runtime.lost import change_after_loss
from millrace.runtime.polling import Chance, spread
from millrace.runtime.settler import BATCH, Settlement, Settler
from millrace.store.protocol import Store

log = logging.getLogger("millrace.worker")

LIMIT = 500
LEASE = 30_000
ROUND = 5.0  # seconds that one round of reaping, or of upkeep, may take
LEAST_PAUSE = 1.0  # between rounds that an idle worker asks for


class Reaper:
    def __init__(
        self,
        store: Store,
        worker: str,
        queues: tuple[str, ...],
        tasks: Mapping[str, Runnable],
        holds: Holds,
        settler: Settler,
        *,
        interval: float,
        maintain_interval: float,
        chance: Chance,
        reaped: Callable[[Job], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._queues = queues
        self._tasks = tasks
        self._holds = holds
        self._settler = settler
        self._interval = interval
        self._maintain_interval = maintain_interval
        self._chance = chance
        self._reaped = reaped
        self._failed = failed
        self._last_round = -math.inf
        self._stopping = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._go_on())

    def poke(self) -> None:
        """A slot is idle: reap now, unless that was done a moment ago."""
        if asyncio.get_running_loop().time() - self._last_round >= min(LEAST_PAUSE, self._interval):
            self._wake.set()

    async def stop(self, timeout: float) -> None:
        """Let the step under way end: what it takes over would otherwise wait for its new lease to run out."""
        if self._task is None:
            return
        self._stopping = True
        self._wake.set()
        await asyncio.wait([self._task], timeout=timeout)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _go_on(self) -> None:
        clock = asyncio.get_running_loop().time
        upkeep_at = clock() + self._maintain_interval * self._chance()
        while not self._stopping:
            self._wake.clear()
            timer = min(spread(self._interval, self._chance), max(0.0, upkeep_at - clock()))
            try:
                async with asyncio.timeout(timer):
                    await self._wake.wait()
            except TimeoutError:
                pass
            try:
                if clock() >= upkeep_at:
                    upkeep_at = clock() + spread(self._maintain_interval, self._chance)
                    await self.maintain()
                await self.reap()
            except Exception as error:  # the store may be away for a while; the next round asks again
                self._failed(error)

    async def reap(self) -> int:
        """One round; answers how many jobs were taken over."""
        clock = asyncio.get_running_loop().time
        self._last_round = clock()
        count = 0
        while not self._stopping:
            sent = clock()
            request = Reclaim(self._worker, LIMIT, LEASE, self._queues, None, frozenset(self._holds))
            jobs = await self._store.reclaim(request)
            for job in jobs:
                self._settle(job, sent, clock())
            count += len(jobs)
            if len(jobs) < LIMIT or clock() - self._last_round > ROUND:
                break
            await self._settler.room(BATCH)
        return count

    def _settle(self, job: Job, sent: float, now: float) -> None:
        change = change_after_loss(job, self._tasks.get(job.task), self._chance())
        hold = Hold(job, LEASE / 1000, sent, math.inf)
        self._holds[hold.lease.id] = hold
        self._settler.submit(Settlement(hold, change, now))
        self._reaped(job)

    async def maintain(self) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        more = True
        while more and not self._stopping and clock() - begun < ROUND:
            more = (await self._store.maintain()).more
            await asyncio.sleep(0)  # a store in memory never waits; jobs want to run meanwhile
