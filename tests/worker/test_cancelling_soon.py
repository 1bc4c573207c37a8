"""A cancel reaches its handler long before the next heartbeat, and progress is seen while the job runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from millrace import App, Context
from millrace.domain.request import Extension, Receipt
from tests.narrowing import the
from tests.servers import postgres, redis_server
from tests.worker.stage import Stage, virtual

DEADLINE = 100.0  # seconds: half of what a heartbeat would take
SOON = 10.0  # of a virtual clock
LEASE = "10m"  # heartbeats come every 200 s
PLACES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db",
    "directory": lambda folder: f"file://{folder}/jobs",
    "redis": redis_server.url_for,
    "postgres": postgres.url_for,
}


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("name", ["memory", *PLACES])
async def test_a_cancel_of_another_process_reaches_the_handler_at_once(tmp_path: Path, name: str, kind: str):
    app = App("memory://" if name == "memory" else PLACES[name](tmp_path))
    there = app if name == "memory" else App(PLACES[name](tmp_path))
    began, ended = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.task(lease=LEASE)
    async def coroutine() -> None:
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    @app.task(lease=LEASE)
    def thread(ctx: Context) -> None:
        loop.call_soon_threadsafe(began.set)
        ctx.cancelled.wait(600)
        loop.call_soon_threadsafe(ended.set)
        ctx.check()

    async with app, there, app.worker(slots=2):
        job = await (coroutine.enqueue() if kind == "coroutine" else thread.enqueue())
        await asyncio.wait_for(began.wait(), DEADLINE)
        assert list(await there.jobs.cancel([job], running="request")) == ["requested"]
        await asyncio.wait_for(ended.wait(), DEADLINE)


@virtual
async def test_a_cancel_before_the_store_has_registered_the_wait_is_noticed_soon(stage: Stage) -> None:
    wait_for_cancel = stage.store.wait_for_cancel
    began = asyncio.Event()

    @stage.app.task(lease=LEASE)
    async def work() -> None:
        began.set()
        await asyncio.sleep(600)

    async def registered_late(worker: str, timeout: float) -> bool:
        if not began.is_set():  # the connection has to be opened first
            await asyncio.sleep(3)
        return await wait_for_cancel(worker, timeout)

    stage.store.wait_for_cancel = registered_late  # type: ignore[method-assign]
    async with stage.working():
        job = await work.enqueue()
        await asyncio.wait_for(began.wait(), DEADLINE)
        await stage.app.jobs.cancel(job, running="request")
        await stage.until(job.id, "cancelled", timeout=SOON)


@virtual
async def test_a_cancel_between_two_waits_is_noticed_soon(stage: Stage) -> None:
    wait_for_cancel = stage.store.wait_for_cancel
    between_waits = asyncio.Event()

    @stage.app.task(lease=LEASE)
    async def work() -> None:
        await asyncio.sleep(600)

    async def registered_a_moment_later(worker: str, timeout: float) -> bool:
        if asyncio.get_running_loop().time() - began_at > 50:
            between_waits.set()
            await asyncio.sleep(0.2)
        return await wait_for_cancel(worker, timeout)

    stage.store.wait_for_cancel = registered_a_moment_later  # type: ignore[method-assign]
    began_at = asyncio.get_running_loop().time()
    async with stage.working():
        job = await work.enqueue()
        await asyncio.wait_for(between_waits.wait(), 100)
        await stage.app.jobs.cancel(job, running="request")
        await stage.until(job.id, "cancelled", timeout=SOON)


@pytest.mark.parametrize("name", ["memory", *PLACES])
async def test_progress_is_seen_long_before_the_next_heartbeat(tmp_path: Path, name: str):
    app = App("memory://" if name == "memory" else PLACES[name](tmp_path))
    go_on = asyncio.Event()

    @app.task(lease=LEASE)
    async def work(ctx: Context) -> None:
        ctx.progress({"done": 1})
        await go_on.wait()

    async with app, app.worker():
        job = await work.enqueue()
        async with asyncio.timeout(DEADLINE):
            while the((await app.jobs.get([job]))[0]).progress is None:
                await asyncio.sleep(0.05)
        go_on.set()


@virtual
async def test_progress_is_written_at_most_once_a_second_and_for_all_handlers_together(stage: Stage) -> None:
    store = stage.store

    @stage.app.task(lease=LEASE)
    async def work(ctx: Context) -> None:
        for step in range(100):
            ctx.progress(step)
            await asyncio.sleep(0.1)

    writes: list[int] = []
    extend = store.extend

    async def counting(extensions: Sequence[Extension]) -> list[Receipt]:
        writes.append(sum(extension.progress is not None for extension in extensions))
        return await extend(extensions)

    store.extend = counting  # type: ignore[method-assign]
    async with stage.working(slots=3):
        jobs = [await work.enqueue() for _ in range(3)]
        await asyncio.sleep(5.05)
        seen = [msgspec.json.decode((await stage.job(job.id)).progress or b"-1") for job in jobs]
        written = list(writes)
        for job in jobs:
            await stage.until(job.id)

    assert all(step >= 38 for step in seen), seen
    assert 4 <= len(written) <= 6
    assert written.count(3) >= len(written) - 1


@virtual
async def test_without_progress_nothing_is_written_between_two_beats(stage: Stage) -> None:
    store = stage.store

    @stage.app.task(lease=LEASE)
    async def work(ctx: Context) -> None:
        ctx.progress("once")
        await asyncio.sleep(100)

    async with stage.working():
        job = await work.enqueue()
        await asyncio.sleep(50)
        assert store.calls.count("extend") == 1
        assert (await stage.job(job.id)).progress == b'"once"'
        await stage.until(job.id)


@virtual
async def test_progress_that_could_not_be_written_is_written_later(stage: Stage) -> None:
    store = stage.store

    @stage.app.task(lease=LEASE)
    async def work(ctx: Context) -> None:
        ctx.progress("kept")
        await asyncio.sleep(100)

    async with stage.working():
        store.failing["extend"] = OSError("away")
        job = await work.enqueue()
        await asyncio.sleep(5)
        assert (await stage.job(job.id)).progress is None
        del store.failing["extend"]
        await asyncio.sleep(5)
        assert (await stage.job(job.id)).progress == b'"kept"'
        await stage.until(job.id)


@virtual
async def test_a_store_that_cannot_say_who_cancelled_is_not_asked_without_pause(stage: Stage) -> None:
    asked = 0

    @stage.app.task
    async def work() -> None: ...

    async def broken(worker: str, timeout: float) -> bool:
        nonlocal asked
        asked += 1
        raise OSError("away")

    stage.store.wait_for_cancel = broken  # type: ignore[method-assign]
    async with stage.working():
        await asyncio.sleep(60)

    assert asked < 60
