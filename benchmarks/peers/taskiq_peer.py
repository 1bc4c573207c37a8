"""taskiq with taskiq-redis's stream broker, the one of its brokers that acknowledges; uvloop, as its worker uses it.

The no-op runs without a result backend and is acknowledged when it has run. Types of arguments are not checked
(`--no-parse`). Whoever waits for a result polls: every 200 ms by default, here every 10 ms. There is no bulk enqueue:
calls under way side by side are the fastest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from taskiq.acks import AcknowledgeType  # type: ignore[import-not-found]
from taskiq.receiver import Receiver  # type: ignore[import-not-found]
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker  # type: ignore[import-not-found]

from benchmarks.lab import callers
from benchmarks.lab.countdown import countdown, until
from benchmarks.lab.measure import BARE_POLL, Spent, Watch
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

    def enqueue(self, jobs: int) -> Spent:
        return self.callers(jobs, 1)

    def callers(self, jobs: int, number: int) -> Spent:
        return callers.run(self._enqueue(jobs, number))

    async def _enqueue(self, jobs: int, number: int) -> Spent:
        broker = self.broker(results=False)
        await broker.startup()
        spent = await callers.from_coroutines(broker.find_task("noop").kiq, jobs, number)
        await broker.shutdown()
        return spent

    def bulk(self, jobs: int) -> Spent:
        return self.callers(jobs, AT_ONCE)

    def process(self, jobs: int) -> Spent:
        return callers.run(self._process(jobs))

    async def _process(self, jobs: int) -> Spent:
        countdown.left = jobs
        broker, stop = self.broker(results=False), asyncio.Event()
        watch = Watch()
        working = asyncio.create_task(self._receiver(broker).listen(stop))
        await countdown.over.wait()
        async with Redis.from_url(self.url) as client:

            async def settled() -> bool:
                return not (await client.xpending(STREAM, GROUP))["pending"]

            await until(settled)
        spent = watch.spent()
        stop.set()
        await working
        return spent

    def serve(self) -> None:
        callers.run(self._serve())

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
        return callers.run(self._call(times))

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
