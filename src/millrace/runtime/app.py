"""The app: a store, the tasks that its jobs name, and the ways in for producers, workers and operators."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from msgspec import UNSET, UnsetType

from millrace.domain.check import check_name
from millrace.domain.errors import InvalidInput, UnknownPool, UnknownTask
from millrace.domain.hints import meant
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued
from millrace.domain.settings import Limits
from millrace.runtime.bus import Bus, Listener, LocalKind
from millrace.runtime.connection import Connection
from millrace.runtime.crontab import Crontab
from millrace.runtime.duration import Duration
from millrace.runtime.feed import EventFeed
from millrace.runtime.jobs import Jobs
from millrace.runtime.joining import join
from millrace.runtime.options import TaskKeywords, read_task_options
from millrace.runtime.process import inside
from millrace.runtime.queue import LimitKeywords, Queue
from millrace.runtime.serde import Serde, Serdes
from millrace.runtime.task import FunctionTask, Task, default_name
from millrace.store.clock import Clock
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.runtime.batch_task import BatchDecorator, BatchTask
    from millrace.runtime.context import Context
    from millrace.runtime.frame_task import FrameDecorator
    from millrace.runtime.host import Middleware
    from millrace.runtime.on_spark import Drain, DrainKeywords
    from millrace.runtime.pool import PartitionBy, Pool
    from millrace.runtime.redaction import Redaction
    from millrace.runtime.sync import Sync
    from millrace.runtime.tracing import Tracing
    from millrace.runtime.worker import Worker
    from millrace.runtime.worker_options import WorkerKeywords

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound=Listener)
M = TypeVar("M", bound="Middleware")
I = TypeVar("I")  # noqa: E741
D = TypeVar("D")


class TaskDecorator(Protocol):
    """What `app.task(…)` returns when it is given options: it makes a task of a function."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> FunctionTask[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> FunctionTask[P, R, Concatenate[Context, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> FunctionTask[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionTask[P, R, P, R]: ...


