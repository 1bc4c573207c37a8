"""The app: a store, the tasks that its jobs name, and the ways in for producers, workers and operators."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from millrace.domain.check import check_name
from millrace.domain.errors import InvalidInput, UnknownTask
from millrace.domain.job import Spec
from millrace.domain.request import Enqueued
from millrace.domain.settings import Limits
from millrace.runtime.bus import Bus, Listener, LocalKind
from millrace.runtime.connection import Connection
from millrace.runtime.feed import EventFeed
from millrace.runtime.jobs import Jobs
from millrace.runtime.options import TaskKeywords, read_task_options
from millrace.runtime.queue import LimitKeywords, Queue
from millrace.runtime.serde import Serde, Serdes
from millrace.runtime.task import FunctionTask, Task, default_name
from millrace.store.clock import Clock
from millrace.store.protocol import Store

if TYPE_CHECKING:
    from millrace.runtime.context import Context
    from millrace.runtime.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound=Listener)


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


class App:
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
        self.bus = Bus()
        self.jobs = Jobs(self)

    @property
    def store(self) -> Store:
        return self._connection.store

    async def connected(self) -> Store:
        """The store, open, for the running event loop."""
        return await self._connection.connected()

    async def close(self) -> None:
        await self._connection.close()

    async def __aenter__(self) -> Self:
        await self._connection.enter()
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

    def find_task(self, name: str) -> Task[..., Any]:
        """The task of that name, or UnknownTask with what it may have meant."""
        found = self.tasks.get(name)
        if found is None:
            import difflib

            close = difflib.get_close_matches(str(name), self.tasks, n=1)
            known = f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(sorted(self.tasks)) or 'none'}."
            raise UnknownTask(f"no task {name!r} is registered on this app. {known}")
        return found

    async def enqueue(self, specs: Iterable[Spec]) -> list[Enqueued]:
        """Put jobs of any tasks in as one step, all or nothing: `app.enqueue([resize.spec(…), notify.spec(…)])`.

        Within one call `after` may point at any of the jobs, also at later ones.
        """
        store = await self.connected()
        return await store.enqueue(list(specs))

    def _register(self, function: Callable[..., Any], /, name: str | None = None, **options: Any) -> Task[..., Any]:
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
        read, template = read_task_options(name, options, self._serde)
        made: FunctionTask[..., Any, ..., Any] = FunctionTask(self, name, function, read, template)
        self.tasks[name] = made
        return made

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
        """What happens in the store, from `cursor` on (None: from the oldest kept): `async for event in …`."""
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
        **more: Any,
    ) -> Worker:
        """A worker for these queues and tasks; by default, for all that this app knows."""
        from millrace.runtime.worker import Worker

        return Worker(
            self,
            queues=(queues,) if isinstance(queues, str) else queues,
            tasks=None if tasks is None else [task if isinstance(task, str) else task.name for task in tasks],
            slots=slots,
            name=name,
            **more,
        )

    def __repr__(self) -> str:
        return f"<App with {len(self.tasks)} tasks>"
