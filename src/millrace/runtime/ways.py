"""Ways: how a run is carried out where it takes more than calling a coroutine.

A plain `async def` handler is driven directly (`run.drive`), and so is a `def` handler in a thread. A handler in a
process or in a batch, and every handler with middleware around it, is conducted: a task on the worker's loop awaits
it, so that the layers around it can. Aborting such a run tells the handler where it is; only what runs on the loop
itself is cancelled.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

from millrace.domain.errors import PayloadInvalid
from millrace.domain.outcome import Buried, Failure, Outcome, Released, Returned, TimedOut
from millrace.runtime.hold import Abort
from millrace.runtime.log_context import current_job
from millrace.runtime.process.remote import Encoded, ProcessDied, RemoteError
from millrace.runtime.run import End, Reported, Run, aborted, raised, returned, runs
from millrace.runtime.threads import Threads
from millrace.runtime.verdict import Aborted

Way = Callable[[Run], Awaitable[object]]


async def conduct(run: Run, way: Way, end: End) -> None:
    """Go a way to its end. The caller makes this a task."""
    current_job.set(run.job)
    try:
        value = await way(run)
        outcome = encoded(run, value) if isinstance(value, Encoded) else returned(run, value)
    except KeyboardInterrupt:
        end(run, Released())
        raise
    except BaseException as error:
        if isinstance(error, GeneratorExit) and not runs(run):
            raise  # not the handler's: this coroutine is being thrown away with its loop
        outcome = _ended_by(run, error)
    end(run, outcome)


def encoded(run: Run, value: Encoded) -> Outcome | None:
    """A result that needs no encoding; it is decoded for local listeners only."""
    if run.why is Abort.TIMEOUT or run.why is Abort.LOST:
        return aborted(run, run.why)
    run.value = run.task.load_result(value.data, run.job.spec.serde)
    return Returned(value.data)


def _ended_by(run: Run, error: BaseException) -> Outcome | None:
    outcome = raised(run, error)
    if isinstance(outcome, TimedOut) and isinstance(error, ProcessDied):
        said = f"{outcome.error.message}; its process {error.death}"
        return TimedOut(Failure(outcome.error.type, said))
    return outcome


class Unfit(Reported, PayloadInvalid):
    """The payload does not fit the handler: no later attempt would fare better."""

    def outcome(self) -> Outcome:
        return Buried(Failure.from_exception(self.__cause__ or self), "payload_invalid")


def arguments(run: Run) -> dict[str, Any]:
    try:
        return run.arguments()
    except PayloadInvalid as error:
        raise Unfit(str(error)) from error


async def on_loop(run: Run) -> object:
    result: object = await run.task.handler(**arguments(run))
    return result


class InThread:
    """The way through a thread, for a `def` handler that has something around it."""

    def __init__(
        self, threads: Threads, begin: Callable[[Run], None], left: Callable[[], None], came_back: Callable[[], None]
    ) -> None:
        self._threads = threads
        self._begin = begin
        self._left = left
        self._came_back = came_back

    async def __call__(self, run: Run) -> object:
        return await self.carry_out(run, lambda: run.task.handler(**arguments(run)))

    async def carry_out(self, run: Run, function: Callable[[], object]) -> object:
        """Call `function` in a thread that sees the caller's context variables; the run's time begins there."""
        loop = asyncio.get_running_loop()
        end: asyncio.Future[object] = loop.create_future()
        inner = _Thread(self._threads)

        def finish(value: object, error: BaseException | None) -> None:
            if inner.abandoned:
                self._came_back()
            elif end.done():
                return
            elif error is not None:
                end.set_exception(raisable(error))
            else:
                end.set_result(value)

        def unless_told() -> object:
            if run.why is not None:
                raise Aborted(run.job.id, run.why)
            if end.cancelled():
                raise Aborted(run.job.id, "nobody waits for it any more")
            return function()

        if not start_in_thread(self._threads, loop, unless_told, lambda: self._begin(run), finish):
            run.deadline = run.extend_until = math.inf
        run.inner = inner
        try:
            return await end
        finally:
            if not inner.abandoned:
                run.inner = None
                if end.cancelled():  # by a layer with a time limit of its own, say: the thread goes on all the same
                    inner.abandon()
                    self._left()


def start_in_thread(
    threads: Threads,
    loop: asyncio.AbstractEventLoop,
    function: Callable[[], object],
    begin: Callable[[], None],
    finish: Callable[[object, BaseException | None], None],
) -> bool:
    """Call `function` in a thread and `finish`, on the loop, with how it ended.

    False when it must wait for a thread first: `begin` is called, on the loop, when it has got one.
    """
    late = True

    def work() -> None:
        if late:
            call_soon(loop, begin)
        try:
            value = function()
        except BaseException as error:
            call_soon(loop, finish, None, error)
        else:
            call_soon(loop, finish, value, None)

    late = not threads.submit(work)
    return not late


class _Thread:
    """Nobody can stop a thread: its context has told the handler, and that is all."""

    def __init__(self, threads: Threads) -> None:
        self.abandoned = False
        self._threads = threads

    def stop(self, why: Abort) -> None: ...

    def abandon(self) -> bool:
        self.abandoned = True
        self._threads.gave_up()
        return False


def raisable(error: BaseException) -> BaseException:
    """A future refuses StopIteration, and lets SystemExit and KeyboardInterrupt end the loop."""
    if isinstance(error, StopIteration | SystemExit | KeyboardInterrupt):
        return RemoteError(Failure.from_exception(error))
    return error


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:  # the loop is closed: nobody waits for this run any more
        return
