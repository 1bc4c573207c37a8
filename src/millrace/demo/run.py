"""The run: a store, two workers, customers, and a worker that is killed halfway."""

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
from millrace.domain.request import Query
from millrace.runtime.worker import Worker
from millrace.store.protocol import Store

FRONT, STAND_IN = "front-desk", "stand-in"
FRAME = 0.125
PAGE = 5_000
SMS_BURST = 3
FILE = "shop.db"


@dataclass(frozen=True)
class Settings:
    seconds: float
    jobs: int
    seed: int
    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(str(self.folder / FILE))}"

    @property
    def lease(self) -> float:
        """Short, so that a recovery can be watched; usually it is 30 s."""
        return max(1.0, min(2.0, self.seconds / 8))

    @property
    def latest(self) -> float:
        """When it ends even if there is work left, as there may be on a slow machine."""
        return self.seconds * 1.5 + 10


@dataclass
class Strike:
    """The kill: when, by the store's clock, and how many jobs the worker held."""

    at: int
    pid: int
    held: int


class Demo:
    """Made for one run. What it has learnt is there to be looked at while it runs, and afterwards."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.board = Board(QUEUES)
        self.stage = "starting two workers"
        self.accepted: set[str] = set()
        self.duplicates = 0
        self.cancelled = 0
        self.answers: list[float] = []  # seconds that each question waited for its answer
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
        """From an empty store to a quiet one; `shown` is called for every frame."""
        self._shown = shown
        shop.app.use(self.settings.url)
        workload = draw(self.settings.seconds, self.settings.jobs, self.settings.seed)
        self.sms_rate = workload.sms_rate
        second = Victim(self.settings.folder, self.settings.url, self.settings.lease)
        async with shop.app:
            store = await shop.app.connected()
            following = asyncio.create_task(self._follow(store))
            try:
                async with AsyncExitStack() as crew:
                    crew.push_async_callback(second.end)
                    await self._open(store, second, workload, crew)
                    await self._work(store, second, workload, crew)
                    self.stage = "stopping the workers"
                self.elapsed = perf_counter() - (self.began or perf_counter())
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
            await self._read_all(store)

    async def _open(self, store: Store, second: Victim, workload: Workload, crew: AsyncExitStack) -> None:
        await shop.app.queue("sms").limits(rate=workload.sms_rate, burst=SMS_BURST)
        await second.start(store, self.stopping)
        await self._hire(crew, FRONT, tuple(queue for queue in QUEUES if queue != "reports"), SLOTS)

    async def _hire(self, crew: AsyncExitStack, name: str, queues: tuple[str, ...], slots: int) -> None:
        """A worker in this process. It looks for lost jobs often, because the demo is short."""
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
        await crew.enter_async_context(worker)

    async def _work(self, store: Store, second: Victim, workload: Workload, crew: AsyncExitStack) -> None:
        self.began = perf_counter()
        self.stage = "customers are coming"
        async with asyncio.TaskGroup() as group:
            group.create_task(self._serve(workload))
            group.create_task(self._ask(workload))
            group.create_task(self._kill(store, second, workload, crew))
        self.stage = "finishing what is left"
        await shop.app.schedule(shop.RATES).pause()
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
            await self._put_in(due)

    async def _put_in(self, due: list[Arrival]) -> None:
        """What came in the same moment is one step of the store, all or nothing."""
        specs = [spec for arrival in due for spec in arrival.jobs]
        if not specs:
            return
        for answer in await shop.app.enqueue(specs):
            if answer.status == "queued":
                self.accepted.add(answer.id)
            else:
                self.duplicates += 1
        regretted = [spec for arrival in due if arrival.cancel for spec in arrival.jobs]
        if regretted:
            await shop.app.jobs.cancel(regretted)

    async def _ask(self, workload: Workload) -> None:
        """Request and response: a customer looks at a price, and the page waits for it."""
        for number, at in enumerate(workload.questions):
            await self._pause(at - self._clock())
            if self.stopping.is_set():
                return
            begun = perf_counter()
            with suppress(QueueError):  # no answer within its time: the job goes on, and the audit sees it
                await shop.quote_shipping.options(wait="10s").call("DE", 300 + 10 * number)
                self.answers.append(perf_counter() - begun)

    # ── the accident ──────────────────────────────────────────────────────────────────────────

    async def _kill(self, store: Store, second: Victim, workload: Workload, crew: AsyncExitStack) -> None:
        """Wait until it is in the middle of something, end it, and put another worker in its place."""
        await self._pause(0.3 * workload.busy + 0.3 - self._clock())
        while not self._busy_with_reports() and not self.stopping.is_set() and self._clock() < workload.busy + 2:
            await self._pause(0.03)
        if self.stopping.is_set():
            return
        held = len(self.board.held_by(victim.NAME))
        at, pid = await store.now(), second.pid
        second.kill()
        self.strike = Strike(at, pid, held)
        text = f"kill -9 {pid}: {victim.NAME} is gone in the middle of {held} jobs; their leases must run out first"
        self.board.say(at, "KILLED", text)
        await self._hire(crew, STAND_IN, victim.QUEUES, victim.SLOTS)

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
        """The whole history and every record, once nobody writes any more."""
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
        """Seconds since the customers began to come; 0 before."""
        return 0.0 if self.began is None else self._clock()

    def _clock(self) -> float:
        assert self.began is not None
        return perf_counter() - self.began

    async def _pause(self, seconds: float) -> None:
        """Sleep, unless the demo is being stopped."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
