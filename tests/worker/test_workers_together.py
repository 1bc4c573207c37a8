"""Several workers in one process: on one event loop, and on the loops of several threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from millrace import App, Context, State
from tests.worker.stage import Stage


def layer(name: str, seen: list[str]) -> Any:
    async def around(ctx: Context, call_next: Any) -> Any:
        seen.append(name)
        return await call_next()

    return around


async def test_workers_of_one_loop_have_their_own_layers_and_share_the_jobs():
    stage = Stage()
    seen: dict[str, list[str]] = {"one": [], "two": []}
    gate = asyncio.Event()

    @stage.app.task
    async def work() -> None:
        if not gate.is_set():
            gate.set()
            await asyncio.sleep(0.1)

    jobs = await work.enqueue_many([{}] * 30)
    workers = [stage.worker(slots=1, name=name, middleware=[layer(name, seen[name])], burst=True) for name in seen]
    await asyncio.gather(*(worker.run(handle_signals=False) for worker in workers))

    assert [(await stage.job(job.id)).attempt for job in jobs] == [1] * 30
    assert all(seen.values())
    assert sum(map(len, seen.values())) == 30
    assert sum(worker.stats.completed for worker in workers) == 30


async def test_workers_on_loops_of_several_threads_serve_one_app(tmp_path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    where: list[str] = []
    started, stopped = [], []
    app.on("worker_started", lambda event: started.append(event.worker))
    app.on("worker_stopped", lambda event: stopped.append(event.worker))

    @app.task
    async def work(n: int) -> int:
        where.append(threading.current_thread().name)
        await asyncio.sleep(0.005)
        return n

    async with app:
        jobs = await work.enqueue_many([{"n": n} for n in range(60)])

        def serve(name: str) -> None:
            async def main() -> None:
                async with app:
                    await app.worker(slots=2, name=name, burst=True).run()

            asyncio.run(main())

        threads = [threading.Thread(target=serve, args=(name,), name=name) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join, 30)
        found = await app.store.get([job.id for job in jobs])

    assert {job.state for job in found if job} == {State.COMPLETED}
    assert {job.attempt for job in found if job} == {1}
    assert len(where) == 60
    assert sorted(started) == sorted(stopped) == ["a", "b", "c"]
