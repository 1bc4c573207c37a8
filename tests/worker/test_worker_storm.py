"""Workers come and go while the store fails and stalls; every job is completed all the same."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from millrace import RetryPolicy, Snooze, State
from millrace.testing.clock import START
from proof.simulation.loop import VirtualLoop
from tests.worker.stage import Stage

METHODS = ("claim", "settle", "extend", "reclaim", "beat")


@pytest.mark.parametrize("seed", range(8))
def test_every_job_is_completed_whatever_fails_meanwhile(seed: int, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    chance = random.Random(seed)
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(random.Random(seed))) as runner:
        runner.run(story(chance))


async def story(chance: random.Random) -> None:
    loop = asyncio.get_running_loop()
    stage = Stage(lambda: START + round(loop.time() * 1000))

    @stage.app.task(lease=6, timeout=20, max_attempts=None, max_stalls=None, retry=RetryPolicy(maximum=2_000))
    async def work() -> None:
        luck = chance.random()
        if luck < 0.1:
            raise ValueError
        if luck < 0.2:
            raise Snooze(1)
        try:
            await asyncio.sleep(100 if luck < 0.25 else chance.random() * 8)
        except asyncio.CancelledError:
            await asyncio.sleep(10 if chance.random() < 0.3 else 0)  # longer than its grace
            raise

    jobs = await work.enqueue_many([{}] * 60) + await work.options(group="g").enqueue_many([{}] * 6)
    done = asyncio.Event()
    others = [asyncio.create_task(trouble(stage, chance, done))]
    others += [asyncio.create_task(shifts(stage, chance, done, f"w{n}")) for n in range(3)]
    async with asyncio.timeout(3_600):
        for job in jobs:
            assert (await stage.until(job.id, timeout=3_600)).state is State.COMPLETED
    done.set()
    await asyncio.gather(*others)


async def trouble(stage: Stage, chance: random.Random, done: asyncio.Event) -> None:
    while not done.is_set():
        await asyncio.sleep(chance.random() * 5)
        method = chance.choice(METHODS)
        if chance.random() < 0.5:
            stage.store.failing[method] = ConnectionError(method)
        else:
            stage.store.delays[method] = chance.random() * 10
        await asyncio.sleep(chance.random() * 8)
        stage.store.failing.clear()
        stage.store.delays.clear()


async def shifts(stage: Stage, chance: random.Random, done: asyncio.Event, name: str) -> None:
    """One worker after the other, each stopped or cancelled at some moment."""
    shift = 0
    while not done.is_set():
        shift += 1
        worker = stage.worker(slots=chance.randint(1, 8), name=f"{name}.{shift}", reap_interval=2)
        running = asyncio.create_task(worker.run(handle_signals=False))
        await asyncio.sleep(chance.random() * 40)
        if chance.random() < 0.7:
            await worker.stop(chance.choice((0, 5 * chance.random())))
            await running
        else:
            running.cancel()
            await asyncio.wait([running])
        assert worker.stats.running == 0
