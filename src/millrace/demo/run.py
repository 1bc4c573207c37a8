"""Runs the demo: a store, customers, and two workers. One worker is killed halfway, and a third one replaces it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from urllib.parse import quote

from millrace.demo import shop, victim
from millrace.demo.board import Board
from millrace.demo.victim import Victim
from millrace.demo.workload import QUEUES, SLOTS, Arrival, Workload, draw
from millrace.domain.errors import QueueError
from millrace.domain.job import Job
from millrace.domain.request import Enqueued, Query
from millrace.store.protocol import Store
from millrace.worker.worker import Worker

FRONT, STAND_IN = "front-desk", "stand-in"
FRAME = 0.125
PAGE = 5_000
SMS_BURST = 3
FILE = "shop.db"


@dataclass(frozen=True)
class DemoSettings:
    seconds: float
    jobs: int
    seed: int
    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(str(self.folder / FILE))}"

    @property
    def lease(self) -> float:
        """The lease duration in seconds.

        It is shorter than the default of 30 s, so that the recovery happens during the demo.
        """
        return max(1.0, min(2.0, self.seconds / 8))

    @property
    def latest(self) -> float:
        """The number of seconds after which the demo ends even if jobs are left, for example on a slow machine."""
        return self.seconds * 1.5 + 10


@dataclass
class Strike:
    """The kill of a worker: its time by the store's clock, and how many jobs the worker held."""

    at: int
    pid: int
    held: int


