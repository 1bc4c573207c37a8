"""Millrace through its public API, as a user would write it, whatever the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from benchmarks.lab import callers
from benchmarks.lab.measure import Spent, Watch
from benchmarks.lab.subject import TEXT, payloads, ready
from millrace import App, LocalEvent

SLOTS = 200
R = TypeVar("R")


def new_loop() -> asyncio.AbstractEventLoop:
    """The loop of `millrace worker`, where uvloop is installed."""
    try:
        from millrace.cli.fast_loop import FastLoop
    except ImportError:  # an earlier Millrace, whose worker had no uvloop
        return asyncio.new_event_loop()
    return FastLoop()


class MillraceSubject:
    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.echo = self.app.task(echo)

    def task(self, handler: Callable[..., Any] | None = None) -> Any:
        return self.app.tasks.get("noop") or self.app.task(name="noop")(handler or noop)

    def enqueue(self, jobs: int) -> Spent:
        return self.callers(jobs, 1)

    def callers(self, jobs: int, number: int) -> Spent:
        return self.run(self._enqueue(jobs, number))

    def threads(self, jobs: int, number: int) -> Spent:
        task = self.task()
        self.app.sync.jobs.cancel(task.sync.enqueue(**next(payloads(1))).id)
        try:
            return callers.from_threads(task.sync.enqueue, jobs, number)
        finally:
            self.app.sync.close()

    def bulk(self, jobs: int) -> Spent:
        return self.run(self._bulk(jobs))

    def process(self, jobs: int) -> Spent:
        return self.run(self._process(jobs, noop, slots=SLOTS))

    def process_default(self, jobs: int) -> Spent:
        return self.run(self._process(jobs, noop))

    def process_def(self, jobs: int) -> Spent:
        return self.run(self._process(jobs, plain_noop, slots=SLOTS))

    def serve(self) -> None:
        self.run(self._serve())

    def call(self, times: int) -> list[float]:
        return self.run(self._call(times))

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(work)

    async def _enqueue(self, jobs: int, number: int) -> Spent:
        task = self.task()
        async with self.app:
            await self._seen_before(task)
            return await callers.from_coroutines(task.enqueue, jobs, number)

    async def _seen_before(self, task: Any) -> None:
        """As on any day but the first, the store knows the task: the first of its kind writes down what is new."""
        job = await task.enqueue(**next(payloads(1)))
        await self.app.jobs.cancel(job.id)

    async def _bulk(self, jobs: int) -> Spent:
        task = self.task()
        async with self.app:
            await self._seen_before(task)
            watch = Watch()
            await task.enqueue_many(payloads(jobs))
            return watch.spent()

    async def _process(self, jobs: int, handler: Callable[..., Any], **options: Any) -> Spent:
        self.task(handler)
        async with self.app:
            worker = self.app.worker(burst=True, **options)
            watch = Watch()
            await worker.run()
            spent = watch.spent()
            assert worker.stats.completed == jobs
            return spent

    async def _serve(self) -> None:
        self.app.on("worker_started", tell_ready)
        async with self.app:
            await self.app.worker(slots=SLOTS).run()

    async def _call(self, times: int) -> list[float]:
        async with self.app:
            return [await self._round_trip(number) for number in range(times)]

    async def _round_trip(self, number: int) -> float:
        began = time.perf_counter()
        assert await self.echo.call(number=number, text=TEXT) == number
        return time.perf_counter() - began


async def noop(number: int, text: str) -> None:
    pass


def plain_noop(number: int, text: str) -> None:
    pass


async def echo(number: int, text: str) -> int:
    return number


def tell_ready(event: LocalEvent) -> None:
    ready()
