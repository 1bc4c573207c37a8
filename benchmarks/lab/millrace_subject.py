"""Millrace through its public API, as a user would write it, whatever the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from benchmarks.lab.subject import TEXT, payloads, ready
from millrace import App, LocalEvent

SLOTS = 200
R = TypeVar("R")


class MillraceSubject:
    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.noop = self.app.task(noop)
        self.echo = self.app.task(echo)

    def enqueue(self, jobs: int) -> float:
        return self.run(self._enqueue(jobs))

    def bulk(self, jobs: int) -> float:
        return self.run(self._bulk(jobs))

    def process(self, jobs: int) -> float:
        return self.run(self._process(jobs))

    def serve(self) -> None:
        self.run(self._serve())

    def call(self, times: int) -> list[float]:
        return self.run(self._call(times))

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run(work)

    async def _enqueue(self, jobs: int) -> float:
        async with self.app:
            await self._seen_before()
            began = time.perf_counter()
            for payload in payloads(jobs):
                await self.noop.enqueue(**payload)
            return time.perf_counter() - began

    async def _seen_before(self) -> None:
        """As on any day but the first, the store knows the task: the first of its kind writes down what is new."""
        job = await self.noop.enqueue(**next(payloads(1)))
        await self.app.jobs.cancel(job.id)

    async def _bulk(self, jobs: int) -> float:
        async with self.app:
            await self._seen_before()
            began = time.perf_counter()
            await self.noop.enqueue_many(payloads(jobs))
            return time.perf_counter() - began

    async def _process(self, jobs: int) -> float:
        async with self.app:
            worker = self.app.worker(slots=SLOTS, burst=True)
            began = time.perf_counter()
            await worker.run()
            seconds = time.perf_counter() - began
            assert worker.stats.completed == jobs
            return seconds

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


async def echo(number: int, text: str) -> int:
    return number


def tell_ready(event: LocalEvent) -> None:
    ready()
