"""Injected parameters: providers make their values once per attempt or per worker, and clean up afterwards."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Annotated, Any

import pytest

from millrace import App, Context, Depends, InvalidInput, JobFailed, PayloadInvalid, testing
from millrace.app.handler.verdict import Abort
from millrace.testing import on_memory
from tests.narrowing import the
from tests.worker.stage import until

SEEN: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    SEEN.clear()


class Session:
    def __init__(self, job: str) -> None:
        self.job = job
        self.thread = threading.get_ident()


async def settings() -> dict[str, str]:
    SEEN.append("settings")
    return {"url": "db"}


async def session(ctx: Context, config: dict[str, str] = Depends(settings)) -> AsyncIterator[Session]:
    SEEN.append(f"open {config['url']}")
    try:
        yield Session(ctx.id)
    except LookupError as error:
        SEEN.append(f"rollback {error}")
        raise
    else:
        SEEN.append("commit")


def cursor(db: Annotated[Session, Depends(session)]) -> Iterator[str]:
    SEEN.append("cursor")
    yield f"cursor of {db.job}"
    SEEN.append("closed")


async def test_values_are_made_once_per_attempt_and_cleaned_up_in_reverse_order() -> None:
    app = App("memory://")

    @app.task
    async def work(
        number: int,
        db: Annotated[Session, Depends(session)],
        config: dict[str, str] = Depends(settings),
        *,
        c: str = Depends(cursor),
    ) -> str:
        SEEN.append("work")
        return f"{number} {db.job} {c} {config['url']}"

    async with app.worker():
        job = await work.options(id="a").enqueue(7)  # type: ignore[call-arg]
        assert await job.result(wait=30) == "7 a cursor of a db"
        assert the(await job.status()).args == {"number": 7}
    assert SEEN == ["settings", "open db", "cursor", "work", "closed", "commit"]


async def test_a_def_handler_gets_values_of_the_loop_and_of_its_own_thread() -> None:
    app = App("memory://")

    def connection(config: dict[str, str] = Depends(settings)) -> Iterator[Session]:
        yield Session(config["url"])
        SEEN.append(f"closed {threading.get_ident()}")

    @app.task
    def work(number: int, db: Session = Depends(connection), config: dict[str, str] = Depends(settings)) -> list[Any]:
        return [number, db.job, config["url"], db.thread == threading.get_ident(), threading.get_ident()]

    async with app.worker():
        *rest, thread = await work.call(7)
    assert rest == [7, "db", "db", True]
    assert ["settings", f"closed {thread}"] == SEEN
    assert thread != threading.get_ident()


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_exception_of_the_handler_reaches_the_providers_and_fails_the_attempt(is_async: bool) -> None:
    app = App("memory://")

    def outer() -> Iterator[int]:
        try:
            yield 1
        except LookupError as error:
            SEEN.append(f"outer {error}")
            raise

    def swallows(one: int = Depends(outer)) -> Iterator[int]:
        try:
            yield 1
        except LookupError:
            SEEN.append("swallowed")

    async def on_loop(db: Session = Depends(session), one: int = Depends(swallows)) -> None:
        raise LookupError("no row")

    def in_thread(db: Session = Depends(session), one: int = Depends(swallows)) -> None:
        raise LookupError("no row")

    task = app.task(max_attempts=1)(on_loop if is_async else in_thread)
    async with app.worker():
        with pytest.raises(JobFailed, match="LookupError: no row"):
            await task.call()
    assert SEEN[2:] == ["swallowed", "outer no row", "rollback no row"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_failing_provider_or_clean_up_fails_the_attempt_as_the_handler_would(is_async: bool) -> None:
    app = App("memory://")
    fails = {"before": 1, "after": 1}

    def provider() -> Iterator[int]:
        if fails["before"]:
            fails["before"] -= 1
            raise ConnectionError("before")
        yield 1
        if fails["after"]:
            fails["after"] -= 1
            raise ConnectionError("after")

    async def on_loop(one: int = Depends(provider)) -> int:
        return one

    def in_thread(one: int = Depends(provider)) -> int:
        return one

    task = app.task(retry=[0])(on_loop if is_async else in_thread)
    async with app.worker():
        job = await task.enqueue()
        assert await job.result(wait=30) == 1
    assert [the(one.error).message for one in the(await job.status()).attempts] == ["before", "after"]


async def test_a_value_of_a_worker_is_made_once_shared_by_its_jobs_and_cleaned_up_at_its_end() -> None:
    app = App("memory://")
    fails = [True]

    async def pool() -> AsyncIterator[list[str]]:
        task = asyncio.current_task()
        if fails:
            fails.pop()
            raise ConnectionError("not yet")
        SEEN.append("pool")
        yield []
        assert asyncio.current_task() is task
        SEEN.append("pool closed")

    def model(pool: list[str] = Depends(pool, scope="worker")) -> Iterator[list[str]]:
        SEEN.append("model")
        yield pool
        SEEN.append("model closed")

    @app.lifespan
    async def lifespan() -> AsyncIterator[None]:
        yield
        SEEN.append("lifespan ends")

    @app.task(retry=[0])
    async def work(
        pool: list[str] = Depends(pool, scope="worker"), m: list[str] = Depends(model, scope="worker")
    ) -> bool:
        pool.append("job")
        return pool is m

    @app.task(retry=[0])
    def in_thread(m: list[str] = Depends(model, scope="worker")) -> int:
        return len(m)

    async with app.worker(slots=2):
        assert all(await asyncio.gather(*(work.call() for _ in range(5))))
        assert await in_thread.call() == 5
    assert SEEN == ["pool", "model", "model closed", "pool closed", "lifespan ends"]


async def test_a_provider_of_a_worker_does_not_see_the_context_variables_of_the_job_that_needs_it_first() -> None:
    app = App("memory://")
    of_job = ContextVar("of_job", default="unset")

    def value() -> str:
        return of_job.get()

    async def setter() -> str:
        of_job.set("set")
        return "set"

    @app.task
    async def work(first: str = Depends(setter), second: str = Depends(value, scope="worker")) -> list[str]:
        return [first, of_job.get(), second]

    async with app.worker():
        assert await work.call() == ["set", "set", "unset"]


async def test_a_provider_of_a_worker_that_awaits_something_cancelled_fails_the_attempt_only() -> None:
    app = App("memory://")
    awaited: list[asyncio.Future[None]] = []

    async def pool() -> str:
        if not awaited:
            awaited.append(asyncio.get_running_loop().create_future())
            awaited[0].cancel()
            await awaited[0]
        return "pool"

    @app.task(retry=[0], timeout=60)
    async def work(pool: str = Depends(pool, scope="worker")) -> str:
        return pool

    async with app.worker():
        job = await work.enqueue()
        assert await job.result(wait=30) == "pool"
    assert [the(one.error).type for one in the(await job.status()).attempts] == ["CancelledError"]


class Client:
    async def __call__(self) -> int:
        return 5


class Pages:
    def __call__(self) -> Iterator[int]:
        yield 5


class Events:
    async def __call__(self) -> AsyncIterator[int]:
        yield 5


@pytest.mark.parametrize("scope", ["job", "worker"])
@pytest.mark.parametrize("kind", [Client, Pages, Events])
async def test_a_class_makes_its_instance_whatever_calling_the_instance_does(kind: type, scope: Any) -> None:
    app = App("memory://")
    partial, instance = functools.partial(kind), kind()

    @app.task
    async def work(
        one: Any = Depends(kind, scope=scope),
        same: Any = Depends(partial, scope=scope),
        called: Any = Depends(instance, scope=scope),
    ) -> list[str]:
        return [type(one).__name__, type(same).__name__, str(called)]

    async with app.worker():
        assert await work.call() == [kind.__name__, kind.__name__, "5"]


class Stopped(BaseException):
    """Like the timeout of gevent, this is no Exception."""


def _next_of_nothing() -> str:
    return next(iter(list[str]()))


async def _awaits_nothing() -> str:
    return _next_of_nothing()


def _yields_nothing() -> Iterator[str]:
    yield _next_of_nothing()


async def _awaits_and_yields_nothing() -> AsyncIterator[str]:
    yield _next_of_nothing()


def _is_stopped() -> str:
    raise Stopped("Stopped")


async def _awaits_and_is_stopped() -> str:
    raise Stopped("Stopped")


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("scope", ["job", "worker"])
@pytest.mark.parametrize(
    "provider",
    [
        _next_of_nothing,
        _awaits_nothing,
        _yields_nothing,
        _awaits_and_yields_nothing,
        _is_stopped,
        _awaits_and_is_stopped,
    ],
)
async def test_what_no_future_or_coroutine_can_raise_fails_the_attempt_only(
    provider: Callable[[], Any], scope: Any, is_async: bool
) -> None:
    app = App("memory://")

    def healthy() -> str:
        return "healthy"

    async def on_loop(value: str = Depends(provider, scope=scope)) -> None: ...

    def in_thread(value: str = Depends(provider, scope=scope)) -> None: ...

    @app.task
    async def after(value: str = Depends(healthy, scope="worker")) -> str:
        return value

    task = app.task(max_attempts=1, timeout=20)(on_loop if is_async else in_thread)
    async with app.worker():
        for _ in range(2):  # the next job tries again
            with pytest.raises(JobFailed, match="StopIteration|Stopped"):
                await (await task.enqueue()).result(wait=30)
        assert await (await after.enqueue()).result(wait=30) == "healthy"


@pytest.mark.parametrize("is_async", [True, False])
def test_a_provider_or_handler_that_raises_stop_iteration_ends_a_rehearsal(is_async: bool) -> None:
    app = App("memory://")

    async def on_loop(value: str = Depends(_next_of_nothing, scope="worker")) -> None: ...

    def in_thread(one: int = Depends(lambda: 1)) -> None:
        _next_of_nothing()

    with pytest.raises(RuntimeError, match="StopIteration"):
        testing.run_sync(app.task(on_loop if is_async else in_thread))


@pytest.mark.parametrize("limit", ["timeout", "middleware"])
async def test_a_provider_is_not_closed_before_a_handler_that_outlives_its_time(limit: str) -> None:
    app = App("memory://")
    release, closed = threading.Event(), asyncio.Event()
    ended: list[bool] = []

    async def connection() -> AsyncIterator[asyncio.Event]:
        try:
            yield closed
        finally:
            closed.set()

    @app.middleware
    async def layer(ctx: Context, call_next: Callable[[], Any]) -> Any:
        calling = asyncio.ensure_future(call_next())
        if limit == "middleware":
            await until(lambda: SEEN)
            calling.cancel()
        return await calling

    @app.task(timeout=3600, max_attempts=1)
    def work(connection: asyncio.Event = Depends(connection)) -> None:
        SEEN.append("work")
        release.wait(60)
        ended.append(connection.is_set())

    async with app.worker(grace=0.01) as worker:
        job = await work.enqueue()
        await until(lambda: SEEN)
        if limit == "timeout":
            executor = the(worker._components).executor
            executor.abort(executor.in_slots[0], Abort.TIMEOUT)
            with pytest.raises(JobFailed, match="timeout"):
                await job.result(wait=60)
            assert worker.stats.zombies == 1
        await asyncio.sleep(0.05)  # for the clean-up, if it did not wait
        assert not closed.is_set()
        release.set()
        with pytest.raises(JobFailed):
            await job.result(wait=60)
        await until(lambda: closed.is_set() and worker.stats.zombies == 0)
    assert ended == [False]


async def test_providers_of_tests_replace_those_of_the_app() -> None:
    app = App("memory://")

    @app.task
    async def work(db: Session = Depends(session), c: str = Depends(cursor)) -> str:
        return f"{db.job} {c}"

    def prefix() -> str:
        return "fake"

    def fake(ctx: Context, prefix: str = Depends(prefix)) -> Session:
        return Session(f"{prefix} {ctx.id}")

    with on_memory(app) as mill:
        app.dependency_overrides[session] = fake
        job = await work.options(id="a").enqueue()
        await mill.drain()
        assert mill.result(job) == "fake a cursor of fake a"
        assert await testing.run(work.options(id="b")) == "fake b cursor of fake b"
        mill.assert_enqueued(work, args={})
    assert app.dependency_overrides == {}
    assert (await testing.run(work.options(id="c"))) == "c cursor of c"


def test_a_test_without_an_event_loop_runs_providers_too() -> None:
    app = App("memory://")

    @app.task
    def work(number: int, c: str = Depends(cursor)) -> str:
        return f"{number} {c}"

    assert testing.run_sync(work.options(id="a"), 1) == "1 cursor of a"


async def test_injected_parameters_are_not_part_of_the_payload() -> None:
    app = App("memory://")

    @app.task
    async def work(db: Annotated[Session, Depends(session)], number: int, text: str = "a") -> None: ...

    assert work.spec(1, "b").payload == b'{"number":1,"text":"b"}'  # type: ignore[arg-type]
    with pytest.raises(PayloadInvalid, match="has no parameter 'db'; its parameters are: number, text"):
        work.spec(number=1, db=Session("a"))
    [first] = await work.enqueue_many([(1,)])
    assert the(await first.status()).args == {"number": 1}


async def test_pools_and_middleware_work_with_injected_parameters() -> None:
    app = App("memory://")

    def by_number(number: int) -> str:
        return str(number)

    @app.middleware
    async def layer(ctx: Context, call_next: Callable[[], Any]) -> Any:
        SEEN.append("layer")
        try:
            return await call_next()
        finally:
            SEEN.append("layer ends")

    @app.pool("orders", lanes=2, partition_by=by_number)
    async def handle(number: int, db: Session = Depends(session)) -> str:
        return db.job

    async with app.worker():
        assert await handle.options(id="a").call(7) == "a"
    assert SEEN == ["layer", "settings", "open db", "commit", "layer ends"]


class TestRefusals:
    """What cannot work is refused when the task is declared."""

    def declare(self, provider: Callable[..., Any], scope: Any = "job") -> None:
        async def work(value: Any = Depends(provider, scope=scope)) -> None: ...

        App("memory://").task(work)

    def test_a_parameter_of_a_provider_that_nothing_makes(self) -> None:
        def provider(size: int) -> int:
            return size

        with pytest.raises(InvalidInput, match="provider provider: nothing makes its parameter 'size'"):
            self.declare(provider)

    def test_a_cycle(self) -> None:
        def one(value: Any = None) -> None: ...
        def two(value: Any = Depends(one)) -> None: ...

        one.__defaults__ = (Depends(two),)
        with pytest.raises(InvalidInput, match="in a cycle: one -> two -> one"):
            self.declare(one)

    def test_a_provider_of_a_worker_that_needs_a_job(self) -> None:
        def of_job(ctx: Context) -> str:
            return ctx.id

        def of_worker(job: str = Depends(of_job)) -> str:
            return job

        with pytest.raises(InvalidInput, match="cannot take a Context"):
            self.declare(of_job, "worker")
        with pytest.raises(InvalidInput, match=r"it cannot use .*of_job, which is made for each job"):
            self.declare(of_worker, "worker")

    def test_a_mark_that_is_none(self) -> None:
        with pytest.raises(InvalidInput, match="Depends takes a function"):
            Depends(1)  # type: ignore[call-overload]
        with pytest.raises(InvalidInput, match="the scope of a provider"):
            Depends(session, scope="request")  # type: ignore[call-overload]

    def test_two_scopes_of_one_provider(self) -> None:
        async def work(a: Any = Depends(settings), b: Any = Depends(settings, scope="worker")) -> None: ...

        with pytest.raises(InvalidInput, match="settings has two scopes"):
            App("memory://").task(work)
