"""What a worker needs of the app that it works for: its store, its tasks, and ears for local events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from millrace.domain.schedule import Plan
from millrace.runtime.context import Context
from millrace.store.protocol import Store, Within

CallNext = Callable[[], Awaitable[Any]]


class Middleware(Protocol):
    """One layer around an attempt: awaits `call_next()` for what is inside, and answers in its place."""

    async def __call__(self, ctx: Context, call_next: CallNext, /) -> Any: ...


class Options(Protocol):
    """Durations in milliseconds; what `backoff` answers is in seconds, like every number a user writes."""

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


class Runnable(Protocol):
    """A task, as far as running it goes."""

    @property
    def name(self) -> str: ...
    @property
    def options(self) -> Options: ...
    @property
    def handler(self) -> Callable[..., Any]: ...
    @property
    def is_async(self) -> bool: ...
    @property
    def context_parameter(self) -> str | None: ...
    @property
    def layers(self) -> tuple[Middleware, ...]:
        """The middleware of this task alone."""
        ...

    @property
    def inherits(self) -> bool:
        """Does that of the app and the worker apply too?"""
        ...

    def load(self, payload: bytes, serde: str) -> dict[str, Any]:
        """The handler's arguments. Raises PayloadInvalid."""
        ...

    def load_result(self, data: bytes | None, serde: str | None = None) -> Any:
        """The result as the handler gave it. Raises PayloadInvalid."""
        ...

    def dump_result(self, value: Any, serde: str | None = None) -> bytes:
        """The result, written as its job's payload was. Raises PayloadInvalid."""
        ...

    def join(self, connection: object) -> Within:
        """Steps in a transaction of the handler's own. InvalidInput when the store cannot."""
        ...


class Bus(Protocol):
    def wants(self, kind: str) -> bool: ...
    def emit(self, kind: str, **fields: Any) -> None: ...
    async def flush(self) -> None: ...


class Host(Protocol):
    async def connected(self) -> Store:
        """The store, open, for the running event loop."""
        ...

    async def prepared(self) -> Store:
        """The same, with everything written to it that workers rely on."""
        ...

    @property
    def tasks(self) -> Mapping[str, Runnable]: ...
    @property
    def bus(self) -> Bus: ...
    @property
    def layers(self) -> Sequence[Middleware]:
        """The app's middleware, the outermost first."""
        ...

    @property
    def plans(self) -> Mapping[str, Plan]:
        """The schedules that the app declares."""
        ...
