"""The crew: the parts of one running worker, and the order in which they start and end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from millrace.domain.request import Receipt
from millrace.runtime.dispatcher import Dispatcher
from millrace.runtime.heartbeat import Pulse
from millrace.runtime.hold import Abort, Hold, Holds
from millrace.runtime.polling import Backoff
from millrace.runtime.reaper import Reaper
from millrace.runtime.run import Run
from millrace.runtime.settler import Settlement, Settler
from millrace.runtime.slots import Slots
from millrace.runtime.staff import children_for, gatherers_for, ways_for
from millrace.runtime.sweeps import Sweeps
from millrace.runtime.tally import Stats, Tally
from millrace.store.protocol import Store, Sweeping
from millrace.store.swept import Monitoring

if TYPE_CHECKING:
    from millrace.runtime.process.children import Children
    from millrace.runtime.schedule import Scheduler
    from millrace.runtime.worker import Worker

LEAVE_WAIT = 2.0


class Crew:
    def __init__(self, worker: Worker, tally: Tally, store: Store) -> None:
        tasks, queues, chance = worker.tasks, worker.queues, worker.chance
        self._id = worker.id
        self._stop = worker.asked_to_stop
        self._store = store
        self._tally = tally
        self._loop = asyncio.get_running_loop()
        self.holds: Holds = {}
        self.settler = Settler(store, self.holds, self._settled, tally.error, chance)
        self.slots = Slots(worker.slots, worker.threads, worker.grace, f"millrace {worker.id}")
        self.pulse = Pulse(
            self.holds,
            worker.info,
            self._abort_soon,
            self._error_soon,
            lease=worker.shortest_lease / 1000,
            interval=worker.beat_interval,
            chance=chance,
        )
        self.heartbeat = worker.heartbeat(self.pulse, store)
        self.reaper = Reaper(
            store,
            worker.id,
            queues,
            tasks,
            self.holds,
            self.settler,
            interval=worker.reap_interval,
            maintain_interval=worker.maintain_interval,
            chance=chance,
            reaped=tally.reaped,
            failed=tally.error,
        )
        wishes = store.monitoring if isinstance(store, Sweeping) else Monitoring(sweep_interval=0)
        self._monitors = wishes.by_workers if worker.monitor is None else worker.monitor
        self.sweeps = Sweeps(
            store,
            interval=wishes.sweep_interval if worker.sweep_interval is None else worker.sweep_interval,
            threshold=wishes.worker_health_threshold,
            chance=chance,
            failed=tally.error,
        )
        self.dispatcher = Dispatcher(
            store,
            worker.id,
            queues,
            tasks,
            self.slots,
            self.settler,
            self.holds,
            tally,
            poll=Backoff(worker.poll_min, worker.poll_max, chance),
            lease=worker.lease,
            unknown=worker.unknown_task,
            chance=chance,
            max_jobs=worker.max_jobs,
            idle=self.reaper.poke,
            leased=self._leased,
        )
        self.slots.ended = self.dispatcher.ended
        self.children = children_for(worker, self.slots)
        self.slots.gatherers = gatherers_for(worker, self.slots, self.children)
        self.slots.ways = ways_for(worker, self.slots, self.children)
        self.scheduler: Scheduler | None = None
        if worker.scheduler and worker.app.plans:
            from millrace.runtime.schedule import Scheduler

            self.scheduler = Scheduler(worker.app.plans, worker.app.connected, failed=tally.error, chance=chance)

    async def start(self) -> None:
        if self.children is not None:
            await self._warm_up(self.children)
        await self.heartbeat.start()
        if self._monitors:
            self.reaper.start()
            self.sweeps.start()
        if self.scheduler is not None:
            self.scheduler.start()

    async def _warm_up(self, children: Children) -> None:
        try:
            await children.warm_up(self._stop)
        except BaseException:
            await children.close()
            raise

    async def rest_of_claiming(self, timeout: float) -> None:
        """Nothing more is taken, and what was on its way is given back or settled."""
        scheduling = None if self.scheduler is None else asyncio.create_task(self.scheduler.stop(timeout))
        await self.sweeps.stop()
        await self.dispatcher.last_claim(timeout)
        await self.reaper.stop(timeout)
        if scheduling is not None:
            await scheduling

    async def finish(self, timeout: float) -> None:
        await self.settler.flush(timeout)
        await self.settler.close()
        self.slots.close()
        if self.children is not None:
            await self.children.close()
        await self.heartbeat.stop()
        with suppress(Exception):  # its record ends by itself, a little later
            async with asyncio.timeout(LEAVE_WAIT):
                await self._store.leave(self._id)

    def count(self, stats: Stats) -> None:
        stats.running = len(self.slots.running)
        stats.unsettled = self.settler.pending
        stats.abandoned = self.slots.abandoned
        stats.zombies = self.slots.zombies
        stats.children = 0 if self.children is None else self.children.count

    def _settled(self, batch: Sequence[Settlement], receipts: Sequence[Receipt]) -> None:
        self._tally.settled(batch, receipts)
        self.dispatcher.settled(batch)

    def _leased(self, length: float) -> None:
        if self.pulse.too_slow_for(length):
            self.heartbeat.hurry()

    def _abort_soon(self, hold: Hold, why: Abort) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing runs there any more
            self._loop.call_soon_threadsafe(self._abort, hold, why)

    def _abort(self, hold: Hold, why: Abort) -> None:
        if isinstance(hold, Run):
            self.slots.abort(hold, why)

    def _error_soon(self, error: Exception) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tally.error, error)
