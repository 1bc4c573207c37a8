"""Hooks of a pool: the user's functions that are called when a job dies or a lane becomes empty.

Each call of a hook is a job in the pool's own queue, enqueued in the same step in which the job dies or the lane
becomes empty. So the call is not lost if a worker dies, is retried like any job, and runs on a worker that serves the
pool.
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from millrace.app.task import Task
from millrace.domain.errors import InvalidInput
from millrace.domain.rules.dead import DeadLetter
from millrace.domain.rules.lanes import instance_id

if TYPE_CHECKING:
    from millrace.app.handler.context import Context
    from millrace.app.pools.pool import Pool


class DeadJob:
    """A job of a pool, as it was when it died. Times are in milliseconds of the store's clock."""

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
        """The handler's arguments. Raises PayloadInvalid if the payload no longer fits the handler."""
        return self._read(self.payload, self._serde)

    @property
    def instance(self) -> str | None:
        """The pool and the lane in one name, such as `workerPool:orders:3`; None if the job had no lane."""
        return None if self.lane is None else instance_id(self.pool, self.lane)

    def __repr__(self) -> str:
        return f"<DeadJob {self.id!r} of pool {self.pool!r}, seq {self.seq}: {self.reason}>"


class Emptied:
    """A lane whose last waiting or running job has finished. `processed` counts all jobs it ever completed."""

    def __init__(self, pool: str, lane: int, processed: int) -> None:
        self.pool = pool
        self.lane = lane
        self.processed = processed

    @property
    def instance(self) -> str:
        """The pool and the lane in one name, such as `workerPool:orders:3`."""
        return instance_id(self.pool, self.lane)

    def __repr__(self) -> str:
        return f"<Emptied {self.instance!r} after {self.processed} jobs>"


DeadJobHook = Callable[[DeadJob], Any] | Callable[["Context", DeadJob], Any]
EmptiedHook = Callable[[Emptied], Any] | Callable[["Context", Emptied], Any]


def dead_job_handler(pool: Pool, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler of `on_dead_letter` jobs, which calls the user's function with a DeadJob."""
    function, is_async = _plain(function)
    call = _caller(function, "a DeadJob")
    if is_async:

        async def run_hook_async(ctx: Context, letter: DeadLetter) -> None:
            await call(ctx, DeadJob(letter, pool.read))

        return run_hook_async

    def run_hook(ctx: Context, letter: DeadLetter) -> None:
        call(ctx, DeadJob(letter, pool.read))

    return run_hook


def emptied_handler(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler of `on_empty` jobs, which calls the user's function with an Emptied."""
    function, is_async = _plain(function)
    call = _caller(function, "an Emptied")
    if is_async:

        async def run_hook_async(ctx: Context, queue: str, lane: int, finished: int) -> None:
            await call(ctx, Emptied(queue, lane, finished))

        return run_hook_async

    def run_hook(ctx: Context, queue: str, lane: int, finished: int) -> None:
        call(ctx, Emptied(queue, lane, finished))

    return run_hook


def _plain(function: Any) -> tuple[Callable[..., Any], bool]:
    """Return the function to call, and whether it is async. For a task, this is the task's handler."""
    if isinstance(function, Task):
        return function.handler, function.is_async
    called = getattr(function, "__call__", None)  # noqa: B004  # of an object that acts as a function
    return function, inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _caller(function: Callable[..., Any], what: str) -> Callable[[Context, object], Awaitable[Any]]:
    """Return a function that takes a context and an argument, and calls the user's function.

    The user's function gets both if it has two parameters, and only the argument if it has one. Raises InvalidInput if
    it has any other number of parameters.
    """
    wants_context = _parameters(function, what) == 2
    return lambda ctx, argument: function(ctx, argument) if wants_context else function(argument)


def _parameters(function: Callable[..., Any], what: str) -> int:
    how = f"a hook of a pool takes {what}, or a Context and {what}"
    if not callable(function):
        raise InvalidInput(f"{how}; {function!r} is not a function")
    signature = inspect.signature(function)
    for number in (1, 2):
        try:
            signature.bind(*[None] * number)
        except TypeError:
            continue
        return number
    raise InvalidInput(f"{how}; {function!r} takes {signature}")
