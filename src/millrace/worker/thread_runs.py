"""Runs of `def` handlers in threads, without an asyncio task unless they have middleware.

A run that gets a slot is given to a thread. When its handler has ended, the thread continues with the next waiting run
in the same slot, if that is a `def` handler too. The ends are collected, and the event loop handles all of them in one
call. So short handlers cost one change of threads for many jobs.

The lock protects the two changes that a thread and the loop could make at the same time: taking a run from the waiting
ones, and the end of a run, which the loop may be abandoning.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.app.handler.verdict import Abort, Aborted
from millrace.app.telemetry.log_context import current_job
from millrace.domain.outcome import Outcome
from millrace.worker.process.remote import for_future
from millrace.worker.run import Run
from millrace.worker.threads import Threads, call_in_loop

if TYPE_CHECKING:
    from millrace.worker.executor import Executor


class ThreadEnd(NamedTuple):
    """The end of a handler in a thread."""

    run: Run
    outcome: Outcome | None
    frees_slot: bool  # False if the thread continues with another run in the same slot


class ThreadRuns:
    """Runs `def` handlers for the executor."""

    def __init__(self, executor: Executor, threads: Threads) -> None:
        self.lock = threading.Lock()
        self._executor = executor
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._ends: deque[ThreadEnd] = deque()
        self._end_requested = False

    def start(self, run: Run) -> None:
        """Run a handler in a thread, as soon as one is free. The timeout starts when the handler starts."""
        run.wait_to_begin()
        self._threads.submit(lambda: self._work(run))

    def abandon(self, run: Run) -> bool:
        """Leave a handler behind that does not stop. Return False if it has just ended."""
        with self.lock:
            if run.ended:
                return False
            run.ended = True
        self._threads.abandoned()
        return True

    # ── with middleware ───────────────────────────────────────────────────────────────────────

    async def run(self, run: Run, handler: Callable[..., Any] | None = None) -> object:
        """Run a `def` handler in a thread and return its result. This is the strategy of `def` handlers with
        middleware. `handler` replaces that of the task, as in `run_on_loop`.

        The handler sees the context variables that the middleware has set. If it has injected parameters, this returns
        only when the thread has ended, even if it is cancelled: their providers must not clean up before that.
        """
        future: asyncio.Future[object] = self._loop.create_future()
        ended = asyncio.Event()
        execution = _ThreadExecution(self._threads)

        def call() -> object:
            if run.why is not None:
                raise Aborted(run.job.id, run.why)
            if future.cancelled():
                raise Aborted(run.job.id, "its middleware no longer waits for it")
            return (handler or run.task.handler)(**run.arguments())

        def end(value: object, error: BaseException | None) -> None:
            ended.set()
            if execution.abandoned:
                self._executor.zombies_ended(1, in_thread=True)
            elif future.done():
                return
            elif error is not None:
                future.set_exception(for_future(error))
            else:
                future.set_result(value)

        if not self._threads.call(self._loop, call, lambda: self._executor.begin(run), end):
            run.wait_to_begin()
        run.runs_in(execution)
        try:
            return await future
        except asyncio.CancelledError:
            if handler is not None:
                await _until(ended)
            raise
        finally:
            if not execution.abandoned:
                run.runs_in(None)
                # Cancelled by middleware with a time limit of its own: the thread runs on.
                if future.cancelled() and not ended.is_set():
                    execution.abandon()
                    self._executor.zombies += 1

    # ── in a thread ───────────────────────────────────────────────────────────────────────────

    def _work(self, first: Run) -> None:
        run: Run | None = first
        while run is not None:
            self._executor.begin_in_thread(run)
            # A copy of the context for each run: a handler must not see the variables that another one has set.
            outcome = contextvars.copy_context().run(_call, run) if run.why is None else run.aborted(run.why)
            run = self._end(run, outcome)

    def _end(self, run: Run, outcome: Outcome | None) -> Run | None:
        """Report the end of a run. Return the run with which the thread continues in the same slot, if there is one."""
        with self.lock:
            if run.ended:  # it was abandoned, and its slot is in use again
                call_in_loop(self._loop, self._zombie_ended)
                return None
            run.ended = True
            following = None if self._threads.backlog else self._executor.take_waiting_in_thread()
        self._ends.append(ThreadEnd(run, outcome, following is None))
        if not self._end_requested:
            self._end_requested = True
            call_in_loop(self._loop, self._handle_ends)
        return following

    # ── on the loop ───────────────────────────────────────────────────────────────────────────

    def _handle_ends(self) -> None:
        self._end_requested = False  # before the ends are read: an end that is added later requests another call
        ends = self._ends
        self._executor.threads_ended([ends.popleft() for _ in range(len(ends))])

    def _zombie_ended(self) -> None:
        self._executor.zombies_ended(1, in_thread=True)


class _ThreadExecution:
    """The `Execution` of a handler in a thread. A thread cannot be stopped: the handler must check its context."""

    def __init__(self, threads: Threads) -> None:
        self.abandoned = False
        self._threads = threads

    def stop(self, why: Abort) -> None: ...

    def abandon(self) -> bool:
        self.abandoned = True
        self._threads.abandoned()
        return False


async def _until(ended: asyncio.Event) -> None:
    """Wait for the end of a thread, also if the waiting task is cancelled."""
    while not ended.is_set():
        with suppress(asyncio.CancelledError):
            await ended.wait()


def _call(run: Run) -> Outcome | None:
    current_job.set(run.job)
    try:
        return run.returned(run.task.handler(**run.arguments()))
    except BaseException as error:
        return run.raised(error)
