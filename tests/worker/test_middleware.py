"""Middleware: an onion around each attempt (L-10), and nothing that it does can harm a lease."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from millrace import App, Bury, Context, InvalidInput, JobFailed, Retry, Snooze, State
from millrace.domain.event import Kind
from millrace.worker import components
from millrace.worker.executor import Executor
from millrace.worker.process.remote import ProcessDied, RemoteError
from millrace.worker.run import Run
from tests.worker.process import handlers
from tests.worker.stage import Stage, until, virtual

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


def layer(name: str, seen: list[str]) -> Any:
    async def around(ctx: Context, call_next: Any) -> Any:
        seen.append(f"{name} before")
        try:
            return await call_next()
        finally:
            seen.append(f"{name} after")

    return around


@virtual
async def test_the_first_layer_is_the_outermost_then_the_workers_then_the_tasks_own(stage: Stage):
    seen: list[str] = []
    stage.app.middleware(layer("app one", seen))
    stage.app.middleware(layer("app two", seen))

    @stage.app.task(middleware=[layer("task", seen)])
    async def work() -> str:
        seen.append("work")
        return "done"

    job = await work.enqueue()
    await stage.burst(middleware=[layer("worker", seen)])

    assert (await stage.job(job.id)).result == b'"done"'
    order = ["app one", "app two", "worker", "task"]
    assert seen == [f"{name} before" for name in order] + ["work"] + [f"{name} after" for name in reversed(order)]


@virtual
async def test_a_task_may_leave_out_the_layers_of_app_and_worker(stage: Stage):
    seen: list[str] = []
    stage.app.middleware(layer("app", seen))

    @stage.app.task(middleware=[layer("own", seen)], inherit_middleware=False)
    async def own() -> None: ...

    @stage.app.task(inherit_middleware=False)
    async def bare() -> None: ...

    await own.enqueue()
    await bare.enqueue()
    worker = await stage.burst(middleware=[layer("worker", seen)])

    assert seen == ["own before", "own after"]
    assert worker.stats.completed == 2


async def test_context_variables_set_by_a_layer_are_seen_by_handlers_and_do_not_leak():
    stage = Stage()

    @stage.app.middleware
    async def tenant(ctx: Context, call_next: Any) -> Any:
        token = TENANT.set(ctx.headers["tenant"])
        try:
            return await call_next()
        finally:
            TENANT.reset(token)

    @stage.app.task
    async def on_loop() -> str:
        await asyncio.sleep(0.01)
        return TENANT.get()

    @stage.app.task
    def in_thread() -> str:
        assert threading.current_thread() is not threading.main_thread()
        return TENANT.get()

    async with stage.working():
        calls = [
            task.options(headers={"tenant": f"{task.name} {n}"}).call() for task in (on_loop, in_thread) for n in (1, 2)
        ]
        answers = await asyncio.gather(*calls)

    assert answers == ["on_loop 1", "on_loop 2", "in_thread 1", "in_thread 2"]
    assert TENANT.get() == "nobody"


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_a_layer_may_replace_results_and_errors(kind: str):
    stage = Stage()

    @stage.app.middleware
    async def replace(ctx: Context, call_next: Any) -> Any:
        if ctx.task == "skipped":
            return "not run at all"
        try:
            return await call_next() + 100
        except Exception as error:
            if ctx.task == "fails":
                raise Bury(f"given up: {type(error).__name__}") from error
            return -1

    async def add(a: int, b: int = 1) -> int:
        return a + b

    def add_in_thread(a: int, b: int = 1) -> int:
        return a + b

    async def fail(text: str) -> Any:
        raise LookupError(text)

    nothing: dict[str, int] = {}
    good, bad = {
        "async": (add, fail),
        "thread": (add_in_thread, lambda text: nothing[text]),
        "process": (handlers.add, handlers.fail),
    }[kind]
    options: dict[str, Any] = {"process": kind == "process"}
    task = stage.app.task
    right = task(name="right", **options)(good)
    fails = task(name="fails", **options)(bad)
    skipped = task(name="skipped", **options)(bad)
    mended = task(name="mended", **options)(bad)

    async with stage.working(processes=1):
        assert await right.call(1, b=2) == 103
        assert await skipped.call("x") == "not run at all"
        assert await mended.call("x") == -1
        job = await stage.until((await fails.enqueue("x")).id)

    error = {"async": "LookupError", "thread": "KeyError", "process": "RemoteError"}[kind]
    assert (job.state, job.reason) == (State.DEAD, "explicit_fail")
    assert job.error is not None and job.error.message == f"given up: {error}"


@pytest.mark.parametrize("process", [False, True])
async def test_verdicts_pass_through_layers_as_themselves(process: bool):
    stage = Stage()
    seen: list[type] = []

    @stage.app.middleware
    async def look(ctx: Context, call_next: Any) -> Any:
        try:
            return await call_next()
        except Exception as error:
            seen.extend(kind for kind in (Retry, Snooze, Bury) if isinstance(error, kind))
            raise

    verdict = stage.app.task(process=process)(handlers.verdict)
    answers = [await verdict.enqueue(which) for which in ("retry", "snooze", "bury")]
    await stage.burst(slots=1, processes=1)
    retried, snoozed, buried = [await stage.job(answer.id) for answer in answers]

    assert seen == [Retry, Snooze, Bury]
    assert (retried.failures, snoozed.snoozes, buried.reason) == (1, 1, "explicit_fail")
    assert retried.available_at - await stage.store.now() > 5_000


async def test_a_layer_sees_errors_and_deaths_of_another_process():
    stage = Stage()
    seen: list[BaseException] = []

    @stage.app.middleware
    async def look(ctx: Context, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException as error:
            seen.append(error)
            raise

    fail = stage.app.task(process=True, max_attempts=1)(handlers.fail)
    leave = stage.app.task(process=True, max_attempts=1)(handlers.leave)
    async with stage.working(slots=1, processes=1):
        with pytest.raises(JobFailed, match="LookupError: gone"):
            await fail.call("gone")
        with pytest.raises(JobFailed, match="exited with code 9"):
            await leave.call(9)

    raised, died = seen
    assert isinstance(raised, RemoteError) and raised.failure.type == "LookupError"
    assert isinstance(died, ProcessDied) and died.death.code == 9


@virtual
async def test_a_payload_that_does_not_fit_is_seen_by_layers_and_buried(stage: Stage):
    from millrace import PayloadInvalid, Spec

    seen: list[str] = []

    @stage.app.middleware
    async def look(ctx: Context, call_next: Any) -> Any:
        try:
            return await call_next()
        except PayloadInvalid as error:
            seen.append(str(error))
            raise

    @stage.app.task
    async def work(n: int) -> None: ...

    await stage.store.enqueue([Spec("odd", "work", payload=b'{"n": "text"}')])
    await stage.burst()

    job = await stage.job("odd")
    assert (job.state, job.reason) == (State.DEAD, "payload_invalid")
    assert "parameter 'n'" in seen[0]


@virtual
async def test_the_timeout_counts_for_layers_too(stage: Stage):
    @stage.app.middleware
    async def slow(ctx: Context, call_next: Any) -> Any:
        await asyncio.sleep(1_000)
        return await call_next()

    @stage.app.task(timeout=5, max_attempts=1)
    async def work() -> None: ...

    job = await work.enqueue()
    await stage.burst()

    assert (await stage.job(job.id)).reason == "timeout"


@virtual
async def test_a_layer_cannot_pass_off_a_run_that_timed_out_as_a_success(stage: Stage):
    @stage.app.middleware
    async def swallow(ctx: Context, call_next: Any) -> Any:
        try:
            return await call_next()
        except BaseException:
            return "all is well"

    @stage.app.task(timeout=5, max_attempts=1)
    async def work() -> None:
        await asyncio.sleep(100)

    job = await work.enqueue()
    await stage.burst()

    assert (await stage.job(job.id)).reason == "timeout"


@virtual
async def test_a_stop_gives_back_what_runs_inside_layers(stage: Stage):
    seen: list[str] = []
    stage.app.middleware(layer("outer", seen))

    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(1_000)

    job = await work.enqueue()
    async with stage.working() as worker:
        await until(lambda: worker.stats.running == 1)
        await asyncio.sleep(1)
        await worker.stop(deadline=1)

    released = await stage.job(job.id)
    assert (released.state, released.failures, released.releases) == (State.WAITING, 0, 1)
    assert (await stage.kinds(job.id))[-1] is Kind.RELEASED
    assert seen == ["outer before", "outer after"]


@virtual
async def test_what_inside_is_called_twice_fails_the_attempt(stage: Stage):
    runs: list[int] = []

    @stage.app.middleware
    async def twice(ctx: Context, call_next: Any) -> Any:
        await call_next()
        return await call_next()

    @stage.app.task(max_attempts=1)
    async def work() -> None:
        runs.append(1)

    job = await work.enqueue()
    await stage.burst()

    dead = await stage.job(job.id)
    assert dead.error is not None and "an attempt happens once" in dead.error.message
    assert runs == [1]


async def test_a_thread_inside_layers_is_told_to_stop_and_a_deaf_one_is_counted():
    stage = Stage()
    stage.app.middleware(layer("outer", []))
    let_go = threading.Event()

    @stage.app.task(timeout=0.2, max_attempts=1)
    def listens(ctx: Context) -> None:
        ctx.cancelled.wait(60)
        ctx.check()

    @stage.app.task(timeout=0.2, max_attempts=1)
    def deaf() -> None:
        let_go.wait(60)

    @stage.app.task
    def fine() -> str:
        return "fine"

    async with stage.working(slots=1, threads=1, grace=60) as worker:
        polite = await stage.until((await listens.enqueue()).id)
        assert (polite.reason, worker.stats.zombies) == ("timeout", 0)
    async with stage.working(slots=1, threads=1, grace=0.1) as worker:
        rude = await stage.until((await deaf.enqueue()).id)
        assert (rude.reason, worker.stats.zombies, worker.stats.abandoned) == ("timeout", 1, 1)
        assert await fine.call() == "fine"  # another thread has taken its place
        let_go.set()
        await until(lambda: worker.stats.zombies == 0)
        assert await fine.call() == "fine"


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_generators_exit_is_an_error_like_any_other(in_thread: bool):
    """Raised by a handler, it does not mean that the attempt itself is being thrown away."""
    stage = Stage()
    stage.app.middleware(layer("outer", []))

    def leave() -> None:
        raise GeneratorExit("enough")

    async def leave_async() -> None:
        leave()

    answer = await stage.app.task(max_attempts=1)(leave if in_thread else leave_async).enqueue()
    async with asyncio.timeout(60):
        await stage.burst()

    error = (await stage.job(answer.id)).error
    assert error is not None and (error.type, error.message) == ("GeneratorExit", "enough")


async def test_a_thread_that_a_layer_no_longer_waits_for_is_counted_until_it_returns():
    stage = Stage()
    let_go = threading.Event()
    begun: list[str] = []

    @stage.app.middleware
    async def impatient(ctx: Context, call_next: Any) -> Any:
        async with asyncio.timeout(None) as limit:
            ending = asyncio.create_task(end_once_begun(limit))
            try:
                return await call_next()
            finally:
                ending.cancel()

    async def end_once_begun(limit: asyncio.Timeout) -> None:
        await until(lambda: begun)
        limit.reschedule(asyncio.get_running_loop().time())

    @stage.app.task(max_attempts=1)
    def slow(name: str) -> None:
        begun.append(name)
        let_go.wait(60)

    async with stage.working(slots=2, threads=1) as worker:
        first, second = [await slow.enqueue(name) for name in ("first", "second")]
        errors = [(await stage.until(one.id)).error for one in (first, second)]
        assert [error and error.type for error in errors] == ["TimeoutError", "TimeoutError"]
        assert (worker.stats.running, worker.stats.zombies > 0) == (0, True)
        let_go.set()
        await until(lambda: worker.stats.zombies == 0, 60)

    assert begun == ["first"]  # the second was given up before it had got a thread


async def test_a_process_inside_layers_is_stopped(tmp_path):
    stage = Stage()
    seen: list[str] = []
    stage.app.middleware(layer("outer", seen))
    tidy = stage.app.task(process=True, timeout=4, max_attempts=1)(handlers.tidy)

    async with stage.working():
        job = await stage.until((await tidy.enqueue(str(tmp_path / "note"))).id)

    assert (job.reason, (tmp_path / "note").read_text()) == ("timeout", "tidied up")
    assert seen == ["outer before", "outer after"]


@virtual
async def test_a_layer_and_the_handler_share_one_context(stage: Stage):
    @stage.app.middleware
    async def note(ctx: Context, call_next: Any) -> Any:
        result = await call_next()
        ctx.carry(follow.options(id="after").spec(result))
        return result

    @stage.app.task
    async def work(ctx: Context) -> int:
        ctx.carry(follow.options(id="within").spec(0))
        return ctx.attempt

    @stage.app.task(inherit_middleware=False)
    async def follow(n: int) -> int:
        return n

    await work.enqueue()
    await stage.burst()

    assert [(await stage.job(name)).result for name in ("within", "after")] == [b"0", b"1"]


def test_what_is_no_middleware_is_refused_by_name():
    app = App()

    with pytest.raises(InvalidInput, match="middleware must be `async def layer"):
        app.middleware(lambda ctx, call_next: call_next())
    with pytest.raises(InvalidInput, match="task 'work': middleware takes a list"):
        app.task(name="work", middleware=layer("alone", []))(lambda: None)
    with pytest.raises(InvalidInput, match="a worker's middleware"):
        app.worker(middleware=[3])  # type: ignore[list-item]
    assert app.tasks == {} and app.layers == []


@virtual
async def test_without_middleware_a_handler_is_called_directly(stage: Stage):
    """The fast path: there is no strategy, so nothing is looked up and nothing is wrapped."""

    @stage.app.task
    async def work() -> None: ...

    strategies: list[int] = []

    class Watched(Executor):
        def start(self, run: Run) -> None:
            strategies.append(len(self.strategies))
            super().start(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(components, "Executor", Watched)
        await work.enqueue()
        await stage.burst()

    assert strategies == [0]
