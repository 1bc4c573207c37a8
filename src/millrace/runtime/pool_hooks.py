"""What a pool tells: a job of it died, a lane of it ran empty.

Both are jobs of the pool's own queue, enqueued by the very step that made them true. So they outlive the worker, are
retried like any job, and run on a worker that knows the pool (W-28, W-29, BW-08, BW-11).
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from millrace.domain.dead import DeadLetter
from millrace.domain.errors import InvalidInput
from millrace.domain.line import instance_id
from millrace.runtime.task import Task

if TYPE_CHECKING:
    from millrace.runtime.context import Context
    from millrace.runtime.pool import Pool


class DeadJob:
    """A job that a pool gave up on, as it stood when it died. Instants are milliseconds of the store's clock."""

    def __init__(self, letter: DeadLetter, read: Callable[[bytes, str], dict[str, Any]]) -> None:
        self._read = read
        self._serde = letter.serde
        self.pool = letter.queue
        self.id = letter.id
        self.seq = letter.seq
        self.lane = letter.lane
        self.partition = letter.group
        self.payload = base64.b64decode(letter.payload)
        self.reason = letter.reason
        self.error = letter.error
        self.attempts = letter.attempts
        self.failures = letter.failures
        self.enqueued_at = letter.enqueued_at
        self.failed_at = letter.failed_at

    @property
    def args(self) -> dict[str, Any]:
        """The handler's arguments, as it would get them. Raises PayloadInvalid when they no longer fit it."""
        return self._read(self.payload, self._serde)

    @property
    def instance(self) -> str | None:
        return None if self.lane is None else instance_id(self.pool, self.lane)

    def __repr__(self) -> str:
        return f"<DeadJob {self.id!r} of pool {self.pool!r}, seq {self.seq}: {self.reason}>"


class Emptied:
    """A lane whose last job has just ended; `processed` is how many it has ever completed."""

    def __init__(self, pool: str, lane: int, processed: int) -> None:
        self.pool = pool
        self.lane = lane
        self.processed = processed

    @property
    def instance(self) -> str:
        return instance_id(self.pool, self.lane)

    def __repr__(self) -> str:
        return f"<Emptied {self.instance!r} after {self.processed} jobs>"


DeadJobHook = Callable[[DeadJob], Any] | Callable[["Context", DeadJob], Any]
EmptiedHook = Callable[[Emptied], Any] | Callable[["Context", Emptied], Any]


def dead_job_handler(pool: Pool, function: Callable[..., Any]) -> Callable[..., Any]:
    """A handler for the jobs that tell of deaths, around what the user wrote."""
    function, is_async = _plain(function)
    call = _caller(function, "a DeadJob")
    if is_async:

        async def tell_later(ctx: Context, letter: DeadLetter) -> None:
            await call(ctx, DeadJob(letter, pool.read))

        return tell_later

    def tell(ctx: Context, letter: DeadLetter) -> None:
        call(ctx, DeadJob(letter, pool.read))

    return tell


def emptied_handler(function: Callable[..., Any]) -> Callable[..., Any]:
    """A handler for the jobs that tell of empty lanes, around what the user wrote."""
    function, is_async = _plain(function)
    call = _caller(function, "an Emptied")
    if is_async:

        async def tell_later(ctx: Context, queue: str, lane: int, finished: int) -> None:
            await call(ctx, Emptied(queue, lane, finished))

        return tell_later

    def tell(ctx: Context, queue: str, lane: int, finished: int) -> None:
        call(ctx, Emptied(queue, lane, finished))

    return tell


def _plain(function: Any) -> tuple[Callable[..., Any], bool]:
    """The function itself, also when it was made a task before; and whether it is to be awaited."""
    if isinstance(function, Task):
        return function.handler, function.is_async
    called = getattr(function, "__call__", None)  # noqa: B004  # of an object that acts as a function
    return function, inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _caller(function: Callable[..., Any], what: str) -> Callable[[Context, object], Awaitable[Any]]:
    """The user's function under one shape: it takes what it is told of, and a context first if it wants one."""
    wants_context = _parameters(function, what) == 2
    return lambda ctx, told: function(ctx, told) if wants_context else function(told)


def _parameters(function: Callable[..., Any], what: str) -> int:
    how = f"a hook of a pool takes {what}, or a Context and {what}"
    if not callable(function):
        raise InvalidInput(f"{how}; {function!r} is no function")
    signature = inspect.signature(function)
    for number in (1, 2):
        try:
            signature.bind(*[None] * number)
        except TypeError:
            continue
        return number
    raise InvalidInput(f"{how}; {function!r} takes {signature}")
