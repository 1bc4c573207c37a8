"""The child processes of one worker. A child is reused until it dies, uses too much memory or has run enough jobs.

If all children are busy, an attempt waits for a free one. The timeout of the attempt starts when it gets a child.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millrace.app.handler.address import MAIN, HandlerAddress, main_program
from millrace.app.handler.verdict import Abort
from millrace.domain.errors import InvalidInput
from millrace.worker.process.child import RETIRE_WAIT, BrokenChild, Child
from millrace.worker.process.death import Death
from millrace.worker.process.guard import ProcessGuard
from millrace.worker.process.remote import Encoded, NoChild, ProcessDied, result_of
from millrace.worker.process.wire import AttemptDone, Boot, Work

if TYPE_CHECKING:
    from millrace.worker.run import Run

log = logging.getLogger("millrace.worker")
_job_log = logging.getLogger("millrace.handler")

BOOT_PATIENCE = 60.0
CLEAN_UP_WAIT = 20.0  # seconds that a child has to leave the app's lifespan
CLOSE_WAIT = 1.0  # seconds more than a child has to exit
TRIES = 3


class Children:
    """The child processes of one worker. All methods must be called on the event loop."""

    def __init__(
        self,
        tasks: Sequence[HandlerAddress],
        limit: int,
        *,
        begin: Callable[[Run], None],
        max_jobs: int | None = None,
        max_memory: int | None = None,
        cleans_up: bool = False,
    ) -> None:
        self._retire_wait = CLEAN_UP_WAIT if cleans_up else RETIRE_WAIT
        self._boot = Boot(
            parent=os.getpid(),
            path=_encoded(sys.path),
            arguments=_encoded(sys.argv),
            program=main_program() if any(task.module == MAIN for task in tasks) else None,
            tasks=list(tasks),
        )
        self._limit = limit
        self._begin = begin
        self._max_jobs = math.inf if max_jobs is None else max_jobs
        self._max_memory = math.inf if max_memory is None else max_memory
        self._loop = asyncio.get_running_loop()
        self._all: set[Child] = set()
        self._idle: list[Child] = []
        self._waiting: deque[asyncio.Future[Child]] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._not_started = 0  # tasks in `_starting` that have not created their child yet
        self._closing = False
        self._failed_starts = 0  # in succession
        self._guard: ProcessGuard | None = None

    @property
    def count(self) -> int:
        return len(self._all)

    async def warm_up(self, stop: asyncio.Event) -> None:
        """Start the first child before any job is claimed. Return early if `stop` is set.

        Raises InvalidInput if the child cannot import its tasks. So an import error stops the worker, and no job fails
        because of it.
        """
        self._guard = ProcessGuard()
        stopping = self._loop.create_task(stop.wait())
        start = self._loop.create_task(self._start_first())
        try:
            await asyncio.wait([start, stopping], return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                self._offer(start.result())
        except BrokenChild as broken:
            raise InvalidInput(
                f"a process for the tasks with process=True did not start: {broken}. They are imported there by name: "
                f"{', '.join(f'{one.module}:{one.path}' for one in self._boot.tasks)}."
            ) from None
        finally:
            stopping.cancel()
            if not start.done():
                start.cancel()
                await asyncio.wait([start])

    async def _start_first(self) -> Child:
        """Start a child and return it. Try again if a child dies for a reason other than an import error."""
        for _ in range(TRIES - 1):
            try:
                return await self._start_child()
            except BrokenChild as broken:
                if broken.error is not None:
                    raise
                log.warning("the first process for handlers did not start: %s; trying again", broken)
        return await self._start_child()

    async def call(self, run: Run) -> Encoded:
        """Run an attempt in a child and return its encoded result.

        If the handler raised Retry, Snooze or Bury, raises the same. If it raised another exception, raises RemoteError
        with the text of that exception.
        """
        run.wait_to_begin()

        def began(child: Child) -> None:
            run.runs_in(_ChildExecution(child))

        try:
            [end] = await self.call_many([run], began, batch=False)
        finally:
            run.runs_in(None)
        if isinstance(end, BaseException):
            raise end
        return end

    async def call_many(
        self, runs: Sequence[Run], began: Callable[[Child], None], *, batch: bool = True
    ) -> list[Encoded | BaseException]:
        """Run several attempts with one call of their handler. Return a result or an exception for each attempt.

        When the call starts, call `began` with the child in which it runs.
        """
        child = await self._take()
        try:
            for run in runs:
                self._begin(run)
            began(child)
            answer = await child.do(_work(runs, batch), runs)
        except asyncio.CancelledError:  # the result is no longer needed
            child.kill()
            raise
        finally:
            self._release(child)
        if isinstance(answer, Death):
            return [ProcessDied(run.job.attempt, answer) for run in runs]
        return [_end(run, done) for run, done in zip(runs, answer.ends, strict=True)]

    async def close(self) -> None:
        """Stop all children: ask idle children to exit and kill busy ones. Wait for their exit for a limited time."""
        self._closing = True
        for start in list(self._starting):
            start.cancel()
        for child in list(self._all):
            if child in self._idle:
                child.retire()
            else:
                child.kill()
        deaths = [child.died for child in self._all]
        if deaths:
            await asyncio.wait(deaths, timeout=self._retire_wait + CLOSE_WAIT)
        if self._guard is not None:
            guard, self._guard = self._guard, None
            await asyncio.to_thread(guard.close)

    # ── free children ─────────────────────────────────────────────────────────────────────────

    async def _take(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.usable:  # otherwise it has died, and will be removed
                return child
        turn: asyncio.Future[Child] = self._loop.create_future()
        self._waiting.append(turn)
        self._grow()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._offer(turn.result())
            raise

    def _offer(self, child: Child) -> None:
        while self._waiting and child.usable:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(child)
                return
        self._idle.append(child)

    def _release(self, child: Child) -> None:
        if child.death is not None:
            self._grow()
        elif child.halted or child.jobs >= self._max_jobs or child.memory > self._max_memory or self._closing:
            child.retire()  # after an abort as well: its handler was interrupted at an unknown point
        else:
            self._offer(child)

    def _grow(self) -> None:
        wanted = sum(not turn.done() for turn in self._waiting) - len(self._starting)
        room = self._limit - len(self._all) - self._not_started
        for _ in range(0 if self._closing else min(wanted, room)):
            self._not_started += 1
            start = self._loop.create_task(self._add())
            self._starting.add(start)
            start.add_done_callback(self._starting.discard)

    async def _add(self) -> None:
        self._not_started -= 1
        try:
            child = await self._start_child()
        except BrokenChild as broken:
            self._failed_starts += 1
            log.error("a process for handlers did not start: %s", broken)
            if self._failed_starts >= TRIES or broken.error is not None:
                self._give_up(broken)
            self._loop.call_soon(self._grow)  # when this task is no longer in `_starting`
        else:
            self._failed_starts = 0
            self._offer(child)

    def _give_up(self, broken: BrokenChild) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(NoChild(str(broken)))
                return

    async def _start_child(self) -> Child:
        child = Child(self._loop, self._retire_wait)
        self._all.add(child)
        child.died.add_done_callback(lambda _: self._forget(child))
        try:
            child.start()
            if self._guard is not None:
                self._guard.watch(child.pid)
            await child.boot(self._boot, BOOT_PATIENCE)
        except BaseException:
            if not child.pid:  # nothing was started
                self._all.discard(child)
            raise
        return child

    def _forget(self, child: Child) -> None:
        self._all.discard(child)
        if self._guard is not None:
            self._guard.forget(child.pid)
        if child in self._idle:
            self._idle.remove(child)
            if not self._closing:
                log.warning("an idle process for handlers %s", child.death)
        self._grow()


def _encoded(names: Sequence[object]) -> list[bytes]:
    """Return file names as bytes, because they are not always valid text. Objects that are not names are left out."""
    return [os.fsencode(name) for name in names if isinstance(name, str | bytes | os.PathLike)]


def _work(runs: Sequence[Run], batch: bool) -> Work:
    remaining = [None if math.isinf(run.deadline) else max(0.0, run.deadline - run.clock()) for run in runs]
    return Work([run.job for run in runs], remaining, _job_log.getEffectiveLevel(), batch, runs[0].keeps_log)


def _end(run: Run, done: AttemptDone) -> Encoded | BaseException:
    run.receive(done.children, done.progress)
    return result_of(run, done)


class _ChildExecution:
    """The `Execution` of a run in a child process. It stops or kills the child."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def stop(self, why: Abort) -> None:
        self._child.halt(why)

    def abandon(self) -> bool:
        """Kill the child. Return True, because the handler is certain to end."""
        self._child.kill()
        return True
