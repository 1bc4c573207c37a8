"""The monitor: recovers jobs and repairs a store, without a worker.

It reclaims jobs whose lease has expired and settles them by their retry policy, runs the store's upkeep, sweeps a store
without a server, and reports workers whose heartbeat has stopped. Several monitors may run at the same time. No monitor
is needed if the workers do this work themselves, by the reaper (`leases.py`) and `PeriodicSweep`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Mapping

import msgspec

from millrace.app.host import Runnable
from millrace.domain.change import Change
from millrace.domain.job import Job
from millrace.domain.request import Maintained, Receipt, Reclaim, WorkerRecord
from millrace.domain.rules.upkeep import add_up
from millrace.store.protocol import Store, Sweeping
from millrace.store.sweep_report import Swept
from millrace.worker.backoff import Chance, spread
from millrace.worker.leases import RECLAIM_LEASE, RECLAIM_LIMIT, lost
from millrace.worker.settler import decide_change

log = logging.getLogger("millrace.monitor")

ROUND = 5.0  # seconds that one sweep, or one part of a check, may take; the next one continues


async def sweep_for_a_while(store: Sweeping, seconds: float = ROUND) -> Swept:
    """Sweep in small parts until the sweep is complete or `seconds` have passed. Return the sum of the results."""
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
    """Finds workers whose heartbeat has stopped. A worker is logged when its heartbeat stops, not at every check."""

    def __init__(self, threshold: float) -> None:
        self._threshold = round(threshold * 1000)
        self._known: set[str] = set()

    async def look(self, store: Store) -> list[WorkerRecord]:
        """Return all workers whose last heartbeat is older than the threshold.

        Log those that the last call did not find.
        """
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


class PeriodicSweep:
    """Periodically sweeps a store and looks for stale workers. It runs concurrently and does not delay claims."""

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
            self._task = asyncio.create_task(self._run(self._store))

    async def stop(self) -> None:
        """Stop at once, even during a sweep: an interrupted sweep does no harm, and the next one continues the work."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, store: Sweeping) -> None:
        await asyncio.sleep(self._interval * self._chance())  # workers that start together don't sweep together
        while True:
            try:
                await sweep_for_a_while(store)
                await self._stale.look(self._store)
            except Exception as error:  # the store may be unavailable
                self._failed(error)
            await asyncio.sleep(spread(self._interval, self._chance))


class MonitorReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one check of the monitor did.

    `swept` is None if no sweep was due. `failed` is the store's error, or None.
    """

    recovered: int = 0  # jobs whose lease had expired
    maintained: Maintained = Maintained()
    swept: Swept | None = None
    stale_workers: tuple[str, ...] = ()
    failed: str | None = None


class Monitor:
    def __init__(
        self,
        store: Store,
        *,
        tasks: Mapping[str, Runnable] | None = None,
        worker_health_threshold: float = 60.0,
        sweep_interval: float = 300.0,
        chance: Chance = random.random,
    ) -> None:
        self._store = store
        self._tasks = tasks or {}
        self._stale = StaleWorkers(worker_health_threshold)
        self._sweep_interval = sweep_interval
        self._sweep_at = 0.0  # the first check sweeps
        self._chance = chance
        self._name = f"monitor-{socket.gethostname()[:64]}-{os.getpid()}-{int(chance() * 16**6):06x}"

    async def check(self) -> MonitorReport:
        """Make all checks once and return a report. If the store fails, the error is in the report."""
        try:
            recovered = await self._recover()
            maintained = await self._maintain()
            swept = await self._sweep()
            stale = await self._stale.look(self._store)
        except Exception as error:
            log.warning("a check failed and will be repeated: %s: %s", type(error).__name__, error)
            return MonitorReport(failed=f"{type(error).__name__}: {error}")
        return MonitorReport(recovered, maintained, swept, tuple(record.info.id for record in stale))

    async def _recover(self) -> int:
        clock = asyncio.get_running_loop().time
        until = clock() + ROUND
        recovered = 0
        while True:
            jobs = await self._store.reclaim(Reclaim(self._name, RECLAIM_LIMIT, RECLAIM_LEASE))
            receipts = await self._store.settle([(job.lease, self._change(job)) for job in jobs])
            recovered += sum(receipt is not Receipt.LOST for receipt in receipts)
            if len(jobs) < RECLAIM_LIMIT or clock() >= until:
                return recovered

    def _change(self, job: Job) -> Change:
        return decide_change(job, self._tasks.get(job.task), lost(job), self._chance())

    async def _maintain(self) -> Maintained:
        clock = asyncio.get_running_loop().time
        until = clock() + ROUND
        done = await self._store.maintain()
        while done.more and clock() < until:
            await asyncio.sleep(0)
            later = await self._store.maintain()
            done = msgspec.structs.replace(add_up(done, later), more=later.more)
        return done

    async def _sweep(self) -> Swept | None:
        now = asyncio.get_running_loop().time()
        if not isinstance(self._store, Sweeping) or self._sweep_interval <= 0 or now < self._sweep_at:
            return None
        swept = await sweep_for_a_while(self._store)
        self._sweep_at = now + spread(self._sweep_interval, self._chance)
        return swept


async def run_monitor(
    store: Store,
    *,
    check_interval: float = 30.0,
    worker_health_threshold: float = 60.0,
    sweep_interval: float = 300.0,
    on_report: Callable[[MonitorReport], None] | None = None,
    tasks: Mapping[str, Runnable] | None = None,
    chance: Chance = random.random,
) -> None:
    """Make the checks of a `Monitor` periodically until cancelled.

    Times are in seconds. sweep_interval=0 means that the store is not swept. `tasks` are the tasks of an app; they are
    needed only if one of them has its own backoff function.
    """
    monitor = Monitor(
        store,
        tasks=tasks,
        worker_health_threshold=worker_health_threshold,
        sweep_interval=sweep_interval,
        chance=chance,
    )
    while True:
        report = await monitor.check()
        if on_report is not None:
            on_report(report)
        await asyncio.sleep(spread(check_interval, chance))