class App(Crontab):
    """`App("sqlite:///jobs.db")`. Nothing is opened before the first use; `async with app:` closes it again.

    `serde` is the default for its tasks: "json", "msgpack", or an object of one's own. `serdes` are further ones
    that payloads may have been written with.
    """

    def __init__(
        self,
        store: str | Store = "memory://",
        *,
        serde: str | Serde = "json",
        serdes: Iterable[Serde] = (),
        clock: Clock | None = None,
    ) -> None:
        self._connection = Connection(store, clock)
        self.serdes = Serdes(serdes)
        self._serde = self.serdes.name(serde)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.layers: list[Middleware] = []
        self.plans = {}
        self.pools: dict[str, Pool] = {}
        self.bus = Bus()
        self.jobs = Jobs(self)

    @property
    def store(self) -> Store:
        return self._connection.store

    async def connected(self) -> Store:
        """The store, open, for the running event loop."""
        if inside.here:
            inside.refuse_connecting(self._connection)
        return await self._connection.connected()

    async def close(self) -> None:
        await self._connection.close()

    def use(self, store: str | Store) -> None:
        """Another store than the one it was made with. Say so before anything is opened: what was open stays open."""
        self._connection = Connection(store, None)

    async def __aenter__(self) -> Self:
        if inside.here:
            inside.refuse_connecting(self._connection)
        await self._connection.enter()
        try:
            for pool in self.pools.values():
                await pool.prepare()
        except BaseException:
            await self._connection.leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.leave()

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> FunctionTask[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...
    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> FunctionTask[P, R, Concatenate[Context, P], R]: ...
    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> FunctionTask[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> FunctionTask[P, R, P, R]: ...
    @overload
    def task(self, *, name: str | None = None, **options: Unpack[TaskKeywords]) -> TaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Register a function as a task: `@app.task`, or `@app.task(queue="mail", timeout=30)`.

        The name is the function's own unless given; it is stored in every job, so keep it when the function moves.
        """
        # mypy does not see that unpacked keywords fit **options, hence the ignore.
        if function is not None:
            return self._register(function, **options)
        return lambda function: self._register(function, **options)

    @overload
    def batch_task(
        self, function: Callable[[list[I]], Coroutine[Any, Any, D]], /
    ) -> BatchTask[[I], Any, [list[I]], Coroutine[Any, Any, D]]: ...
    @overload
    def batch_task(self, function: Callable[[list[I]], D], /) -> BatchTask[[I], Any, [list[I]], D]: ...
    @overload
    def batch_task(
        self, *, size: int = 100, linger: Duration = 0.05, name: str | None = None, **options: Unpack[TaskKeywords]
    ) -> BatchDecorator: ...
    @overload
    def batch_task(
        self,
        *,
        frame: Literal["arrow", "pandas"],
        row: Callable[P, Any],
        max_rows: int = 1_000,
        linger: Duration = 0.05,
        name: str | None = None,
        **options: Unpack[TaskKeywords],
    ) -> FrameDecorator[P]: ...
    @overload
    def batch_task(
        self,
        *,
        frame: Literal["arrow", "pandas"],
        row: Mapping[str, Any],
        max_rows: int = 1_000,
        linger: Duration = 0.05,
        name: str | None = None,
        **options: Unpack[TaskKeywords],
    ) -> FrameDecorator[...]: ...
    def batch_task(  # type: ignore[misc]
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        size: int | None = None,
        linger: Duration = 0.05,
        frame: str | None = None,
        row: object = None,
        max_rows: int | None = None,
        **options: Any,
    ) -> Any:
        """Register a function that takes a list of up to `size` items, each of them the payload of one job.

        Jobs are enqueued one by one (`task.enqueue(item)`), gather for `linger` seconds at most, and end each on its
        own: the handler answers a list with a result, an exception, Retry, Snooze or Bury for each, in order.

        With frame="arrow" or "pandas" it takes a table of up to `max_rows` jobs instead, with a column for each
        parameter that `row` declares (docs/batch-tasks.md).
        """
        if frame is None and (row is not None or max_rows is not None):
            raise InvalidInput('`row` and `max_rows` are for tables: say frame="arrow" or frame="pandas" too')
        if frame is not None and size is not None:
            raise InvalidInput("a table is bounded by its rows: say max_rows=… instead of size=…")

        def make(function: Callable[..., Any]) -> Any:
            if frame is not None:
                from millrace.runtime.frame_task import make_frame_task

                return make_frame_task(self._register, function, frame, row, max_rows, linger, options)
            from millrace.runtime.batch_task import make_batch_task

            return make_batch_task(self._register, function, 100 if size is None else size, linger, options)

        return make if function is None else make(function)

    def find_task(self, name: str) -> Task[..., Any]:
        """The task of that name, or UnknownTask with what it may have meant."""
        found = self.tasks.get(name)
        if found is None:
            raise UnknownTask(f"no task {name!r} is registered on this app. {meant(name, self.tasks)}")
        return found

    async def enqueue(self, specs: Iterable[Spec], *, within: object = None) -> list[Enqueued]:
        """Put jobs of any tasks in as one step, all or nothing: `app.enqueue([resize.spec(…), notify.spec(…)])`.

        Within one call `after` may point at any of the jobs, also at later ones. `within` is a connection of yours,
        for jobs that are part of its transaction.
        """
        specs = list(specs)
        for name in self.pools.keys() & {spec.queue for spec in specs}:
            await self.pools[name].declare(within)
        joined = await self.connected() if within is None else join(self.store, within)
        put_in = joined.enqueue if self.tracing is None else self.tracing.around(joined.enqueue)
        return await put_in(specs)

    @property
    def sync(self) -> Sync:
        """The app for programs without an event loop, from any thread: `app.sync.jobs.get(…)`."""
        if self._sync is None:
            from millrace.runtime.sync import Sync

            self._sync = Sync(self)
        return self._sync

    _sync: Sync | None = None
    tracing: Tracing | None = None

    def trace(self, *, provider: Any = None, payload: bool = False, redact: Redaction | None = None) -> bool:
        """Have OpenTelemetry spans made of enqueues and attempts, each attempt linked to the enqueue that it came from.

        Without opentelemetry-api (extra `otel`) it does nothing and answers False. `provider` is a tracer provider
        other than the global one. With `payload`, spans of attempts carry the payload, without what `redact` hides.
        """
        from millrace.runtime.tracing import tracing_of

        self.tracing = self.tracing or tracing_of(self, provider, payload, redact)
        return self.tracing is not None

    def _register(
        self,
        function: Callable[..., Any],
        /,
        name: str | None = None,
        kind: type[FunctionTask[..., Any, ..., Any]] = FunctionTask,
        **options: Any,
    ) -> FunctionTask[..., Any, ..., Any]:
        if not callable(function):
            raise InvalidInput(f"a task is made of a function, not of {function!r}")
        if isinstance(function, Task):
            raise InvalidInput(f"{function!r} is a task already; use task.options(…) for other options")
        name = default_name(function) if name is None else name
        check_name("task", name)
        if name in self.tasks:
            raise InvalidInput(
                f"a task named {name!r} is registered already, for {self.tasks[name].handler!r}. "
                "Give this one another name: @app.task(name=…)"
            )
        if "serde" in options:
            options["serde"] = self.serdes.name(options["serde"])
        layers, inherits = options.pop("middleware", ()), options.pop("inherit_middleware", True)
        read, template = read_task_options(name, options, self._serde)
        if read.process:
            from millrace.runtime.process.address import refuse_unreachable

            refuse_unreachable(name, function)
        made = kind(self, name, function, read, template)
        if layers:
            made.layers = _layers(f"task {name!r}: middleware", layers)
        made.inherits = bool(inherits)
        self.tasks[name] = made
        return made

    def middleware(self, layer: M, /) -> M:
        """Wrap every attempt of every task: `@app.middleware` on `async def layer(ctx, call_next)` (L-10).

        The first registered is the outermost; then come a worker's own and a task's own.
        """
        self.layers += _layers("app.middleware", [layer])
        return layer

    # ── pools ─────────────────────────────────────────────────────────────────────────────────

    def pool(
        self,
        name: str,
        *,
        lanes: int,
        max_depth: int | UnsetType | None = UNSET,
        partition_by: PartitionBy | None = None,
        **options: Unpack[TaskKeywords],
    ) -> Pool:
        """N ordered lanes with one handler: `@app.pool("orders", lanes=8)` over it, or `@pool.handler` later.

        `max_depth` bounds the jobs that wait in each lane (10,000 unless set otherwise; None: no bound). `partition_by`
        takes a job's arguments and answers its partition key: jobs of one key run in order, one at a time.
        """
        from millrace.runtime.pool import Pool

        if name in self.pools:
            raise InvalidInput(f"a pool named {name!r} is registered already; use app.pool_named({name!r})")
        made = Pool(self, name, lanes, max_depth, partition_by, dict(options))
        self.pools[name] = made
        return made

    def pool_named(self, name: str) -> Pool:
        """The pool of that name, or UnknownPool with what it may have meant (W-45)."""
        found = self.pools.get(name)
        if found is None:
            import difflib

            close = difflib.get_close_matches(str(name), self.pools, n=1)
            known = f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(sorted(self.pools)) or 'none'}."
            raise UnknownPool(name, known)
        return found

    async def prepared(self) -> Store:
        """The store, open, and told of this app's pools: what a worker asks for before its first claim."""
        store = await self.connected()
        for pool in self.pools.values():
            await pool.prepare(patient=True)
        return store

    # ── queues, limits, events, workers ───────────────────────────────────────────────────────

    def queue(self, name: str) -> Queue:
        """Control of one queue: pause, limits, settings, drain, counts."""
        return Queue(name, self.connected)

    async def limit(self, task: str | Task[..., Any], **limits: Unpack[LimitKeywords]) -> Limits:
        """Bound the claims of one task over all workers and queues; answers its limits as they are now."""
        name = task if isinstance(task, str) else task.name
        store = await self.connected()
        return cast("Limits", await store.control("task", name, limits))

    def events(self, cursor: str | None = None, *, follow: bool = True, page: int = 500) -> EventFeed:
        """What happens in the store, from `cursor` on (None: the oldest kept; "end": now): `async for event in …`."""
        return EventFeed(self.connected, cursor, follow, page)

    @overload
    def on(self, kind: LocalKind, listener: L) -> L: ...
    @overload
    def on(self, kind: LocalKind) -> Callable[[L], L]: ...
    def on(self, kind: str, listener: Any = None) -> Any:
        """Hear of what this process does: `app.on("failed", tell)`, or as a decorator. A failing listener is logged."""
        if listener is None:
            return lambda function: self.on(cast("LocalKind", kind), function)
        self.bus.on(kind, listener)
        return listener

    def worker(
        self,
        queues: Sequence[str] | str | None = None,
        *,
        tasks: Iterable[str | Task[..., Any]] | None = None,
        slots: int = 10,
        name: str | None = None,
        **more: Unpack[WorkerKeywords],
    ) -> Worker:
        """A worker for these queues and tasks; by default, for all that this app knows."""
        from millrace.runtime.worker import Worker
        from millrace.runtime.worker_options import refuse_unknown

        refuse_unknown(more)
        return Worker(
            self,
            queues=(queues,) if isinstance(queues, str) else queues,
            tasks=None if tasks is None else [task if isinstance(task, str) else task.name for task in tasks],
            slots=slots,
            name=name,
            **more,
        )

    def on_spark(self, spark: Any, **options: Unpack[DrainKeywords]) -> Drain:
        """Run the backlog on Spark's executors; answers at once, with what to wait for: `app.on_spark(spark).wait()`.

        Each of `partitions` is a worker with `slots` slots under ordinary leases, so a lost executor loses nothing.
        It ends when nothing is left to claim; `stop()`, `duration` and `max_jobs` end it sooner (docs/spark-drain.md).
        """
        from millrace.runtime.on_spark import begin

        return begin(self, spark, options)

    def __repr__(self) -> str:
        return f"<App with {len(self.tasks)} tasks>"


def _layers(where: str, layers: Iterable[Any]) -> tuple[Middleware, ...]:
    from millrace.runtime.middleware import read_layers

    return read_layers(where, layers)
