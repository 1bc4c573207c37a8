"""What a worker needs of the app that it works for: its store, its tasks, and ears for local events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from millrace.store.protocol import Store


class Options(Protocol):
    """Durations in milliseconds; what `backoff` answers is in seconds, like every number a user writes."""

    @property
    def queue(self) -> str: ...
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

    def load(self, payload: bytes, serde: str) -> dict[str, Any]:
        """The handler's arguments. Raises PayloadInvalid."""
        ...

    def dump_result(self, value: Any, serde: str | None = None) -> bytes:
        """The result, written as its job's payload was. Raises PayloadInvalid."""
        ...


class Bus(Protocol):
    def wants(self, kind: str) -> bool: ...
    def emit(self, kind: str, **fields: Any) -> None: ...


class Host(Protocol):
    async def connected(self) -> Store:
        """The store, open, for the running event loop."""
        ...

    @property
    def tasks(self) -> Mapping[str, Runnable]: ...
    @property
    def bus(self) -> Bus: ...
