"""A stage for worker tests: an app on the memory store, on a loop whose time passes only when all are asleep."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from millrace import App
from millrace.domain.change import Change
from millrace.domain.event import Kind
from millrace.domain.job import Job, Lease
from millrace.domain.request import Claim, Extension, Receipt, Reclaim, WorkerInfo
from millrace.store.memory import MemoryStore
from millrace.testing.clock import START
from millrace.worker.heartbeat import InlineHeartbeat
from millrace.worker.worker import Worker
from proof.simulation.loop import VirtualLoop


class WatchedStore(MemoryStore):
    """Counts its calls and fails or delays those it is told to."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.calls: list[str] = []
        self.claims: list[Claim] = []
        self.batches: list[int] = []
        self.failing: dict[str, Exception] = {}
        self.delays: dict[str, float] = {}
        self.after_claim: Callable[[], Awaitable[object]] | None = None

    async def _pass(self, name: str) -> None:
        self.calls.append(name)
        if name in self.delays:
            await asyncio.sleep(self.delays[name])
        if name in self.failing:
            raise self.failing[name]

    async def claim(self, request: Claim) -> list[Job]:
        await self._pass("claim")
        self.claims.append(request)
        jobs = await super().claim(request)
        if self.after_claim is not None:
            await self.after_claim()
        return jobs

    async def settle(self, items: Sequence[tuple[Lease, Change]]) -> list[Receipt]:
        await self._pass("settle")
        self.batches.append(len(items))
        return await super().settle(items)

    async def extend(self, extensions: Sequence[Extension]) -> list[Receipt]:
        await self._pass("extend")
        return await super().extend(extensions)

    async def reclaim(self, request: Reclaim) -> list[Job]:
        await self._pass("reclaim")
        return await super().reclaim(request)

    async def beat(self, info: WorkerInfo, ttl: int) -> None:
        await self._pass("leave" if ttl == 0 else "beat")
        await super().beat(info, ttl)


class Stage:
    """An app, its store, and shorthands for what tests ask."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self.store = WatchedStore() if clock is None else WatchedStore(clock=clock, salt="s")
        self.app = App(self.store)
        self.random = random.Random(1)

    def worker(self, **options: Any) -> Worker:
        options = {"heartbeat": InlineHeartbeat, "chance": self.random.random, "poll_max": 1.0, **options}
        return self.app.worker(**options)

    async def burst(self, **options: Any) -> Worker:
        """Run until nothing is claimable now."""
        worker = self.worker(burst=True, **options)
        await worker.run(handle_signals=False)
        return worker

    async def job(self, job_id: str) -> Job:
        [job] = await self.store.get([job_id])
        assert job is not None
        return job

    async def kinds(self, job_id: str) -> list[Kind]:
        return [event.kind for event in await self.store.history(job_id)]

    async def until(self, job_id: str, *states: str, timeout: float = 600.0) -> Job:
        """The job, once it is in one of these states (any end when none is named)."""
        wanted = states or ("completed", "dead", "cancelled")
        async with asyncio.timeout(timeout):
            while (job := await self.job(job_id)).state not in wanted:
                await asyncio.sleep(0.005)
        return job

    @asynccontextmanager
    async def working(self, **options: Any):
        async with self.worker(**options) as worker:
            yield worker


async def until(condition: Callable[[], object], timeout: float = 600.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)


def virtual(story: Callable[[Stage], Awaitable[None]]) -> Callable[[], None]:
    """Play a test on a virtual loop."""

    @functools.wraps(story)
    def test() -> None:
        async def play() -> None:
            loop = asyncio.get_running_loop()
            await story(Stage(lambda: START + round(loop.time() * 1000)))

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(play())

    del test.__wrapped__  # pytest would read the story's parameter as a fixture
    return test
