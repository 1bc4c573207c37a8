"""The components of a running worker: how they are connected, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from millrace.app.handler.verdict import Abort
from millrace.domain.request import WorkerInfo
from millrace.store.protocol import Store, Sweeping
from millrace.store.sweep_report import Monitoring
from millrace.worker.backoff import Backoff
from millrace.worker.dispatcher import Dispatcher, WakeUp
from millrace.worker.executor import Executor
from millrace.worker.handover import Handover
from millrace.worker.leases import LeaseKeeper, Reaper
from millrace.worker.monitor import PeriodicSweep
from millrace.worker.reporter import Reporter, Stats
from millrace.worker.run import HeldJob, HeldJobs, Run
from millrace.worker.settler import Settler

if TYPE_CHECKING:
    from millrace.worker.scheduler import Scheduler
    from millrace.worker.scope import WorkerScope
    from millrace.worker.worker import Worker

LEAVE_TIMEOUT = 2.0
CANCEL_WAIT = 60.0  # seconds that one wait for cancel notifications lasts
FIRST_CANCEL_WAIT = 0.1  # the first one is short: when it returns, the store's connection for notifications is open
REGISTERED_AFTER = 0.5  # seconds after which the store has registered a wait on an open connection


class Components:
    """The components of a running worker. Each gets the components that it uses, so none refers to the worker."""

    def __init__(
        self, worker: Worker, reporter: Reporter, store: Store, scope: WorkerScope, on_empty: Callable[[], None]
    ) -> None:
        tasks, chance, defaults = worker.tasks, worker.chance, worker.defaults()
        self._id, self._slots, self._version = worker.id, worker.slots, worker.version
        self._queues, self._tasks = worker.queues, tuple(sorted(tasks))
        self._store = store
        self._reporter = reporter
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._cancel_listener: asyncio.Task[None] | None = None
        self.held: HeldJobs = {}
        wake_up = WakeUp()
        self.settler = Settler(store, self.held, reporter, wake_up, chance)
        self.executor = Executor(
            tasks,
            self.settler,
            wake_up,
            slots=worker.slots,
            threads=worker.threads,
            grace=worker.grace,
            name=f"millrace {worker.id}",
            middleware=(*worker.app.layers, *worker.layers),
            processes=worker.processes,
            max_jobs_per_child=worker.max_jobs_per_child,
            max_memory_per_child=worker.max_memory_per_child,
            on_empty=on_empty,
            handover=Handover(store, worker.app.serdes),
        )
        leases = LeaseKeeper(
            self.held,
            self.info,
            self._abort_soon,
            self._report_soon,
            lease=worker.shortest_lease / 1000,
            interval=worker.beat_interval,
            chance=chance,
        )
        self.heartbeat = worker.heartbeat(leases, store)
        self.reaper = Reaper(
            store,
            worker.id,
            tasks,
            self.held,
            self.settler,
            reporter,
            interval=worker.reap_interval,
            maintain_interval=worker.maintain_interval,
            defaults=defaults,
            chance=chance,
        )
        monitoring = store.monitoring if isinstance(store, Sweeping) else Monitoring(sweep_interval=0)
        self._monitors = monitoring.by_workers if worker.monitor is None else worker.monitor
        self.sweep = PeriodicSweep(
            store,
            interval=monitoring.sweep_interval if worker.sweep_interval is None else worker.sweep_interval,
            threshold=monitoring.worker_health_threshold,
            chance=chance,
            failed=reporter.error,
        )
        self.scheduler: Scheduler | None = None
        if worker.scheduler:
            from millrace.worker.scheduler import Scheduler

            self.scheduler = Scheduler(worker.app.plans, worker.app.connected, failed=reporter.error, chance=chance)
        self.dispatcher = Dispatcher(
            store,
            worker.id,
            self._queues,
            tasks,
            wake_up,
            self.executor,
            self.settler,
            self.held,
            leases,
            self.heartbeat,
            self.reaper,
            reporter,
            poll=Backoff(worker.poll_min, worker.poll_max, chance),
            lease=worker.lease,
            shortest_lease=worker.shortest_lease / 1000,
            scope=scope,
            defaults=defaults,
            unknown=worker.unknown_task,
            chance=chance,
            max_jobs=worker.max_jobs,
        )

    async def start(self, stop: asyncio.Event) -> None:
        children = self.executor.children
        if children is not None:
            try:
                await children.warm_up(stop)
            except BaseException:
                await children.close()
                raise
        await self.heartbeat.start()
        self._cancel_listener = asyncio.create_task(self._listen_for_cancels())
        if self._monitors:
            self.reaper.start()
            self.sweep.start()
        if self.scheduler is not None:
            self.scheduler.start()

    async def stop_claiming(self, timeout: float) -> None:
        """Stop the components that claim or enqueue jobs. Release or settle the jobs of a claim that is under way."""
        scheduling = None if self.scheduler is None else asyncio.create_task(self.scheduler.stop(timeout))
        await self.sweep.stop()
        await self.dispatcher.give_back_last_claim(timeout)
        await self.reaper.stop(timeout)
        if scheduling is not None:
            await scheduling

    async def close(self, timeout: float) -> None:
        """Settle the jobs whose runs have ended, and stop all components.

        The heartbeat stops last: it extends the leases until then, so no other worker reclaims an unsettled job.
        """
        await self.settler.flush(timeout)
        await self.settler.close()
        self.executor.close()
        if self.executor.children is not None:
            await self.executor.children.close()
        if self._cancel_listener is not None:
            self._cancel_listener.cancel()
            await asyncio.wait([self._cancel_listener], timeout=LEAVE_TIMEOUT)
        await self.heartbeat.stop()
        with suppress(Exception):  # the worker's record expires by itself, a little later
            async with asyncio.timeout(LEAVE_TIMEOUT):
                await self._store.beat(WorkerInfo(self._id), ttl=0)

    def count(self, stats: Stats) -> None:
        executor = self.executor
        stats.running = len(executor.in_slots)
        stats.unsettled = self.settler.pending
        stats.abandoned = executor.abandoned
        stats.zombies = executor.zombies
        stats.children = 0 if executor.children is None else executor.children.count

    async def _listen_for_cancels(self) -> None:
        """Wait for cancels of held jobs, and request a heartbeat for each. The receipts of the heartbeat show which job
        was cancelled.

        The store does not report a cancel that happens before it has registered the wait. Therefore each wait also
        requests one heartbeat, at a time when the wait should be registered.
        """
        backoff = Backoff(0.1, 5.0, self._chance)
        connected = False
        while True:
            started, notified = self._loop.time(), False
            timeout = CANCEL_WAIT if connected else FIRST_CANCEL_WAIT
            registered = self._loop.call_later(REGISTERED_AFTER, self._look_for_cancels)
            try:
                notified = await self._store.wait_for_cancel(self._id, timeout)
                connected = True
            except Exception:  # only a hint: the heartbeat reports what is wrong with the store
                connected = False
            finally:
                registered.cancel()
            if notified:
                backoff.reset()
                self._look_for_cancels()
            elif self._loop.time() - started < timeout / 2:
                await asyncio.sleep(backoff.next())

    def _look_for_cancels(self) -> None:
        if self.held:
            self.heartbeat.hurry()

    # ── called in the heartbeat's thread ──────────────────────────────────────────────────────

    def info(self) -> WorkerInfo:
        """Return the worker's record, which is written with each heartbeat."""
        stats = self._reporter.stats
        return WorkerInfo(
            self._id,
            self._queues,
            self._tasks,
            self._slots,
            tuple(run.job.id for run in self.executor.in_slots),
            stats.completed,
            stats.failed,
            self._version,
            socket.gethostname(),
            os.getpid(),
            self.executor.zombies,
        )

    def _abort_soon(self, held: HeldJob, why: Abort) -> None:
        if isinstance(held, Run):
            with suppress(RuntimeError):  # the loop is closed: nothing runs any more
                self._loop.call_soon_threadsafe(self.executor.abort, held, why)

    def _report_soon(self, error: Exception) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._reporter.error, error)
