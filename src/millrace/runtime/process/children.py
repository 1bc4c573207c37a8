"""The children of one worker: kept warm, used again, and replaced when they have died, grown too large or old.

An attempt that finds all of them busy waits, and its timeout begins when it has got one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence

from millrace.domain.errors import InvalidInput
from millrace.runtime.hold import Abort
from millrace.runtime.process.address import MAIN, Address, main_program
from millrace.runtime.process.child import BrokenChild, Child
from millrace.runtime.process.death import Death
from millrace.runtime.process.guard import Guard
from millrace.runtime.process.remote import Encoded, NoChild, ProcessDied, told
from millrace.runtime.process.wire import Boot, Done, Work
from millrace.runtime.run import Run

log = logging.getLogger("millrace.worker")
_job_log = logging.getLogger("millrace.job")

BOOT_PATIENCE = 60.0
CLOSE_WAIT = 3.0
TRIES = 3


class Children:
    """All methods belong to the event loop."""

    def __init__(
        self,
        tasks: Sequence[Address],
        limit: int,
        *,
        begin: Callable[[Run], None],
        max_jobs: int | None = None,
        max_memory: int | None = None,
    ) -> None:
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
        self._births: set[asyncio.Task[None]] = set()
        self._unborn = 0  # of those, the ones that have not begun
        self._closing = False
        self._stillborn = 0  # in a row
        self._guard: Guard | None = None

    @property
    def count(self) -> int:
        return len(self._all)

    async def warm_up(self, stop: asyncio.Event) -> None:
        """Start the first one before any job is claimed: tasks that cannot be imported are the worker's fault.

        Importing may take long; a `stop` meanwhile does not wait for it.
        """
        self._guard = Guard()
        stopping = self._loop.create_task(stop.wait())
        birth = self._loop.create_task(self._first_born())
        try:
            await asyncio.wait([birth, stopping], return_when=asyncio.FIRST_COMPLETED)
            if birth.done():
                self._offer(birth.result())
        except BrokenChild as broken:
            raise InvalidInput(
                f"a process for the tasks with process=True did not start: {broken}. They are imported there by name: "
                f"{', '.join(f'{one.module}:{one.path}' for one in self._boot.tasks)}."
            ) from None
        finally:
            stopping.cancel()
            if not birth.done():
                birth.cancel()
                await asyncio.wait([birth])

    async def _first_born(self) -> Child:
        """An error of its own would come again; one that somebody killed gets another try."""
        for _ in range(TRIES - 1):
            try:
                return await self._born()
            except BrokenChild as broken:
                if broken.error is not None:
                    raise
                log.warning("the first process for handlers did not start: %s; trying again", broken)
        return await self._born()

    async def call(self, run: Run) -> Encoded:
        """Run an attempt in a child; its result is encoded already. Raises what the handler raised, as text."""
        run.deadline = run.extend_until = math.inf

        def began(child: Child) -> None:
            run.inner = _InChild(child)

        try:
            [end] = await self.call_many([run], began, batch=False)
        finally:
            run.inner = None
        if isinstance(end, BaseException):
            raise end
        return end

    async def call_many(
        self, runs: Sequence[Run], began: Callable[[Child], None], *, batch: bool = True
    ) -> list[Encoded | BaseException]:
        """Run several attempts by one call of their handler; each has its own end."""
        child = await self._take()
        try:
            for run in runs:
                self._begin(run)
            began(child)
            answer = await child.do(_work(runs, batch), runs)
        except asyncio.CancelledError:  # whoever cancels this wants no result any more
            child.kill()
            raise
        finally:
            self._release(child)
        if isinstance(answer, Death):
            return [ProcessDied(run.job.attempt, answer) for run in runs]
        return [_end(run, done) for run, done in zip(runs, answer.ends, strict=True)]

    async def close(self) -> None:
        """Every child has ended when this returns."""
        self._closing = True
        for birth in list(self._births):
            birth.cancel()
        for child in list(self._all):
            if child in self._idle:
                child.retire()
            else:
                child.kill()
        deaths = [child.died for child in self._all]
        if deaths:
            await asyncio.wait(deaths, timeout=CLOSE_WAIT)
        if self._guard is not None:
            guard, self._guard = self._guard, None
            await asyncio.to_thread(guard.close)

    # ── who is free ───────────────────────────────────────────────────────────────────────────

    async def _take(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.usable:  # else it has died, and will be buried in a moment
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
            child.retire()  # after an abort too: who knows what its handler was in the middle of
        else:
            self._offer(child)

    def _grow(self) -> None:
        wanted = sum(not turn.done() for turn in self._waiting) - len(self._births)
        room = self._limit - len(self._all) - self._unborn
        for _ in range(0 if self._closing else min(wanted, room)):
            self._unborn += 1
            birth = self._loop.create_task(self._add())
            self._births.add(birth)
            birth.add_done_callback(self._births.discard)

    async def _add(self) -> None:
        self._unborn -= 1
        try:
            child = await self._born()
        except BrokenChild as broken:
            self._stillborn += 1
            log.error("a process for handlers did not start: %s", broken)
            if self._stillborn >= TRIES or broken.error is not None:
                self._give_up(broken)
            self._loop.call_soon(self._grow)  # when this birth no longer counts as one
        else:
            self._stillborn = 0
            self._offer(child)

    def _give_up(self, broken: BrokenChild) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(NoChild(str(broken)))
                return

    async def _born(self) -> Child:
        child = Child(self._loop)
        self._all.add(child)
        child.died.add_done_callback(lambda _: self._bury(child))
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

    def _bury(self, child: Child) -> None:
        self._all.discard(child)
        if self._guard is not None:
            self._guard.forget(child.pid)
        if child in self._idle:
            self._idle.remove(child)
            if not self._closing:
                log.warning("an idle process for handlers %s", child.death)
        self._grow()


def _encoded(names: Sequence[object]) -> list[bytes]:
    """Names of files are bytes, though not always text; what is no name at all, nobody could import from."""
    return [os.fsencode(name) for name in names if isinstance(name, str | bytes | os.PathLike)]


def _work(runs: Sequence[Run], batch: bool) -> Work:
    remaining = [None if math.isinf(run.deadline) else max(0.0, run.deadline - run.clock()) for run in runs]
    return Work([run.job for run in runs], remaining, _job_log.getEffectiveLevel(), batch)


def _end(run: Run, done: Done) -> Encoded | BaseException:
    run.children = [*(run.children or ()), *done.children] or None  # middleware may have carried some
    if done.progress is not None:
        run.progress = done.progress
    return told(run, done)


class _InChild:
    """What aborting means for a run in a child."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def stop(self, why: Abort) -> None:
        self._child.halt(why)

    def abandon(self) -> bool:
        """True: its end is certain, and about to be seen."""
        self._child.kill()
        return True
