"""The app's lifespan: entered before the first job is claimed, left after the last has ended, and waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from millrace import App, Context, InvalidInput, LifespanFailed, Worker, testing
from millrace.testing import on_memory
from millrace.worker.scope import WorkerScope
from tests.narrowing import the


class Stage:
    """An app whose lifespan and handlers note what happens."""

    def __init__(self) -> None:
        self.app = App("memory://")
        self.seen: list[str] = []
        self.may_start = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_start.set()
        self.may_end.set()
        app, seen = self.app, self.seen

        @app.lifespan
        async def lifespan() -> AsyncIterator[dict[str, int]]:
            seen.append("starts")
            await self.may_start.wait()
            task = asyncio.current_task()
            try:
                yield {"jobs": 0}
            finally:
                assert asyncio.current_task() is task
                seen.append("ends")
                await self.may_end.wait()
                seen.append("ended")

        @app.task
        async def on_loop(ctx: Context) -> int:
            ctx.state["jobs"] += 1
            seen.append("job")
            return int(ctx.state["jobs"])

        @app.task
        def in_thread(ctx: Context) -> int:
            ctx.state["jobs"] += 10
            seen.append("job")
            return int(ctx.state["jobs"])

        self.on_loop, self.in_thread = on_loop, in_thread


async def test_it_surrounds_all_jobs_and_its_value_is_the_state_of_each() -> None:
    stage = Stage()
    jobs = [await stage.on_loop.enqueue(), await stage.in_thread.enqueue()]
    async with stage.app.worker(slots=1):
        assert sorted([await job.result(wait=30) for job in jobs]) in ([1, 11], [10, 11])
    assert stage.seen == ["starts", "job", "job", "ends", "ended"]


async def test_entering_the_block_of_a_worker_waits_for_the_start_up() -> None:
    stage = Stage()
    stage.may_start.clear()
    job = await stage.on_loop.enqueue()
    worker = stage.app.worker()
    entering = asyncio.ensure_future(worker.__aenter__())
    while stage.seen != ["starts"]:
        await asyncio.sleep(0)
    assert (the(await job.status()).state, entering.done()) == ("ready", False)
    stage.may_start.set()
    await entering
    await job.result(wait=30)
    await worker.stop()


async def test_a_worker_has_stopped_only_when_the_clean_up_has_ended() -> None:
    stage = Stage()
    stage.may_end.clear()
    async with stage.app.worker() as worker:
        stopping = asyncio.ensure_future(worker.stop())
        while "ends" not in stage.seen:
            await asyncio.sleep(0.001)
        assert not stopping.done()
        stage.may_end.set()
        await stopping
    assert stage.seen == ["starts", "ends", "ended"]


async def test_a_clean_up_that_hangs_is_cancelled_after_the_grace_period_of_a_hurried_stop() -> None:
    stage = Stage()
    stage.may_end.clear()
    async with stage.app.worker(grace=0.01) as worker:
        await worker.stop(0)
    assert stage.seen == ["starts", "ends"]


async def test_a_stop_during_the_start_up_cancels_it() -> None:
    stage = Stage()
    stage.may_start.clear()
    worker = stage.app.worker()
    running = asyncio.ensure_future(worker.run())
    while stage.seen != ["starts"]:
        await asyncio.sleep(0)
    await worker.stop()
    await running
    assert stage.seen == ["starts"]


async def test_every_worker_has_its_own() -> None:
    stage = Stage()
    async with stage.app.worker(), stage.app.worker():
        assert stage.seen == ["starts", "starts"]
    assert sorted(stage.seen) == ["ended", "ended", "ends", "ends", "starts", "starts"]


def failing(*, at_start: bool) -> App:
    app = App("memory://")

    @app.lifespan
    async def lifespan() -> AsyncIterator[None]:
        if at_start:
            raise ConnectionError("no database")
        yield
        raise ConnectionError("cannot close")

    @app.task
    async def work() -> None: ...

    return app


async def test_a_failing_start_up_stops_the_worker_before_it_claims_a_job(caplog: pytest.LogCaptureFixture) -> None:
    app = failing(at_start=True)
    [job] = await app.enqueue([app.tasks["work"].spec()])
    for attempt in (app.worker().run(), app.worker().__aenter__()):
        caplog.clear()
        with pytest.raises(
            LifespanFailed, match="at start-up: ConnectionError: no database. .*claimed no job"
        ) as failed:
            await attempt
        assert isinstance(failed.value.__cause__, ConnectionError)
        [record] = [one for one in caplog.records if one.levelno >= logging.ERROR]
        assert record.exc_info
    assert the(await job.status()).attempt == 0


async def test_a_failing_shutdown_is_logged_and_raised(caplog: pytest.LogCaptureFixture) -> None:
    app = failing(at_start=False)
    with pytest.raises(LifespanFailed, match="at shutdown: ConnectionError: cannot close"):
        async with app.worker():
            await app.tasks["work"].call()
    assert "the clean-up of the app's lifespan failed" in caplog.text


async def test_it_may_be_any_async_context_manager() -> None:
    app = App("memory://")

    @app.lifespan
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        yield "managed"

    @app.task
    async def state(ctx: Context) -> str:
        return str(ctx.state)

    async with app.worker():
        assert await state.call() == "managed"


async def test_tests_enter_it_too() -> None:
    stage = Stage()
    assert await testing.run(stage.on_loop) == 1
    assert await testing.run(stage.in_thread) == 10
    with on_memory(stage.app) as mill:
        job = await stage.on_loop.enqueue()
        await mill.drain()
        assert mill.result(job) == 1
    assert stage.seen == ["starts", "job", "ends", "ended"] * 3


def test_tests_without_an_event_loop_enter_it_too() -> None:
    stage = Stage()
    assert testing.run_sync(stage.in_thread) == 10


async def test_the_state_of_an_app_without_a_lifespan_says_what_is_missing() -> None:
    app = App("memory://")

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        ctx.state  # noqa: B018

    with pytest.raises(InvalidInput, match=r"the app has none: add @app\.lifespan"):
        await testing.run(work)


def test_a_lifespan_must_be_one_async_context_manager_without_parameters() -> None:
    app = App("memory://")

    async def no_yield() -> None: ...
    async def with_parameter(app: App) -> AsyncIterator[None]:
        yield

    with pytest.raises(InvalidInput, match="one `yield`"):
        app.lifespan(no_yield)  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match="remove 'app'"):
        app.lifespan(with_parameter)  # type: ignore[type-var]
    stage = Stage()
    with pytest.raises(InvalidInput, match="has a lifespan already"):
        stage.app.lifespan(asynccontextmanager(with_parameter))  # type: ignore[type-var]


def test_a_lifespan_registered_within_on_memory_is_removed_at_its_end() -> None:
    app = App("memory://")
    with on_memory(app):

        @app.lifespan
        async def lifespan() -> AsyncIterator[None]:
            yield

    assert app.lifespan_factory is None
    assert isinstance(app.worker("default"), Worker)


class Crashing:
    """An app whose lifespan has a background task that fails on request, and a handler that waits for its end."""

    def __init__(self) -> None:
        self.app = App("memory://")
        self.crash, self.ended = asyncio.Event(), asyncio.Event()
        self.ran = 0

        async def refresh() -> None:
            await self.crash.wait()
            raise ConnectionError("no connection")

        @self.app.lifespan
        async def lifespan() -> AsyncIterator[str]:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(refresh())
                    yield "open"
            finally:
                self.ended.set()

        @self.app.task(max_attempts=1)
        async def work(ctx: Context) -> str:
            self.ran += 1
            self.crash.set()
            await self.ended.wait()
            return str(ctx.state)

        self.work = work


async def test_a_worker_stops_when_a_background_task_of_its_lifespan_fails(caplog: pytest.LogCaptureFixture) -> None:
    stage = Crashing()
    first, second = await stage.work.enqueue_many([(), ()])
    async with asyncio.timeout(60):
        with pytest.raises(LifespanFailed, match="failed while the worker was running: ConnectionError: no connection"):
            await stage.app.worker(slots=1).run()
    states = [the(await job.status()) for job in (first, second)]
    assert [(one.state, one.attempt) for one in states] == [("dead", 1), ("ready", 0)]
    assert the(states[0].error).type == "LifespanFailed"
    [record] = [one for one in caplog.records if one.levelno >= logging.ERROR and one.name == "millrace.worker"]
    assert "has ended before its worker; the worker stops" in record.getMessage()
    assert record.exc_info


async def test_a_request_for_a_shared_value_fails_when_the_scope_ends_before_it_is_answered() -> None:
    crash = asyncio.Event()

    async def fail() -> None:
        await crash.wait()
        raise ConnectionError("no connection")

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            yield

    async def never(stack: AsyncExitStack) -> None:
        crash.set()
        await asyncio.Event().wait()

    stops: list[bool] = []
    scope = WorkerScope(asyncio.get_running_loop().time, lifespan, lambda: stops.append(True))
    async with asyncio.timeout(60):
        assert await scope.enter()
        answers = await asyncio.gather(scope.shared("a", never), scope.shared("b", never), return_exceptions=True)
        assert [type(one) for one in answers] == [LifespanFailed, LifespanFailed]
        assert stops == [True]
        for late in (scope.shared("c", never), scope.leave()):
            with pytest.raises(LifespanFailed, match="ConnectionError: no connection"):
                await late


async def test_no_shared_value_is_made_after_the_worker_has_left_its_scope() -> None:
    async def value(stack: AsyncExitStack) -> int:
        return 7

    scope = WorkerScope(asyncio.get_running_loop().time)
    async with asyncio.timeout(60):
        assert await scope.shared("a", value) == 7
        leaving = asyncio.ensure_future(scope.leave())
        await asyncio.sleep(0)
        with pytest.raises(InvalidInput, match="the worker has stopped"):
            await scope.shared("b", value)
        await leaving

        scope = WorkerScope(asyncio.get_running_loop().time)
        asking = asyncio.ensure_future(scope.shared("a", value))
        await asyncio.sleep(0)
        await scope.leave()
        with pytest.raises(InvalidInput, match="the worker has stopped"):
            await asking
