"""The worker: claims jobs, runs them in slots, settles them, and stops without losing a job.

Each component of a worker does one thing: the dispatcher claims jobs and fills the slots, the executor runs handlers,
the settler writes how runs ended, the heartbeat extends leases, the reaper reclaims expired leases. `components.py`
connects them. Time comes from the running event loop and random numbers are a parameter, so a simulation can run a
worker for years of virtual time in a moment, with the same result each time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from msgspec import UNSET, UnsetType

from millrace.app import in_child
from millrace.app.duration import Duration
from millrace.app.format import plural
from millrace.app.handler.verdict import Abort
from millrace.app.host import Host, Middleware, Runnable, read_layers
from millrace.app.options import read_defaults
from millrace.app.telemetry.redaction import Redaction
from millrace.domain.errors import InvalidInput, LifespanFailed, UnknownTask
from millrace.domain.job import SECOND
from millrace.domain.retry import RetryPolicy
from millrace.domain.rules.check import check_name
from millrace.domain.rules.precedence import JobDefaults
from millrace.store.read_access import require_write_access
from millrace.worker.backoff import Chance
from millrace.worker.components import Components
from millrace.worker.dispatcher import Burst
from millrace.worker.dispatcher import UnknownTask as UnknownTaskRule
from millrace.worker.executor import KILL_WAIT
from millrace.worker.heartbeat import HeartbeatPort, ThreadHeartbeat
from millrace.worker.reporter import Reporter, Stats
from millrace.worker.scope import WorkerScope
from millrace.worker.signals import on_stop_signal

log = logging.getLogger("millrace.worker")

SHORT_GRACE = 0.05  # seconds: long enough for a cancelled coroutine to unwind
FLUSH_TIMEOUT = 5.0
LISTENERS_TIMEOUT = 2.0  # for async listeners to end, including those of `worker_stopped`


class Worker:
    """Runs jobs of an app's tasks. `run` can be called once. A process may have several workers.

    Times are in seconds.

    - `name` identifies the worker in the store. Live workers must have different names; the default is random.
    - `tasks`: the names of the tasks to run; by default all tasks of the app.
    - `lease`, `timeout`, `retry`, `max_attempts`, `keep_result`: defaults for jobs where neither the caller nor the
      task nor the queue sets them. They take precedence over the defaults of the app.
    - `monitor`: whether the worker also reclaims expired leases and sweeps the store. With monitor=False,
      `millrace monitor` must run. None means the store's default.
    - `sweep_interval`: the seconds between two sweeps of a store without a server; 0 means that it is not swept. None
      means the store's default.
    - `processes`: how many child processes run handlers with process=True. A child is replaced after
      `max_jobs_per_child` attempts, or when its memory has exceeded `max_memory_per_child` bytes.
    - `redact`: additional payload fields whose values are hidden in the log.
    - `burst`: stop when there is nothing to do. If `burst` is a function, it is called at that point; if it returns
      False, the worker continues.
    - `max_jobs`: stop after this number of jobs.
    """

    def __init__(
        self,
        app: Host,
        *,
        queues: Sequence[str] | None = None,
        tasks: Iterable[str] | None = None,
        slots: int = 10,
        name: str | None = None,
        lease: Duration | None = None,
        timeout: Duration | UnsetType | None = UNSET,
        retry: RetryPolicy | Sequence[Duration] | UnsetType = UNSET,
        max_attempts: int | UnsetType | None = UNSET,
        keep_result: Duration | UnsetType | None = UNSET,
        poll_min: float = 0.1,
        poll_max: float = 5.0,
        reap_interval: float = 5.0,
        maintain_interval: float = 60.0,
        sweep_interval: float | None = None,
        monitor: bool | None = None,
        beat_interval: float | None = None,
        shutdown_deadline: float = 25.0,
        grace: float = 3.0,
        threads: int | None = None,
        processes: int | None = None,
        max_jobs_per_child: int | None = None,
        max_memory_per_child: int | None = None,
        middleware: Iterable[Middleware] = (),
        version: str = "",
        redact: Iterable[str] = (),
        unknown_task: UnknownTaskRule = "leave",
        chance: Chance = random.random,
        heartbeat: HeartbeatPort = ThreadHeartbeat,
        burst: Burst = False,
        max_jobs: int | None = None,
        scheduler: bool = True,
    ) -> None:
        if slots < 1 or (threads is not None and threads < 1):
            raise InvalidInput(f"a worker needs at least 1 slot and 1 thread, not slots={slots} and threads={threads}")
        counts = {
            "processes": processes,
            "max_jobs_per_child": max_jobs_per_child,
            "max_memory_per_child": max_memory_per_child,
            "max_jobs": max_jobs,
        }
        for what, value in counts.items():
            if value is not None and not (type(value) is int and value >= 1):
                raise InvalidInput(f"{what} must be a whole number from 1 up, not {value!r}; it may be left out")
        if unknown_task == "bury" and tasks is not None:
            raise InvalidInput("unknown_task='bury' applies to every task of the worker's queues; remove `tasks`")
        self.app = app
        self.id = name or _random_name(chance, version)
        self.slots = slots
        self.threads = threads or slots
        self.processes = processes or min(slots, os.cpu_count() or 1)
        self.max_jobs_per_child, self.max_memory_per_child = max_jobs_per_child, max_memory_per_child
        self.layers = read_layers("a worker's middleware", middleware)
        given = {"timeout": timeout, "retry": retry, "max_attempts": max_attempts, "keep_result": keep_result}
        self._own = read_defaults("a worker", given | ({} if lease is None else {"lease": lease}))
        self.lease: int | None = self._own.get("lease")
        self.poll_min, self.poll_max = poll_min, poll_max
        self.reap_interval, self.maintain_interval = reap_interval, maintain_interval
        self.sweep_interval, self.monitor = sweep_interval, monitor
        self.beat_interval = beat_interval
        self.shutdown_deadline, self.grace, self._grace = shutdown_deadline, grace, grace
        self.version = version
        self.unknown_task: UnknownTaskRule = unknown_task
        self.chance, self.heartbeat = chance, heartbeat
        self.burst = burst
        self.max_jobs = max_jobs
        self.scheduler = scheduler and not burst  # a burst does not wait for the next tick
        self._queues = None if queues is None else _names(queues)
        self._only = None if tasks is None else frozenset(tasks)
        self._reporter = Reporter(self.id, app.bus, Redaction(redact), app.serdes)
        self._components: Components | None = None
        self._scope: WorkerScope | None = None
        self._background: asyncio.Task[None] | None = None
        self._begun = False
        self._stopped = asyncio.Event()
        self._shutdown_changed = asyncio.Event()  # the last run has ended, or the deadline has moved
        self.asked_to_stop = asyncio.Event()
        # Set when the app's lifespan is entered, if it has one; and when no time is left for running jobs.
        self._is_ready, self._hurry = asyncio.Event(), asyncio.Event()
        self._stop_at, self._signals = math.inf, 0

    # ── its settings ──────────────────────────────────────────────────────────────────────────

    @property
    def tasks(self) -> dict[str, Runnable]:
        """The tasks that this worker runs, by name: those in the parameter `tasks`, or else all tasks of the app."""
        known = dict(self.app.tasks)
        if self._only is None:
            return known
        if missing := sorted(self._only - known.keys()):
            raise UnknownTask(f"this worker is to run tasks that are not registered: {', '.join(missing)}")
        return {name: known[name] for name in sorted(self._only)}

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that the worker serves."""
        if self._queues is not None:
            return self._queues
        return _names(sorted({task.options.queue for task in self.tasks.values()}))

    @property
    def stats(self) -> Stats:
        """The counts of its runs so far."""
        stats = self._reporter.stats
        if self._components is not None:
            self._components.count(stats)
        return stats

    # ── run and stop ──────────────────────────────────────────────────────────────────────────

    async def run(self, *, handle_signals: bool = True) -> None:
        """Run jobs until the worker is stopped, has nothing to do (`burst`), or has run `max_jobs` jobs.

        SIGTERM and SIGINT stop the worker; a second signal aborts running jobs at once. Signals are handled only in the
        main thread, and not with handle_signals=False.
        """
        if self._begun:
            raise InvalidInput(f"worker {self.id!r} has been run before; make another one")
        in_child.refuse_working()
        self._begun = True
        with on_stop_signal(self._on_signal, handle_signals):
            try:
                store = await self.app.prepared()
                require_write_access(store.url, "a worker")
                clock = asyncio.get_running_loop().time
                self._scope = WorkerScope(clock, self.app.lifespan_factory, self._on_scope_failure)
                if not await self._scope.enter(self.asked_to_stop):
                    return
                self._is_ready.set()
                components = Components(self, self._reporter, store, self._scope, self._shutdown_changed.set)
                await components.start(self.asked_to_stop)
                self._components = components
                self._reporter.worker_event("worker_started")
                self._log_start(store.url)
                if not math.isinf(self._stop_at):
                    components.dispatcher.stop()
                await components.dispatcher.run(burst=self.burst)
            except asyncio.CancelledError:
                self._ask_to_stop(0)
                raise
            finally:
                self._ask_to_stop(self.shutdown_deadline)  # after an error too; an earlier deadline remains
                shutdown = asyncio.create_task(self._shut_down())
                await asyncio.shield(shutdown)  # a second cancellation ends the wait, not the shutdown

    async def stop(self, deadline: float | None = None) -> None:
        """Stop the worker and wait until it has stopped.

        The worker claims no more jobs. Jobs that still run after `deadline` seconds are aborted and released.
        stop(deadline=0) aborts running jobs at once, even if an earlier stop is still waiting for them.
        """
        self._ask_to_stop(self.shutdown_deadline if deadline is None else deadline)
        if self._begun:
            await self._stopped.wait()

    async def __aenter__(self) -> Self:
        self._background = asyncio.create_task(self._run_in_background(), name=f"millrace worker {self.id}")
        await asyncio.sleep(0)  # let it start, so that leaving at once stops it in order
        if self.app.lifespan_factory is not None:
            await self._start_up(self._background)
        return self

    async def _start_up(self, background: asyncio.Task[None]) -> None:
        """Wait until the app's lifespan is entered. Raises what the worker has raised before that."""
        ready = asyncio.create_task(self._is_ready.wait())
        try:
            await asyncio.wait([background, ready], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop(0)
            raise
        finally:
            ready.cancel()
        if background.done():
            background.result()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if self._background is not None:
            await self._background

    async def _run_in_background(self) -> None:
        """Run, and log an error at once: the program sees it only when it leaves its `async with` block."""
        try:
            await self.run(handle_signals=False)
        except LifespanFailed:  # it is logged already
            raise
        except Exception:
            log.exception("worker %s has failed; it runs no jobs any more", self.id, extra={"worker": self.id})
            raise

    def _on_signal(self) -> None:
        self._signals += 1
        self._ask_to_stop(self.shutdown_deadline if self._signals == 1 else 0)

    def _on_scope_failure(self) -> None:
        """Stop: jobs cannot use what the lifespan has made. `run` raises LifespanFailed."""
        self._ask_to_stop(self.shutdown_deadline)

    def _ask_to_stop(self, deadline: float) -> None:
        self._stop_at = min(self._stop_at, asyncio.get_running_loop().time() + max(0.0, deadline))
        if deadline <= 0:
            self._grace = min(self._grace, SHORT_GRACE)
            self._hurry.set()
        self._shutdown_changed.set()
        self.asked_to_stop.set()
        if self._components is not None:
            self._components.dispatcher.stop()

    async def _shut_down(self) -> None:
        try:
            self._reporter.worker_event("worker_stopping")
            if self._components is not None:
                await self._end_runs(self._components)
                await self._components.close(FLUSH_TIMEOUT if self._grace > SHORT_GRACE else 1.0)
        finally:
            await self._end_shutdown()

    async def _end_shutdown(self) -> None:
        try:
            if self._scope is not None:
                await self._scope.leave(self._hurry, self.grace)
        finally:
            self._reporter.worker_event("worker_stopped")
            if self._components is not None:
                self._log_end()
            with suppress(TimeoutError):
                async with asyncio.timeout(LISTENERS_TIMEOUT):
                    await self.app.bus.flush()
            self._stopped.set()

    async def _end_runs(self, components: Components) -> None:
        """Wait for running jobs until the deadline, then abort them. Abandon handlers that ignore the abort."""
        executor, clock = components.executor, asyncio.get_running_loop().time
        components.dispatcher.stop()
        await components.stop_claiming(min(FLUSH_TIMEOUT, max(SHORT_GRACE, self._stop_at - clock())))
        while executor.running and clock() < self._stop_at:
            await self._wait_for_change(self._stop_at - clock())
        aborted_at = clock()
        executor.abort_all(Abort.SHUTDOWN)
        while executor.running and clock() < aborted_at + self._grace:
            await self._wait_for_change(aborted_at + self._grace - clock())
        executor.abandon_all()
        if executor.running:  # in processes that have just been killed
            await self._wait_for_change(KILL_WAIT)
            executor.leave_all_behind()

    async def _wait_for_change(self, seconds: float) -> None:
        """Wait until no job is running, the deadline has changed, or `seconds` have passed."""
        self._shutdown_changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                await self._shutdown_changed.wait()

    def _log_start(self, url: str) -> None:
        facts = plural(len(self.tasks), "task"), ", ".join(self.queues), plural(self.slots, "slot"), url
        log.info("worker %s: %s from %s, %s, on %s", self.id, *facts, extra={"worker": self.id})

    def _log_end(self) -> None:
        stats = self.stats
        counts = stats.completed, stats.failed, stats.released
        words = "worker %s has stopped: %d completed, %d failed, %d given back"
        log.info(words, self.id, *counts, extra={"worker": self.id})

    def defaults(self) -> dict[str, JobDefaults | None]:
        """Return the default options for the jobs of each task, by task name; None if there are none.

        An option of the task takes precedence over the queue's, the queue's over the worker's, and the worker's over
        the app's.
        """
        general, of_queues = {**self.app.defaults, **self._own}, self.app.queue_defaults
        found = {name: JobDefaults(general, of_queues, task.explicit_options) for name, task in self.tasks.items()}
        return {name: None if defaults.is_empty else defaults for name, defaults in found.items()}

    @property
    def shortest_lease(self) -> int:
        """The shortest default lease duration of the worker's tasks, in milliseconds."""
        tasks = [task.options.lease if self.lease is None else self.lease for task in self.tasks.values()]
        explicit = [options["lease"] for task in self.tasks.values() if "lease" in (options := task.explicit_options)]
        explicit += [options["lease"] for options in self.app.queue_defaults.values() if "lease" in options]
        return min([*tasks, *explicit], default=self.lease or 30 * SECOND)


def _random_name(chance: Chance, version: str) -> str:
    """Return a unique name for a worker. It includes `version`, so that each attempt shows which code ran the job."""
    name = f"{socket.gethostname()[:64]}-{os.getpid()}-{int(chance() * 16**6):06x}"
    return f"{name}@{version}" if version else name


def _names(queues: Iterable[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(queues))
    for name in names:
        check_name("queue", name)
    if not names:
        raise InvalidInput("a worker needs a queue: register a task first, or name its queues")
    return names
