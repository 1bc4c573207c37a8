"""taskiq with taskiq-redis's stream broker, the one of its brokers that acknowledges; uvloop, as its worker uses it.

The no-op runs without a result backend and is acknowledged when it has run. Types of arguments are not checked
(`--no-parse`). Whoever waits for a result polls: every 200 ms by default, here every 10 ms. There is no bulk enqueue:
calls under way side by side are the fastest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import islice
from pathlib import Path
from typing import Any

import uvloop  # type: ignore[import-not-found, unused-ignore]
from redis.asyncio import Redis
from taskiq.acks import AcknowledgeType  # type: ignore[import-not-found]
from taskiq.receiver import Receiver  # type: ignore[import-not-found]
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker  # type: ignore[import-not-found]

from benchmarks.lab.countdown import countdown, until
from benchmarks.lab.measure import BARE_POLL
from benchmarks.lab.redis_place import url_of
from benchmarks.lab.subject import main, payloads, ready

AT_ONCE = 100
STREAM = GROUP = "taskiq"


class OnTaskiq:
    delivery = "at least once: a job whose worker dies runs again after 10 min; results are kept on request"
    durability = "in the server's memory"
    durable = False

    def __init__(self, path: Path) -> None:
        logging.disable(logging.ERROR)
        self.url = url_of(path)

    def broker(self, *, results: bool) -> Any:
        broker: Any = RedisStreamBroker(self.url, consumer_id="0", xread_count=AT_ONCE)
        if results:
            broker = broker.with_result_backend(RedisAsyncResultBackend(self.url))
        broker.register_task(noop, task_name="noop")
        broker.register_task(echo, task_name="echo")
        return broker

    def enqueue(self, jobs: int) -> float:
        return float(uvloop.run(self._add(jobs, 1)))

    def bulk(self, jobs: int) -> float:
        return float(uvloop.run(self._add(jobs, AT_ONCE)))

    async def _add(self, jobs: int, at_once: int) -> float:
        broker = self.broker(results=False)
        await broker.startup()
        task, waiting = broker.find_task("noop"), payloads(jobs)
        began = time.perf_counter()
        while part := list(islice(waiting, at_once)):
            await asyncio.gather(*(task.kiq(**payload) for payload in part))
        seconds = time.perf_counter() - began
        await broker.shutdown()
        return seconds

    def process(self, jobs: int) -> float:
        return float(uvloop.run(self._process(jobs)))

    async def _process(self, jobs: int) -> float:
        countdown.left = jobs
        broker, stop = self.broker(results=False), asyncio.Event()
        began = time.perf_counter()
        working = asyncio.create_task(self._receiver(broker).listen(stop))
        await countdown.over.wait()
        async with Redis.from_url(self.url) as client:

            async def settled() -> bool:
                return not (await client.xpending(STREAM, GROUP))["pending"]

            await until(settled)
        seconds = time.perf_counter() - began
        stop.set()
        await working
        return seconds

    def serve(self) -> None:
        uvloop.run(self._serve())

    async def _serve(self) -> None:
        ready()
        await self._receiver(self.broker(results=True)).listen(asyncio.Event())

    def _receiver(self, broker: Any) -> Any:
        broker.is_worker_process = True
        return Receiver(
            broker,
            validate_params=False,
            max_async_tasks=AT_ONCE,
            max_prefetch=AT_ONCE,
            ack_type=AcknowledgeType.WHEN_EXECUTED,
        )

    def call(self, times: int) -> list[float]:
        return list(uvloop.run(self._call(times)))

    async def _call(self, times: int) -> list[float]:
        broker = self.broker(results=True)
        await broker.startup()
        task = broker.find_task("echo")
        return [await self._round_trip(task, payload) for payload in payloads(times)]

    async def _round_trip(self, task: Any, payload: dict[str, Any]) -> float:
        began = time.perf_counter()
        sent = await task.kiq(**payload)
        result = await sent.wait_result(check_interval=BARE_POLL, timeout=30)
        assert result.return_value == payload["number"]
        return time.perf_counter() - began


async def noop(number: int, text: str) -> None:
    countdown.one()


async def echo(number: int, text: str) -> int:
    return number


if __name__ == "__main__":
    main({"taskiq": OnTaskiq})
