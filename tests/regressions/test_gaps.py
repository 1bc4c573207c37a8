"""What no design had (X1 … X5): fencing for side effects, limits on names and sizes, versions, bad clocks and disks."""

from __future__ import annotations

import asyncio

from millrace import App, Context


async def test_x1_a_handler_sees_its_fence(store, clock):
    app = App(store)
    seen = []

    @app.task(retry=[0])
    async def writes(ctx: Context) -> None:
        seen.append(ctx.fence)
        if len(seen) < 3:
            raise ConnectionError("again")

    await writes.enqueue()
    await app.worker(burst=True).run(handle_signals=False)

    assert len(set(seen)) == 3
    assert seen == sorted(seen)


async def test_x4_a_run_names_its_worker_and_the_worker_its_code_version(store, clock):
    app = App(store)
    versions: list[tuple[str, str]] = []

    @app.task(max_attempts=1)
    async def fails() -> None:
        while not (known := await store.workers()):  # its first beat may still be on the way
            await asyncio.sleep(0.005)
        versions.extend((record.info.id, record.info.version) for record in known)
        raise ValueError("in this very version")

    job = await fails.enqueue()
    worker = app.worker(burst=True, version="2030.1-abc")
    await worker.run(handle_signals=False)

    [record] = await store.get([job.id])
    assert record is not None
    assert [attempt.worker for attempt in record.attempts] == [worker.id]
    assert worker.id.endswith("@2030.1-abc")  # so the history says it also when the worker's record is gone
    assert versions == [(worker.id, "2030.1-abc")]