class Demo:
    """One execution of the demo. Its attributes can be read while the demo runs and afterwards."""

    def __init__(self, settings: DemoSettings) -> None:
        self.settings = settings
        self.board = Board(QUEUES)
        self.stage = "starting two workers"
        self.accepted: list[tuple[str, Enqueued]] = []
        self.duplicates = 0
        self.cancelled = 0
        self.answers: list[float] = []  # seconds that each caller waited for its result
        self.strike: Strike | None = None
        self.jobs: list[Job] = []
        self.sms_rate = 0.0
        self.began: float | None = None
        self.elapsed = 0.0
        self.interrupted = False
        self.stopping = asyncio.Event()
        self.workers: dict[str, Worker] = {}
        self.now = 0  # of the store
        self._shown: Callable[[], None] = lambda: None

    def stop(self) -> None:
        self.interrupted = True
        self.stopping.set()

    async def run(self, shown: Callable[[], None]) -> None:
        """Run the demo on an empty store, until all jobs have ended or the demo is stopped.

        `shown` is called whenever the display should be updated.
        """
        self._shown = shown
        shop.app.use(self.settings.url)
        workload = draw(self.settings.seconds, self.settings.jobs, self.settings.seed)
        self.sms_rate = workload.sms_rate
        second = Victim(self.settings.folder, self.settings.url, self.settings.lease)
        async with shop.app:
            store = await shop.app.connected()
            following = asyncio.create_task(self._follow(store))
            try:
                async with AsyncExitStack() as workers:
                    workers.push_async_callback(second.end)
                    await self._open(store, second, workload, workers)
                    await self._work(store, second, workload, workers)
                    self.stage = "stopping the workers"
                self.elapsed = perf_counter() - (self.began or perf_counter())
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
            await self._read_all(store)

    async def _open(self, store: Store, second: Victim, workload: Workload, workers: AsyncExitStack) -> None:
        await shop.app.queue("sms").limits(rate=workload.sms_rate, burst=SMS_BURST)
        await second.start(store, self.stopping)
        await self._start_worker(workers, FRONT, tuple(queue for queue in QUEUES if queue != "reports"), SLOTS)

    async def _start_worker(self, workers: AsyncExitStack, name: str, queues: tuple[str, ...], slots: int) -> None:
        """Start a worker in this process. It looks for expired leases often, because the demo is short."""
        self.workers[name] = worker = shop.app.worker(
            queues,
            slots=slots,
            name=name,
            lease=self.settings.lease,
            processes=1,
            reap_interval=0.25,
            poll_max=1.0,
            shutdown_deadline=2.0,
            grace=0.5,
        )
        await workers.enter_async_context(worker)

    async def _work(self, store: Store, second: Victim, workload: Workload, workers: AsyncExitStack) -> None:
        self.began = perf_counter()
        self.stage = "customers are coming"
        async with asyncio.TaskGroup() as group:
            group.create_task(self._serve(workload))
            group.create_task(self._ask(workload))
            group.create_task(self._kill(store, second, workload, workers))
        self.stage = "finishing what is left"
        await shop.app.schedules.pause(shop.RATES)
        while not self.stopping.is_set() and self._clock() < self.settings.latest:
            if not sum(queue.waiting + queue.running for queue in await store.count()):
                return
            await self._pause(0.1)

    # ── what the customers do ─────────────────────────────────────────────────────────────────

    async def _serve(self, workload: Workload) -> None:
        arrivals = iter(workload.arrivals)
        arrival = next(arrivals, None)
        while arrival is not None and not self.stopping.is_set():
            await self._pause(arrival.at - self._clock())
            due: list[Arrival] = []
            while arrival is not None and arrival.at <= self._clock() and len(due) < 500:
                due.append(arrival)
                arrival = next(arrivals, None)
            await self._enqueue(due)

    async def _enqueue(self, due: list[Arrival]) -> None:
        """Enqueue the jobs of these arrivals in one call, then cancel the jobs of arrivals that have `cancel` set."""
        specs = [spec for arrival in due for spec in arrival.jobs]
        if not specs:
            return
        for spec, job in zip(specs, await shop.app.enqueue(specs), strict=True):
            if not job.is_duplicate:
                self.accepted.append((spec.token, job.enqueued))
            else:
                self.duplicates += 1
        regretted = [spec for arrival in due if arrival.cancel for spec in arrival.jobs]
        if regretted:
            await shop.app.jobs.cancel(regretted)

    async def _ask(self, workload: Workload) -> None:
        """Call a task and wait for its result, as a web page does when a customer asks for a price."""
        for number, at in enumerate(workload.questions):
            await self._pause(at - self._clock())
            if self.stopping.is_set():
                return
            begun = perf_counter()
            with suppress(QueueError):  # no result in time: the job continues, and the audit checks it
                await shop.quote_shipping.options(wait="10s").call("DE", 300 + 10 * number)
                self.answers.append(perf_counter() - begun)

    # ── the accident ──────────────────────────────────────────────────────────────────────────

    async def _kill(self, store: Store, second: Victim, workload: Workload, workers: AsyncExitStack) -> None:
        """Wait until the second worker is running reports, kill it, and start another worker."""
        await self._pause(0.3 * workload.busy + 0.3 - self._clock())
        while not self._busy_with_reports() and not self.stopping.is_set() and self._clock() < workload.busy + 2:
            await self._pause(0.03)
        if self.stopping.is_set():
            return
        held = len(self.board.held_by(victim.NAME))
        at, pid = await store.now(), second.pid
        second.kill()
        self.strike = Strike(at, pid, held)
        text = f"kill -9 {pid}: {victim.NAME} died while running {held} jobs; they run again when their leases expire"
        self.board.say(at, "KILLED", text)
        await self._start_worker(workers, STAND_IN, victim.QUEUES, victim.SLOTS)

    def _busy_with_reports(self) -> bool:
        return sum(one.task == "sales_report" for one in self.board.held_by(victim.NAME)) >= 3

    # ── what is shown ─────────────────────────────────────────────────────────────────────────

    async def _follow(self, store: Store) -> None:
        cursor: str | None = None
        while True:
            page = await store.events(cursor, PAGE)
            cursor = page.cursor
            self.now = await store.now()
            self.board.read(page.events)
            self._shown()
            await asyncio.sleep(FRAME if len(page.events) < PAGE else 0)

    async def _read_all(self, store: Store) -> None:
        """Read the whole history and every record, after the last write."""
        page = await store.events(None, PAGE)
        board = Board(QUEUES)
        while page.events:
            board.read(page.events)
            page = await store.events(page.cursor, PAGE)
        self.board = board
        cursor: str | None = None
        while True:
            found = await store.find(Query(archived=None, limit=1_000, cursor=cursor))
            self.jobs += found.jobs
            cursor = found.cursor
            if cursor is None:
                return

    def clock(self) -> float:
        """Return the seconds since the first customers arrived, or 0 before that."""
        return 0.0 if self.began is None else self._clock()

    def _clock(self) -> float:
        assert self.began is not None
        return perf_counter() - self.began

    async def _pause(self, seconds: float) -> None:
        """Sleep for this many seconds, or until the demo is stopped."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
