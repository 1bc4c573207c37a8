"""What was wrong in Queuert's worker (BL-01 … BL-10), and is not here: real workers on every store."""

from __future__ import annotations

import asyncio
from typing import Any

from millrace import App
from millrace.domain.request import Reclaim
from millrace.testing import FaultyStore, a_reclaim
from millrace.testing.conformance.scenes import show
from millrace.worker.dispatcher import ALONE_EVERY


async def burst(app: App, **options: Any) -> None:
    """A worker, until nothing is claimable now."""
    await app.worker(burst=True, **options).run(handle_signals=False)


async def test_bl_03_a_worker_alone_ends_its_own_hung_slot(store, clock):
    app = App(store)

    @app.task(timeout="50ms", max_attempts=1)
    async def hangs() -> None:
        await asyncio.Event().wait()

    job = await hangs.enqueue()
    async with asyncio.timeout(60):
        await burst(app)

    record = await show(store, job.id)
    assert (record.state, record.reason) == ("dead", "timeout")


class StuckReclaim(FaultyStore):
    """A store whose reclaim does not answer until it is let go."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    def for_loop(self) -> Any:
        other = self.store.for_loop()
        return self if other is self.store else other

    async def reclaim(self, request: Reclaim) -> list[Any]:
        self.asked.set()
        await self.go.wait()
        return await super().reclaim(request)


async def test_bl_06_reaping_does_not_delay_dispatch(store, clock):
    stuck = StuckReclaim(store)
    app = App(stuck)

    @app.task
    async def work(n: int) -> int:
        return n

    async with asyncio.timeout(60), app.worker(reap_interval=0.01):
        await stuck.asked.wait()
        try:
            assert await work.call(7) == 7
        finally:
            stuck.go.set()


async def test_bl_07_jobs_that_fail_together_do_not_come_back_together(store, clock):
    app = App(store)

    @app.task
    async def fails() -> None:
        raise RuntimeError("the other side is down")

    jobs = await fails.enqueue_many([{}] * 60)
    await burst(app, slots=60)

    records = await store.get([job.id for job in jobs])
    waits = [job.available_at - clock() for job in records if job is not None]
    assert all(750 <= wait <= 1_250 for wait in waits)
    assert len(set(waits)) > 20


async def test_bl_08_stopping_has_a_deadline_also_for_a_handler_that_will_not_end(store, clock):
    app = App(store)
    begun, free = asyncio.Event(), asyncio.Event()

    @app.task
    async def stubborn() -> None:
        begun.set()
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    job = await stubborn.enqueue()
    worker = app.worker(grace=0.05)
    running = asyncio.create_task(worker.run(handle_signals=False))
    try:
        async with asyncio.timeout(60):
            await begun.wait()
            await worker.stop(deadline=0.05)
            await running
        record = await show(store, job.id)
    finally:
        free.set()

    assert (record.state, record.failures, record.releases) == ("waiting", 0, 1)


async def test_bl_09_a_flood_in_one_queue_does_not_starve_another(store, clock):
    app = App(store)
    ran: list[str] = []

    @app.task(queue="loud", priority=9)
    async def shout() -> None:
        ran.append("shout")

    @app.task(queue="quiet")
    async def whisper() -> None:
        ran.append("whisper")

    await shout.enqueue_many([{}] * 100)
    await whisper.enqueue()
    await burst(app, slots=1)

    assert len(ran) == 101
    assert ran.index("whisper") <= 3 * ALONE_EVERY


async def test_bl_10_a_run_whose_lease_was_taken_over_is_aborted_without_any_notification(store, clock):
    app = App(store)
    begun, aborted = asyncio.Event(), asyncio.Event()

    @app.task
    async def holds() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            aborted.set()
            raise

    job = await holds.enqueue()
    async with asyncio.timeout(60), app.worker(beat_interval=0.02) as worker:
        await begun.wait()
        while not (taken := await store.reclaim(a_reclaim(worker="other"))):
            clock.advance(31)  # again, when a heartbeat came in between
        await aborted.wait()
        while worker.stats.running:
            await asyncio.sleep(0.005)

    record = await show(store, job.id)
    assert (record.state, record.lease_id) == ("running", taken[0].lease_id)  # the stale run changed nothing
    assert worker.stats.completed == 0
