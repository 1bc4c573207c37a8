"""The monitor: recovery and repair for a whole store, without a worker (O-22).

Takes over expired leases of every task and settles them as their retry policies say, lets the store do its upkeep,
sweeps it if it wants that, and says which workers have gone silent. Several may run; none is needed where workers do
the same beside their jobs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Mapping

import msgspec

from millrace.domain.request import Maintained, Receipt, Reclaim
from millrace.domain.upkeep import add_up
from millrace.runtime.host import Runnable
from millrace.runtime.lost import change_after_loss
from millrace.runtime.polling import Chance, spread
from millrace.runtime.sweeps import StaleWorkers, sweep_for_a_while
from millrace.store.protocol import Store, Sweeping
from millrace.store.swept import Swept

log = logging.getLogger("millrace.monitor")

LIMIT = 500
LEASE = 30_000
ROUND = 5.0  # seconds that one part of a check may take


class MonitorReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one check came to. `swept` is None where none was due, `failed` what the store could not be asked."""

    recovered: int = 0  # jobs whose leases had run out
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
        self._sweep_at = 0.0  # at once: whoever starts a monitor has a reason
        self._chance = chance
        self._name = f"monitor-{socket.gethostname()[:64]}-{os.getpid()}-{int(chance() * 16**6):06x}"

    async def check(self) -> MonitorReport:
        """One look at everything; a store that is away for a while is said so, and asked again the next time."""
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
            jobs = await self._store.reclaim(Reclaim(self._name, LIMIT, LEASE))
            changes = [(job.lease, change_after_loss(job, self._tasks.get(job.task), self._chance())) for job in jobs]
            receipts = await self._store.settle(changes)
            recovered += sum(receipt is not Receipt.LOST for receipt in receipts)
            if len(jobs) < LIMIT or clock() >= until:
                return recovered

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
    """Check again and again until cancelled. Times are in seconds; sweep_interval=0 sweeps never.

    `tasks` are those an app knows: their own backoff is used for what is tried again.
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
