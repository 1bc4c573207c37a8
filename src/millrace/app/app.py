"""The app: a store and the tasks registered on it, and the entry points for producers, workers and operators."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from msgspec import UNSET, UnsetType

from millrace.app import in_child
from millrace.app.connection import Connection, join
from millrace.app.duration import Duration
from millrace.app.event_stream import EventStream
from millrace.app.flows.composer import Composer
from millrace.app.flows.handle import Flows
from millrace.app.host import read_layers
from millrace.app.job_handle import JobHandle
from millrace.app.jobs import Jobs
from millrace.app.lifespan import LifespanFunction, read_lifespan
from millrace.app.local_events import Listener, LocalEventBus, LocalKind
from millrace.app.options import DefaultKeywords, TaskKeywords, read_defaults, read_task_options
from millrace.app.payloads.inputs import keeping_inputs
from millrace.app.payloads.serde import AnySerde, Serdes
from millrace.app.queue import LimitKeywords, Queue
from millrace.app.schedules.declare import Crontab
from millrace.app.task import FunctionTask, Task, TaskDecorator, default_name
from millrace.domain.errors import InvalidInput, UnknownPool, UnknownTask, did_you_mean
from millrace.domain.job import Spec
from millrace.domain.retry import RetryPolicy
from millrace.domain.rules.check import check_name
from millrace.domain.rules.precedence import BUILT_IN
from millrace.domain.settings import Limits
from millrace.store.clock import Clock
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.app.batch_task import BatchDecorator, BatchTask
    from millrace.app.frames.task import FrameDecorator
    from millrace.app.handler.context import Context
    from millrace.app.handler.surroundings import Surroundings
    from millrace.app.host import Middleware
    from millrace.app.pools.pool import PartitionBy, Pool
    from millrace.app.spark_drain import Drain, DrainKeywords
    from millrace.app.sync.app import Sync
    from millrace.app.telemetry.redaction import Redaction
    from millrace.app.telemetry.tracing import Tracing
    from millrace.worker.options import WorkerKeywords
    from millrace.worker.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound=Listener)
M = TypeVar("M", bound="Middleware")
I = TypeVar("I")  # noqa: E741
D = TypeVar("D")
F = TypeVar("F", bound=LifespanFunction)


class App(Crontab, Composer):
    """A store and its tasks: `App("sqlite:///jobs.db")`. The store opens at first use; `async with app:` closes it.

    `serde` is the default serde of the app's tasks: "json", "msgpack" or a serde object. `result_serde` is the default
    for results, if it differs. `serdes` are additional serdes, so that jobs written with them can be read. `lease` (the
    lease duration), `timeout`, `retry`, `max_attempts` and `keep_result` are defaults for tasks that do not set them.
    """

    surroundings: Surroundings | None = None  # of handlers and their providers, for integrations

    def __init__(
        self,
        store: str | Store = "memory://",
        *,
        serde: str | AnySerde = "json",
        result_serde: str | AnySerde | None = None,
        serdes: Iterable[AnySerde] = (),
        clock: Clock | None = None,
        lease: Duration | UnsetType = UNSET,
        timeout: Duration | UnsetType | None = UNSET,
        retry: RetryPolicy | Sequence[Duration] | UnsetType = UNSET,
        max_attempts: int | UnsetType | None = UNSET,
        keep_result: Duration | UnsetType | None = UNSET,
    ) -> None:
        given = {"lease": lease, "timeout": timeout, "retry": retry, "max_attempts": max_attempts}
        self.defaults = read_defaults("the app", given | {"keep_result": keep_result})
        self.queue_defaults: dict[str, dict[str, Any]] = {}
        self._connection = Connection(store, clock)
        self.serdes = Serdes(serdes)
        self._serde = self.serdes.name(serde)
        self._result_serde = None if result_serde is None else self.serdes.name(result_serde)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.layers: list[Middleware] = []
        self.plans = {}
        self.pools: dict[str, Pool] = {}
        self.bus = LocalEventBus()
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}  # for tests: provider, replacement
        self.jobs = Jobs(self)
        self.flows = Flows(self)

    @property
    def store(self) -> Store:
        """The store, as it was opened for the running event loop."""
        return self._connection.store

    async def connected(self) -> Store:
        """Return the store for the running event loop. Open it first if it is not open."""
        if in_child.here:
            in_child.refuse_connecting(self._connection)
        return await self._connection.connected()

    async def close(self) -> None:
        """Close the connections of the app. It opens them again at its next use."""
        await self._connection.close()

    def use(self, store: str | Store) -> None:
        """Replace the app's store. Call this before first use: a store that is already open is not closed."""
        self._connection = Connection(store, None)

    async def __aenter__(self) -> Self:
        if in_child.here:
            in_child.refuse_connecting(self._connection)
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
        """Register a function as a task and return the task: `@app.task`, or `@app.task(queue="mail", timeout=30)`.

        `name` defaults to the function's name. It is stored in every job, so keep it when you rename the function.
        """
        # The ignore: mypy does not see that unpacked keywords are compatible with **options.
        if function is not None:
            return self._register(function, **options)
        return lambda function: self._register(function, **options)

    @overload
    def batch_task(
        self, function: Callable[[list[Context], list[I]], Coroutine[Any, Any, D]], /
    ) -> BatchTask[[I], Any, [list[Context], list[I]], Coroutine[Any, Any, D]]: ...
    @overload
    def batch_task(
        self, function: Callable[[list[Context], list[I]], D], /
    ) -> BatchTask[[I], Any, [list[Context], list[I]], D]: ...
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
        """Register a function as a batch task and return the task. The function runs up to `size` jobs in one call.

        The function takes a list of items. Each item is the payload of one job, enqueued by `task.enqueue(item)`. A
        worker waits at most `linger` seconds until a batch is full. The function returns a list with one entry per job,
        in order: a result, an exception, Retry, Snooze or Bury.

        With frame="arrow" or "pandas", the function takes a table of up to `max_rows` jobs instead of a list. The table
        has a column for each parameter that `row` declares (docs/batch-tasks.md).
        """
        if frame is None and (row is not None or max_rows is not None):
            raise InvalidInput('`row` and `max_rows` are for tables: pass frame="arrow" or frame="pandas" too')
        if frame is not None and size is not None:
            raise InvalidInput("a table is limited by its rows: pass max_rows=… instead of size=…")

        def make(function: Callable[..., Any]) -> Any:
            if frame is not None:
                from millrace.app.frames.task import make_frame_task

                return make_frame_task(self._register, function, frame, row, max_rows, linger, options)
            from millrace.app.batch_task import make_batch_task

            return make_batch_task(self._register, function, 100 if size is None else size, linger, options)

        return make if function is None else make(function)

    def find_task(self, name: str) -> Task[..., Any]:
        """Return the task with this name. Raises UnknownTask, which suggests a similar name."""
        found = self.tasks.get(name)
        if found is None:
            raise UnknownTask(f"no task {name!r} is registered on this app. {did_you_mean(name, self.tasks)}")
        return found

    async def enqueue(self, specs: Iterable[Spec], *, within: object = None) -> list[JobHandle[Any]]:
        """Enqueue jobs of any tasks in one step, all or nothing: `app.enqueue([resize.spec(…), notify.spec(…)])`.

        `after` may name any job of the same call, also a later one. `within` is your own database connection: the jobs
        become part of its transaction. Returns one handle per spec, in order.
        """
        specs = keeping_inputs(list(specs))
        for name in self.pools.keys() & {spec.queue for spec in specs}:
            await self.pools[name].declare(within)
        joined = await self.connected() if within is None else join(self.store, within)
        put_in = joined.enqueue if self.tracing is None else self.tracing.around(joined.enqueue)
        return [JobHandle(self, answer.id, answer) for answer in await put_in(specs)]

    @property
    def sync(self) -> Sync:
        """The blocking API, for programs without an event loop and for use in any thread: `app.sync.jobs.get(…)`."""
        if self._sync is None:
            from millrace.app.sync.app import Sync

            self._sync = Sync(self)
        return self._sync

    _sync: Sync | None = None
    lifespan_factory: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    tracing: Tracing | None = None

    def trace(self, *, provider: Any = None, payload: bool = False, redact: Redaction | None = None) -> bool:
        """Create OpenTelemetry spans for enqueues and attempts. An attempt's span links to its enqueue's span.

        Returns False and does nothing if opentelemetry-api (extra `otel`) is not installed. `provider` replaces the
        global tracer provider. With `payload`, spans of attempts include the payload, redacted by `redact`.
        """
        from millrace.app.telemetry.tracing import tracing_of

        self.tracing = self.tracing or tracing_of(self, provider, payload, redact)
        return self.tracing is not None

    def _register(
        self,
        function: Callable[..., Any],
        /,
        name: str | None = None,
        kind: Callable[..., FunctionTask[..., Any, ..., Any]] = FunctionTask,
        **options: Any,
    ) -> FunctionTask[..., Any, ..., Any]:
        if not callable(function):
            raise InvalidInput(f"a task must be a function, not {function!r}")
        if isinstance(function, Task):
            raise InvalidInput(f"{function!r} is already a task; use task.options(…) for other options")
        name = default_name(function) if name is None else name
        check_name("task", name)
        if name in self.tasks:
            raise InvalidInput(
                f"a task named {name!r} is already registered, for {self.tasks[name].handler!r}. "
                "Give this one another name: @app.task(name=…)"
            )
        for which in ("serde", "result_serde"):
            if which in options:
                options[which] = self.serdes.name(options[which])
        layers, inherits = options.pop("middleware", ()), options.pop("inherit_middleware", True)
        defaults = self.defaults_of(options.get("queue", "default"))
        read, template = read_task_options(name, options, self._serde, defaults, self._result_serde)
        if read.process:
            from millrace.app.handler.address import refuse_unreachable

            refuse_unreachable(name, function)
        layers = read_layers(f"task {name!r}: middleware", layers) if layers else ()
        made = kind(self, name, function, read, template, layers=layers, inherits=bool(inherits))
        self.tasks[name] = made
        return made

    def middleware(self, layer: M, /) -> M:
        """Run a middleware around every attempt of every task: decorate `async def layer(ctx, call_next)`.

        The middleware that is registered first is the outermost. The middleware of the worker runs inside that of the
        app, and the middleware of the task runs inside both. Returns the function unchanged.
        """
        self.layers += read_layers("app.middleware", [layer])
        return layer

    def lifespan(self, function: F, /) -> F:
        """Register what each worker of this app does at its start and its end: decorate an async generator function.

        The part before `yield` is awaited before a worker claims its first job, the part after it once the worker's
        last job has ended. Handlers read the value of `yield` as `ctx.state`. The function may also return an async
        context manager. Returns the function unchanged.
        """
        if self.lifespan_factory is not None:
            raise InvalidInput(
                "this app has a lifespan already. Combine both in one function, with contextlib.AsyncExitStack"
            )
        self.lifespan_factory = read_lifespan(function)
        return function

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
        """Register and return a pool of ordered lanes: `@app.pool("orders", lanes=8)` decorates the pool's handler.

        The handler can also be registered later, with `@pool.handler`. `max_depth` limits the jobs that wait in each
        lane (default 10,000; None: no limit). `partition_by` takes a job's arguments and returns its partition key:
        jobs with the same key run in order, one at a time.
        """
        from millrace.app.pools.pool import Pool

        if name in self.pools:
            raise InvalidInput(f"a pool named {name!r} is already registered; use app.pool_named({name!r})")
        made = Pool(self, name, lanes, max_depth, partition_by, dict(options))
        self.pools[name] = made
        return made

    def pool_named(self, name: str) -> Pool:
        """Return the pool with this name. Raises UnknownPool, which suggests a similar name."""
        found = self.pools.get(name)
        if found is None:
            raise UnknownPool(name, did_you_mean(name, self.pools))
        return found

    async def prepared(self) -> Store:
        """Return the open store after writing the settings of this app's pools to it. Workers call this at start."""
        store = await self.connected()
        for pool in self.pools.values():
            await pool.prepare(patient=True)
        return store

    # ── queues, limits, events, workers ───────────────────────────────────────────────────────

    def queue(self, name: str, **defaults: Unpack[DefaultKeywords]) -> Queue:
        """Return a handle for one queue, which can pause and drain it, change its settings and read its counts.

        Keywords are defaults for the jobs of this queue: `app.queue("mail", timeout=30, max_attempts=8)`. They apply to
        options that neither the caller nor the task sets. Declare them before the tasks of the queue.
        """
        if defaults:
            check_name("queue", name)
            if name in self.queue_defaults:
                raise InvalidInput(f"queue {name!r} has defaults already; declare all of them in one call")
            if used := sorted(task.name for task in self.tasks.values() if task.options.queue == name):
                raise InvalidInput(
                    f"queue {name!r} already has tasks, to which its defaults would not apply: {', '.join(used)}. "
                    "Declare the defaults of a queue before its tasks."
                )
            self.queue_defaults[name] = read_defaults(f"queue {name!r}", defaults)
        return Queue(name, self.connected)

    def defaults_of(self, queue: str) -> dict[str, Any]:
        """Return the values that options of jobs in this queue have if neither the caller nor the task sets them."""
        if not self.queue_defaults:
            return self.defaults
        return {**BUILT_IN, **self.defaults, **self.queue_defaults.get(queue, {})}

    async def limit(self, task: str | Task[..., Any], **limits: Unpack[LimitKeywords]) -> Limits:
        """Set limits on one task, over all workers and queues. Return the limits that are now in effect."""
        name = task if isinstance(task, str) else task.name
        store = await self.connected()
        return cast("Limits", await store.control("task", name, limits))

    def events(self, cursor: str | None = None, *, follow: bool = True, page: int = 500) -> EventStream:
        """Return a stream of the store's events after `cursor` (None: from the oldest; "end": from now).

        Read it with `async for event in app.events(cursor)`. Without `follow`, the stream ends at the latest event.
        """
        return EventStream(self.connected, cursor, follow, page)

    @overload
    def on(self, kind: LocalKind, listener: L) -> L: ...
    @overload
    def on(self, kind: LocalKind) -> Callable[[L], L]: ...
    def on(self, kind: str, listener: Any = None) -> Any:
        """Register a listener for local events of this process: `app.on("failed", notify)`, or as a decorator.

        Returns the listener. An exception in a listener is logged and has no other effect.
        """
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
        """Return a worker for these queues and tasks; by default for all tasks of this app and their queues."""
        from millrace.worker.options import refuse_unknown
        from millrace.worker.worker import Worker

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
        """Start a Spark drain, which runs the waiting jobs with workers on Spark's executors. Return its handle at
        once.

        Each of the `partitions` is one worker with `slots` slots. Its jobs have ordinary leases, so if an executor
        dies, other workers reclaim them. `app.on_spark(spark).wait()` waits for the end of the Spark drain. It ends
        when no job is left to claim, or earlier because of `stop()`, `duration` or `max_jobs` (docs/spark-drain.md).
        """
        from millrace.app.spark_drain import begin

        return begin(self, spark, options)

    def __repr__(self) -> str:
        return f"<App with {len(self.tasks)} tasks>"
