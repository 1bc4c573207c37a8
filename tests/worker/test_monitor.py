"""Recovery and repair beside the jobs: by the monitor for a whole store, and by workers where the store wants it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

import pytest

from millrace import App, RetryPolicy, Spec, State
from millrace.domain.errors import StoreError
from millrace.domain.request import Claim, WorkerInfo
from millrace.store.object.memory import MemoryBlobs
from millrace.store.object.options import ObjectOptions
from millrace.store.object.store import ObjectStore
from millrace.store.sweep_report import Swept
from millrace.testing.clock import START
from millrace.worker.heartbeat import InlineHeartbeat
from millrace.worker.monitor import Monitor, MonitorReport, StaleWorkers, run_monitor
from tests.worker.stage import Stage, virtual

AT_ONCE = RetryPolicy(initial=0, jitter=0)
OPTIONS = ObjectOptions(look_every=0, feed_delay=0, lock_patience=1, listing_reuse=0, index_mode="index-only")


class WatchedObjects(ObjectStore):
    """Notes when it was swept."""

    def __init__(self, options: ObjectOptions = OPTIONS) -> None:
        loop = asyncio.get_running_loop()
        clock = lambda: START + round(loop.time() * 1000)  # noqa: E731
        self.memory = MemoryBlobs(clock=clock)
        self.sweeps: list[Swept] = []
        super().__init__(lambda: self.memory, clock=clock, options=options)

    async def sweep(self, limit: int | None = None, *, full: bool = False) -> Swept:
        swept = await super().sweep(limit, full=full)
        self.sweeps.append(swept)
        return swept

    async def lose_the_index(self) -> None:
        await self.memory.delete([key for key in self.memory._keys if key.startswith("ready/")])


async def monitored(store, seconds: float, **how) -> list[MonitorReport]:
    """Let a monitor run for so long; what it reported."""
    reports: list[MonitorReport] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await run_monitor(store, on_report=reports.append, chance=random.Random(1).random, **how)
    return reports


# ── the monitor ───────────────────────────────────────────────────────────────────────────────


@virtual
async def test_jobs_of_dead_workers_of_every_queue_and_task_come_back(stage: Stage):  # O-22
    await stage.store.enqueue([Spec(id=f"j{n}", task=f"t{n}", queue=f"q{n}", retry=AT_ONCE) for n in range(3)])
    await stage.store.claim(Claim(("q0", "q1", "q2"), "gone", 3, None, 5_000))

    reports = await monitored(stage.store, 40, check_interval=10)

    assert sum(report.recovered for report in reports) == 3
    jobs = [await stage.job(f"j{n}") for n in range(3)]
    assert {(job.state, job.stalls) for job in jobs} == {(State.WAITING, 1)}
    assert {report.swept for report in reports} == {None}  # a memory store has nothing to sweep


@virtual
async def test_upkeep_is_done_too(stage: Stage):
    await stage.store.enqueue([Spec(id="mortal", task="t", expires=5_000)])

    reports = await monitored(stage.store, 40, check_interval=10)

    assert sum(report.maintained.expired for report in reports) == 1
    assert (await stage.job("mortal")).reason == "ttl_expired"


@virtual
async def test_a_store_of_objects_is_swept_at_its_own_pace(stage: Stage):
    store = WatchedObjects()
    await store.connect()
    await store.enqueue([Spec(id="hidden", task="t")])
    await store.lose_the_index()

    reports = await monitored(store, 1_000, check_interval=10, sweep_interval=300)

    swept = [report.swept for report in reports if report.swept is not None]
    assert 3 <= len(swept) <= 6
    assert sum(one.index_restored for one in swept) == 1
    assert len(reports) > 60


@virtual
async def test_no_sweep_where_none_is_wanted(stage: Stage):
    store = WatchedObjects()
    await store.connect()

    reports = await monitored(store, 1_000, sweep_interval=0)

    assert store.sweeps == []
    assert len(reports) > 20


@virtual
async def test_a_store_that_is_away_is_asked_again(stage: Stage):
    stage.store.failing["reclaim"] = StoreError("it is away")
    monitor = Monitor(stage.store)
    away = await monitor.check()
    del stage.store.failing["reclaim"]

    assert away.failed == "StoreError: it is away"
    assert (await monitor.check()).failed is None


def test_a_silent_worker_is_reported_and_warned_about_once(caplog):
    @virtual
    async def story(stage: Stage) -> None:
        await stage.store.beat(WorkerInfo("quiet"), 1_000_000)
        stale = StaleWorkers(60)
        assert await stale.look(stage.store) == []
        await asyncio.sleep(61)
        for _ in range(3):
            assert [record.info.id for record in await stale.look(stage.store)] == ["quiet"]
        assert len(caplog.records) == 1
        await stage.store.beat(WorkerInfo("quiet"), 1_000_000)
        assert await stale.look(stage.store) == []
        await asyncio.sleep(61)
        await stale.look(stage.store)
        assert len(caplog.records) == 2

    with caplog.at_level(logging.WARNING, logger="millrace.monitor"):
        story()


@virtual
async def test_stale_workers_stand_in_the_report(stage: Stage):
    await stage.store.beat(WorkerInfo("quiet"), 1_000)

    reports = await monitored(stage.store, 100, check_interval=10, worker_health_threshold=30)

    assert [report.stale_workers for report in reports[:2]] == [(), ()]
    assert reports[-1].stale_workers == ("quiet",)


# ── the worker ────────────────────────────────────────────────────────────────────────────────


async def working_for(store: ObjectStore, seconds: float, **options) -> App:
    app = App(store)

    @app.task
    async def work() -> None: ...

    async with app.worker(
        heartbeat=InlineHeartbeat, chance=random.Random(1).random, poll_max=5.0, queues=["default"], **options
    ):
        await asyncio.sleep(seconds)
    return app


@virtual
async def test_a_worker_sweeps_beside_its_jobs(stage: Stage):
    store = WatchedObjects()
    await store.connect()
    await store.enqueue([Spec(id="hidden", task="work")])
    await store.lose_the_index()

    await working_for(store, 700)

    assert len(store.sweeps) >= 2
    assert sum(swept.index_restored for swept in store.sweeps) == 1
    [job] = await store.get(["hidden"])
    assert job is not None
    assert job.attempt == 1  # it was found, and run


@virtual
async def test_not_where_it_was_told_otherwise(stage: Stage):
    for options, worker in (
        (ObjectOptions(monitor=False, index_mode="index-only"), {}),
        (ObjectOptions(monitor_sweep_interval=0, index_mode="index-only"), {}),
        (OPTIONS, {"sweep_interval": 0}),
        (OPTIONS, {"monitor": False}),
    ):
        store = WatchedObjects(options)
        await store.connect()
        await working_for(store, 700, **worker)
        assert store.sweeps == []


@virtual
async def test_a_worker_that_does_not_monitor_recovers_nothing_either(stage: Stage):
    @stage.app.task(retry=AT_ONCE)
    async def work() -> None: ...

    await work.enqueue()
    await stage.store.claim(Claim(("default",), "gone", 1, None, 5_000))
    async with stage.working(monitor=False):
        await asyncio.sleep(100)

    assert "reclaim" not in stage.store.calls


@pytest.mark.parametrize("option", ["sweep_interval", "monitor"])
def test_the_options_are_known_by_name(option):
    from millrace.worker.options import WorkerKeywords

    assert option in WorkerKeywords.__annotations__
