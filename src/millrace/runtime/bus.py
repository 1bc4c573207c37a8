"""Local events: what happens in this process, told to whoever listens (R-09, L-11).

For what happens in the store, whoever did it, read `app.events()`. Emitting must cost nothing when nobody listens
and must never fail for a listener's sake: workers emit on their hot path.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, get_args

import msgspec

from millrace.domain.errors import InvalidInput
from millrace.domain.hints import meant

log = logging.getLogger("millrace.bus")

JobKind = Literal["claimed", "completed", "retried", "snoozed", "released", "failed", "cancelled", "lost", "stalled"]
WorkerKind = Literal["worker_started", "worker_stopping", "worker_stopped"]
LocalKind = Literal[JobKind, WorkerKind, "error"]
KINDS: frozenset[str] = frozenset((*get_args(JobKind), *get_args(WorkerKind), "error"))


class LocalEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened here. Which fields are set depends on the kind; `more` holds what has no field."""

    kind: str
    job: Any = None  # the Job, as its worker knew it
    worker: str | None = None
    result: Any = None
    error: Any = None  # a Failure, or the exception itself for kind "error"
    reason: str | None = None
    delay: int | None = None  # milliseconds
    duration: int | None = None  # milliseconds
    more: dict[str, Any] = {}  # msgspec copies it


Listener = Callable[[LocalEvent], Awaitable[None] | None]
_FIELDS = frozenset(LocalEvent.__struct_fields__) - {"kind", "more"}


class Bus:
    """Listeners by kind. Sync ones run at once, async ones as tasks of the running loop."""

    def __init__(self) -> None:
        self._listeners: dict[str, tuple[Listener, ...]] = {}
        self._pending: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def on(self, kind: str, listener: Listener) -> None:
        if kind not in KINDS:
            raise InvalidInput(f"there is no local event {kind!r}. {meant(kind, KINDS)}")
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
        """Ask first where the fields of an event cost something to make."""
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
                log.exception("a listener for %r failed; the others and the worker go on", kind)

    async def flush(self) -> None:
        """Wait until the async listeners that were started on this loop have ended."""
        loop = asyncio.get_running_loop()
        while pending := [task for task in self._pending if task.get_loop() is loop]:
            await asyncio.wait(pending)

    def _start(self, coroutine: Coroutine[Any, Any, None], kind: str) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:  # a thread without a loop: use the one events came from before
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
        log.exception("an async listener for %r failed; the worker goes on", kind)
