"""The interface that a worker needs from its app: the store, the tasks and the local events."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from millrace.app.handler.context import Context
from millrace.app.payloads.serde import Serdes
from millrace.domain.errors import InvalidInput
from millrace.domain.schedule import Plan
from millrace.store.protocol import Store, Within

if TYPE_CHECKING:
    from millrace.app.handler.injection import Injection
    from millrace.app.job_status import JobStatus
    from millrace.domain.job import Job

CallNext = Callable[[], Awaitable[Any]]


class Middleware(Protocol):
    """A layer around an attempt. It awaits `call_next()` to run the inner layers, and returns the result."""

    async def __call__(self, ctx: Context, call_next: CallNext, /) -> Any: ...


class TaskSettings(Protocol):
    """The options of a task that a worker reads. Durations are in milliseconds; `backoff(…)` returns seconds."""

    @property
    def queue(self) -> str: ...
    @property
    def process(self) -> bool: ...
    @property
    def serde(self) -> str: ...
    @property
    def lease(self) -> int: ...
    @property
    def backoff(self) -> Callable[[int], float] | None: ...
    @property
    def keep_log(self) -> bool: ...


class Runnable(Protocol):
    """The interface that a worker needs from a task to run its jobs."""

    @property
    def name(self) -> str: ...
    @property
    def options(self) -> TaskSettings: ...
    @property
    def handler(self) -> Callable[..., Any]: ...
    @property
    def is_async(self) -> bool: ...
    @property
    def context_parameter(self) -> str | None: ...
    @property
    def layers(self) -> tuple[Middleware, ...]:
        """The task's own middleware."""
        ...

    @property
    def inherits(self) -> bool:
        """Whether the middleware of the app and of the worker also applies to this task."""
        ...

    @property
    def injection(self) -> Injection | None:
        """Makes the values of parameters marked with Depends; None if there are none."""
        ...

    @property
    def explicit_options(self) -> Mapping[str, Any]:
        """The options with defaults, such as `timeout`, that the task itself sets: their values by name."""
        ...

    def retries(self, error: BaseException) -> bool:
        """Return whether the task's options allow another attempt after this exception of its handler."""
        ...

    def load(self, payload: bytes, serde: str) -> dict[str, Any]:
        """Decode a payload and return the handler's arguments. Raises PayloadInvalid."""
        ...

    def load_result(self, data: bytes | None, serde: str | None = None) -> Any:
        """Return the decoded result; None if there is no data. Raises PayloadInvalid."""
        ...

    def dump_result(self, value: Any, serde: str | None = None) -> bytes:
        """Return the encoded result. `serde` is the serde of the job; None uses the task's. Raises ResultInvalid."""
        ...

    async def parents_of(self, job: Job) -> list[JobStatus]:
        """Return the status of each job that this one ran after."""
        ...

    def parents_of_sync(self, job: Job) -> list[JobStatus]: ...

    def join(self, connection: object) -> Within:
        """Return the store operations that run inside the handler's own transaction on `connection`.

        Raises InvalidInput if the store cannot take part in a caller's transaction.
        """
        ...


class EventBus(Protocol):
    def wants(self, kind: str) -> bool: ...
    def emit(self, kind: str, **fields: Any) -> None: ...
    async def flush(self) -> None: ...


class Host(Protocol):
    async def connected(self) -> Store:
        """Return the open store for the running event loop."""
        ...

    async def prepared(self) -> Store:
        """Return the open store after writing the settings of the app's pools to it."""
        ...

    @property
    def tasks(self) -> Mapping[str, Runnable]: ...
    @property
    def serdes(self) -> Serdes: ...
    @property
    def defaults(self) -> Mapping[str, Any]:
        """Defaults for tasks that do not set them, by name. Durations are in milliseconds."""
        ...

    @property
    def queue_defaults(self) -> Mapping[str, Mapping[str, Any]]:
        """Defaults for the jobs of a queue, by queue."""
        ...

    @property
    def bus(self) -> EventBus: ...
    @property
    def layers(self) -> Sequence[Middleware]:
        """The app's middleware, the outermost first."""
        ...

    @property
    def lifespan_factory(self) -> Callable[[], AbstractAsyncContextManager[Any]] | None:
        """Makes the context manager that a worker enters before it claims jobs; None if the app has no lifespan."""
        ...

    @property
    def plans(self) -> Mapping[str, Plan]:
        """The schedules that the app declares, by name."""
        ...


def read_layers(where: str, layers: Iterable[Any]) -> tuple[Middleware, ...]:
    """Return the middleware as a tuple. Raises InvalidInput if a layer is not async; `where` begins the message."""
    if callable(layers) or not isinstance(layers, Iterable):
        raise InvalidInput(f"{where} takes a list of middleware, not {layers!r}")
    found = tuple(layers)
    for layer in found:
        if not _is_async(layer):
            raise InvalidInput(f"{where}: middleware must be `async def layer(ctx, call_next)`, {layer!r} is not")
    return found


def _is_async(layer: object) -> bool:
    return inspect.iscoroutinefunction(layer) or inspect.iscoroutinefunction(getattr(layer, "__call__", None))  # noqa: B004
