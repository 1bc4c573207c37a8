"""Local events: what workers of this process do, delivered to listeners in this process.

In contrast, `app.events()` reads the events in the store, which any process may have caused. Workers emit local events
for every job. So an event without listeners costs almost nothing, and an exception in a listener is only logged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, get_args

import msgspec

from millrace.domain.errors import InvalidInput, did_you_mean

log = logging.getLogger("millrace.bus")

JobKind = Literal["claimed", "completed", "retried", "snoozed", "released", "failed", "cancelled", "lost", "stalled"]
WorkerKind = Literal["worker_started", "worker_stopping", "worker_stopped"]
LocalKind = Literal[JobKind, WorkerKind, "error"]
KINDS: frozenset[str] = frozenset((*get_args(JobKind), *get_args(WorkerKind), "error"))


class LocalEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One local event. The fields that are set depend on `kind`. `more` has values for which there is no field."""

    kind: str
    job: Any = None  # the Job, as its worker has it
    worker: str | None = None
    result: Any = None
    error: Any = None  # a Failure, or the exception itself for kind "error"
    reason: str | None = None
    delay: int | None = None  # milliseconds
    duration: int | None = None  # milliseconds
    more: dict[str, Any] = {}  # msgspec copies this default


Listener = Callable[[LocalEvent], Awaitable[None] | None]
_FIELDS = frozenset(LocalEvent.__struct_fields__) - {"kind", "more"}


class LocalEventBus:
    """The listeners of each kind of event. Sync listeners run at once, async listeners as tasks on the running loop."""

    def __init__(self) -> None:
        self._listeners: dict[str, tuple[Listener, ...]] = {}
        self._pending: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def on(self, kind: str, listener: Listener) -> None:
        if kind not in KINDS:
            raise InvalidInput(f"there is no local event {kind!r}. {did_you_mean(kind, KINDS)}")
        if not callable(listener):
            raise InvalidInput(f"a listener must be callable, {listener!r} is not")
        self._listeners[kind] = (*self._listeners.get(kind, ()), listener)

    def off(self, kind: str, listener: Listener) -> None:
        left = tuple(known for known in self._listeners.get(kind, ()) if known is not listener)
        if left:
            self._listeners[kind] = left
        else:
            self._listeners.pop(kind, None)

    def wants(self, kind: str) -> bool:
        """Return whether this kind of event has listeners. Check this first if building the event is expensive."""
        return kind in self._listeners

    def emit(self, kind: str, **fields: Any) -> None:
        listeners = self._listeners.get(kind)
        if listeners is None:
            return
        more = {name: fields.pop(name) for name in fields.keys() - _FIELDS}
        event = LocalEvent(kind=kind, more=more, **fields)
        for listener in listeners:
            try:
                answer = listener(event)
                if inspect.iscoroutine(answer):
                    self._start(answer, kind)
            except Exception:
                log.exception("a listener for %r failed; other listeners and the worker continue", kind)

    async def flush(self) -> None:
        """Wait until the async listeners that were started on this event loop have finished."""
        loop = asyncio.get_running_loop()
        while pending := [task for task in self._pending if task.get_loop() is loop]:
            await asyncio.wait(pending)

    def _start(self, coroutine: Coroutine[Any, Any, None], kind: str) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:  # a thread without a loop: use the loop of earlier events
            if self._loop is None or self._loop.is_closed():
                coroutine.close()
                log.warning("an async listener for %r was not called: no event loop runs here", kind)
            else:
                self._loop.call_soon_threadsafe(self._run, self._loop, coroutine, kind)
            return
        self._run(self._loop, coroutine, kind)

    def _run(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None], kind: str) -> None:
        task = loop.create_task(_guarded(coroutine, kind))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)


async def _guarded(coroutine: Coroutine[Any, Any, None], kind: str) -> None:
    try:
        await coroutine
    except Exception:
        log.exception("an async listener for %r failed; the worker continues", kind)
