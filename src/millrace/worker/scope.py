"""The scope of a worker: what is made once, is shared by its runs, and is cleaned up when the worker ends.

It has the value of the app's lifespan (`ctx.state`), and the values of providers with `scope="worker"`. All of them are
entered and left in one asyncio task, because a context manager may require this, for example one with a task group.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any

from millrace.domain.errors import InvalidInput, LifespanFailed

log = logging.getLogger("millrace.worker")

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
Open = Callable[[AsyncExitStack], Awaitable[Any]]  # makes a value, and adds its clean-up to the stack

CANCEL_WAIT = 1.0  # seconds that a cancelled clean-up has to end
_NONE: Any = object()
_Request = tuple[Open, "asyncio.Future[Any]"]


class WorkerScope:
    """What the runs of one worker share. `clock` is the clock of their deadlines. `state` can be read in any thread.

    A background task of the lifespan may fail and so end the scope before `leave`, for example in an asyncio.TaskGroup.
    Then `failed` is set, and `on_failure` is called at once, on the event loop: the worker must not start more jobs.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        lifespan: Lifespan | None = None,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        self.clock = clock
        self.failed = False
        self._lifespan = lifespan
        self._on_failure = on_failure
        self._cause: BaseException | None = None  # of the failure, known when the clean-up has ended
        self._state: Any = _NONE
        self._context = contextvars.copy_context()  # of the worker, and not of the run that asks first
        self._host: asyncio.Task[None] | None = None
        self._left = False
        self._entered: asyncio.Event | None = None
        self._requests: asyncio.Queue[_Request | None] | None = None
        self._shared: dict[Any, asyncio.Future[Any]] = {}

    @property
    def state(self) -> Any:
        """The value that the app's lifespan has yielded.

        Raises InvalidInput if the app has no lifespan, and LifespanFailed if it has ended before the worker.
        """
        if self.failed:
            raise self._failure()
        if self._state is _NONE:
            raise InvalidInput("ctx.state is the value of the app's lifespan, and the app has none: add @app.lifespan")
        return self._state

    async def enter(self, stop: asyncio.Event | None = None) -> bool:
        """Enter the app's lifespan. Return False if `stop` was set before that was done; it is cancelled then.

        Raises LifespanFailed.
        """
        if self._lifespan is None:
            return True
        host = self._started_host()
        assert self._entered is not None
        entered = self._entered
        await _first_of(host, entered.wait(), *([] if stop is None else [stop.wait()]))
        if entered.is_set():
            return True
        self._host = None
        host.cancel()  # nothing happens if it has failed
        await asyncio.wait([host])
        if host.cancelled():
            return False
        error = host.exception()
        if error is None:
            raise LifespanFailed("at start-up", "it has ended without a value")
        log.error("the app's lifespan failed at start-up", exc_info=error)
        raise LifespanFailed("at start-up", f"{type(error).__name__}: {error}") from error

    async def leave(self, hurry: asyncio.Event | None = None, patience: float = 0.0) -> None:
        """Clean up: end the values of providers, then the lifespan, and wait for that.

        Once `hurry` is set, wait only for another `patience` seconds, then cancel the clean-up. Raises LifespanFailed.
        """
        self._left = True
        host, self._host = self._host, None
        if host is None:
            return
        assert self._entered is not None and self._requests is not None
        if self._entered.is_set():
            self._requests.put_nowait(None)
        else:
            host.cancel()
        await _first_of(host, *([] if hurry is None else [hurry.wait()]))
        if not host.done():
            await asyncio.wait([host], timeout=patience)
        if not host.done():
            log.error("the clean-up of the app's lifespan did not end within %g s; it is cancelled", patience)
            host.cancel()
            await asyncio.wait([host], timeout=CANCEL_WAIT)
        if self.failed:
            raise self._failure()
        if host.done() and not host.cancelled() and (error := host.exception()) is not None:
            log.error("the clean-up of the app's lifespan failed", exc_info=error)
            raise LifespanFailed("at shutdown", f"{type(error).__name__}: {error}") from error

    async def shared(self, name: Any, make: Open) -> Any:
        """Return the value with this name. The first call makes it; if that fails, the next call tries again."""
        if self.failed:
            raise self._failure()
        if self._left:
            raise _stopped()
        made = self._shared.get(name)
        if made is None:
            self._started_host()
            assert self._requests is not None
            made = self._shared[name] = asyncio.get_running_loop().create_future()
            self._requests.put_nowait((make, made))
        return await asyncio.shield(made)

    def _started_host(self) -> asyncio.Task[None]:
        if self._host is None:
            self._entered, self._requests = asyncio.Event(), asyncio.Queue()
            host = asyncio.get_running_loop().create_task(
                self._live(self._entered, self._requests), context=self._context
            )
            host.set_name("millrace lifespan")
            host.add_done_callback(self._host_ended)
            self._host = host
        return self._host

    async def _live(self, entered: asyncio.Event, requests: asyncio.Queue[_Request | None]) -> None:
        async with AsyncExitStack() as stack:
            if self._lifespan is not None:
                self._state = await stack.enter_async_context(self._lifespan())
            entered.set()
            try:
                while (request := await requests.get()) is not None:
                    await self._make(stack, *request)
            except (Exception, asyncio.CancelledError):
                self._interrupted()
                raise

    async def _make(self, stack: AsyncExitStack, make: Open, made: asyncio.Future[Any]) -> None:
        host = asyncio.current_task()
        assert host is not None
        try:
            value = await make(stack)
        except BaseException as error:
            if host.cancelling() or isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise
            # A CancelledError too: the provider has awaited something that was cancelled.
            self._shared = {name: future for name, future in self._shared.items() if future is not made}
            made.set_exception(error)
            made.exception()  # mark it as retrieved: the run that asked may have been aborted
        else:
            made.set_result(value)

    def _interrupted(self) -> None:
        """Note that the host was cancelled, and its values are cleaned up from now on."""
        if self._left:  # the clean-up took too long
            return
        self.failed = True
        if self._on_failure is not None:
            self._on_failure()

    def _host_ended(self, host: asyncio.Task[None]) -> None:
        """Log a failure at once, and fail the requests that nothing answers any more."""
        if self.failed:
            self._cause = None if host.cancelled() else host.exception()
            log.error("the app's lifespan has ended before its worker; the worker stops", exc_info=self._cause)
        for made in self._shared.values():
            if not made.done():
                made.set_exception(self._failure() if self.failed else _stopped())
                made.exception()

    def _failure(self) -> LifespanFailed:
        cause = self._cause
        while isinstance(cause, BaseExceptionGroup) and len(cause.exceptions) == 1:  # of a TaskGroup
            cause = cause.exceptions[0]
        why = "it was cancelled" if cause is None else f"{type(cause).__name__}: {cause}"
        failure = LifespanFailed("while the worker was running", why)
        failure.__cause__ = self._cause
        return failure


def _stopped() -> InvalidInput:
    return InvalidInput('the worker has stopped, so it makes no more values of providers with scope="worker"')


async def _first_of(host: asyncio.Task[None], *others: Coroutine[Any, Any, Any]) -> None:
    """Wait until the host or one of the coroutines has ended. Cancel the others, but never the host."""
    waiting = [asyncio.ensure_future(other) for other in others]
    try:
        await asyncio.wait([host, *waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*waiting, return_exceptions=True)
