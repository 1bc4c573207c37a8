"""The worker: claims jobs, runs them in slots, settles them, and stops without losing any.

It is put together from parts that each do one thing: the dispatcher fills the slots, the settler writes how runs
ended, the heartbeat keeps the leases, the reaper recovers what others lost. All time is the running loop's and all
chance is handed in, so that a virtual loop can drive a worker through years in a moment, the same way each time.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from millrace.domain.check import check_name
from millrace.domain.errors import InvalidInput, UnknownTask
from millrace.domain.job import SECOND
from millrace.domain.request import WorkerInfo
from millrace.runtime.crew import Crew
from millrace.runtime.dispatcher import Burst
from millrace.runtime.dispatcher import UnknownTask as UnknownTaskRule
from millrace.runtime.duration import Duration, milliseconds
from millrace.runtime.heartbeat import HeartbeatPort, ThreadHeartbeat
from millrace.runtime.hold import Abort
from millrace.runtime.host import Host, Middleware, Runnable
from millrace.runtime.middleware import read_layers
from millrace.runtime.polling import Chance
from millrace.runtime.process import inside
from millrace.runtime.signals import heard_by
from millrace.runtime.slots import KILL_WAIT
from millrace.runtime.tally import Stats, Tally

AT_ONCE = 0.05  # long enough for a cancelled coroutine to unwind, too short for anybody to notice
FLUSH = 5.0
LISTENERS_WAIT = 2.0  # for async listeners to end, that of `worker_stopped` too


class Worker:
    """Runs jobs of an app's tasks, once: from `run` to `stop`. Several may share a process.

    `name` identifies it in the store; two live workers must not share one (R-13), so by default one is drawn.
    Times are in seconds. `lease` overrides that of every job. `tasks` narrows which it takes. Beside its jobs it
    recovers what others lost, and sweeps a store that has no server every `sweep_interval` (None: as the store says;
    0: never), unless monitor=False, which leaves both to `millrace monitor`. Handlers with
    process=True share `processes` children; one is replaced after `max_jobs_per_child` attempts, or once it has held
    more than `max_memory_per_child` bytes. With `burst` it stops when there is nothing to do; a function is asked then
    whether that is all. It stops by itself, too, when it has run `max_jobs`.
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
        unknown_task: UnknownTaskRule = "leave",
        chance: Chance = random.random,
        heartbeat: HeartbeatPort = ThreadHeartbeat,
        burst: Burst = False,
        max_jobs: int | None = None,
        scheduler: bool = True,
    ) -> None:
        if slots < 1 or (threads is not None and threads < 1):
            raise InvalidInput(f"a worker needs at least 1 slot and 1 thread, not slots={slots} and threads={threads}")
        of_children = {
            "processes": processes,
            "max_jobs_per_child": max_jobs_per_child,
            "max_memory_per_child": max_memory_per_child,
            "max_jobs": max_jobs,
        }
        for what, value in of_children.items():
            if value is not None and not (type(value) is int and value >= 1):
                raise InvalidInput(f"{what} must be a whole number from 1 up, not {value!r}; it may be left out")
        if unknown_task == "bury" and tasks is not None:
            raise InvalidInput("unknown_task='bury' judges every task of its queues; leave out `tasks`")
        self.app = app
        self.id = name or _drawn_name(chance, version)
        self.slots = slots
        self.threads = threads or slots
        self.processes = processes or min(slots, os.cpu_count() or 1)
        self.max_jobs_per_child, self.max_memory_per_child = max_jobs_per_child, max_memory_per_child
        self.layers = read_layers("a worker's middleware", middleware)
        self.lease = None if lease is None else max(1, milliseconds("lease", lease))
        self.poll_min, self.poll_max = poll_min, poll_max
        self.reap_interval, self.maintain_interval = reap_interval, maintain_interval
        self.sweep_interval, self.monitor = sweep_interval, monitor
        self.beat_interval = beat_interval
        self.shutdown_deadline = shutdown_deadline
        self.grace = grace
        self.version = version
        self.unknown_task: UnknownTaskRule = unknown_task
        self.chance = chance
        self.heartbeat = heartbeat
        self.burst = burst
        self.max_jobs = max_jobs
        self.scheduler = scheduler and not burst  # a burst does what is there now; it waits for no tick
        self._queues = None if queues is None else _names(queues)
        self._only = None if tasks is None else frozenset(tasks)
        self._tally = Tally(self.id, app.bus)
        self._crew: Crew | None = None
        self._background: asyncio.Task[None] | None = None
        self._begun = False
        self._over = asyncio.Event()
        self._hurry = asyncio.Event()
        self.asked_to_stop = asyncio.Event()
        self._stop_at = math.inf
        self._grace = grace
        self._signals = 0

    # ── what it is ────────────────────────────────────────────────────────────────────────────

    @property
    def tasks(self) -> dict[str, Runnable]:
        """The tasks it takes: all that the app has registered, or those it was told to."""
        known = dict(self.app.tasks)
        if self._only is None:
            return known
        if missing := sorted(self._only - known.keys()):
            raise UnknownTask(f"this worker is to take tasks that are not registered: {', '.join(missing)}")
        return {name: known[name] for name in sorted(self._only)}

    @property
    def queues(self) -> tuple[str, ...]:
        if self._queues is not None:
            return self._queues
        return _names(sorted({task.options.queue for task in self.tasks.values()}))

    @property
    def stats(self) -> Stats:
        stats = self._tally.stats
        if self._crew is not None:
            self._crew.count(stats)
        return stats

    def info(self) -> WorkerInfo:
        """What it says of itself with each beat; called from the heartbeat's thread."""
        crew, stats = self._crew, self._tally.stats
        running = () if crew is None else tuple(run.job.id for run in list(crew.slots.running.values()))
        return WorkerInfo(
            self.id,
            self.queues,
            tuple(sorted(self.tasks)),
            self.slots,
            running,
            stats.completed,
            stats.failed,
            self.version,
            socket.gethostname(),
            os.getpid(),
            0 if crew is None else crew.slots.zombies,
        )

    # ── run and stop ──────────────────────────────────────────────────────────────────────────

    async def run(self, *, handle_signals: bool = True) -> None:
        """Work until stopped; with `burst`, until there is nothing to do right now; until `max_jobs` are done.

        SIGTERM and SIGINT stop it, a second one at once; only in the main thread, and not with handle_signals=False.
        """
        if self._begun:
            raise InvalidInput(f"worker {self.id!r} has been run before; make another one")
        inside.refuse_working()
        self._begun = True
        with heard_by(self._on_signal, handle_signals):
            try:
                crew = Crew(self, self._tally, await self.app.prepared())
                await crew.start()
                self._crew = crew
                self._tally.tell("worker_started")
                if not math.isinf(self._stop_at):
                    crew.dispatcher.stop()
                await crew.dispatcher.work(burst=self.burst)
            except asyncio.CancelledError:
                self._ask_to_stop(0)
                raise
            finally:
                self._ask_to_stop(self.shutdown_deadline)  # whatever ended the loop; an earlier stop stands
                ending = asyncio.create_task(self._shut_down())
                await asyncio.shield(ending)  # a second cancellation ends the wait, not the clean-up

    async def stop(self, deadline: float | None = None) -> None:
        """Stop claiming, let running jobs end within `deadline` seconds, give back the rest, and wait for all that.

        stop(deadline=0), also while an earlier stop is under way, aborts them at once.
        """
        self._ask_to_stop(self.shutdown_deadline if deadline is None else deadline)
        if self._begun:
            await self._over.wait()

    async def __aenter__(self) -> Self:
        self._background = asyncio.create_task(self.run(handle_signals=False), name=f"millrace worker {self.id}")
        await asyncio.sleep(0)  # let it begin, so that leaving at once stops it in good order
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if self._background is not None:
            await self._background

    def _on_signal(self) -> None:
        self._signals += 1
        self._ask_to_stop(self.shutdown_deadline if self._signals == 1 else 0)

    def _ask_to_stop(self, deadline: float) -> None:
        self._stop_at = min(self._stop_at, asyncio.get_running_loop().time() + max(0.0, deadline))
        if deadline <= 0:
            self._grace = min(self._grace, AT_ONCE)
        self._hurry.set()
        self.asked_to_stop.set()
        if self._crew is not None:
            self._crew.dispatcher.stop()

    async def _shut_down(self) -> None:
        """The heartbeat stops last: until then nothing that is held may be given to somebody else."""
        try:
            self._tally.tell("worker_stopping")
            crew = self._crew
            if crew is None:
                return
            crew.dispatcher.stop()
            clock = asyncio.get_running_loop().time
            await crew.rest_of_claiming(min(FLUSH, max(AT_ONCE, self._stop_at - clock())))
            while crew.slots.running and clock() < self._stop_at:
                await self._wait(self._stop_at - clock(), crew)
            begun = clock()
            crew.slots.abort_all(Abort.SHUTDOWN)
            while crew.slots.running and clock() < begun + self._grace:
                await self._wait(begun + self._grace - clock(), crew)
            crew.slots.abandon_all()
            if crew.slots.running:  # processes that were killed this moment
                await self._wait(KILL_WAIT, crew)
                crew.slots.forsake_all()
            await crew.finish(FLUSH if self._grace > AT_ONCE else 1.0)
        finally:
            self._tally.tell("worker_stopped")
            with suppress(TimeoutError):
                async with asyncio.timeout(LISTENERS_WAIT):
                    await self.app.bus.flush()
            self._over.set()

    async def _wait(self, seconds: float, crew: Crew) -> None:
        """Until no job runs, the time is over, or somebody is in a hurry."""
        self._hurry.clear()
        crew.slots.when_empty = self._hurry.set
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass

    @property
    def shortest_lease(self) -> int:
        """Milliseconds; of the jobs it can expect."""
        if self.lease is not None:
            return self.lease
        return min((task.options.lease for task in self.tasks.values()), default=30 * SECOND)


def _drawn_name(chance: Chance, version: str) -> str:
    """Every attempt names its worker, so a version in the name says for good which code ran it (X4)."""
    name = f"{socket.gethostname()[:64]}-{os.getpid()}-{int(chance() * 16**6):06x}"
    return f"{name}@{version}" if version else name


def _names(queues: Iterable[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(queues))
    for name in names:
        check_name("queue", name)
    if not names:
        raise InvalidInput("a worker needs a queue: register a task first, or name the queues it is to serve")
    return names
