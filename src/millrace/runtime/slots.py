"""Slots: the places in which jobs run, their timeouts, and what is done about handlers that do not end.

Timeouts share one timer for all slots, set to the earliest deadline seen; when it fires it looks at every run.
A job that ends in time costs nothing then, and the look happens about once per timeout, not once per job.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

from millrace.domain.outcome import Outcome
from millrace.runtime.batch import Gatherer
from millrace.runtime.hold import Abort
from millrace.runtime.run import End, Run, aborted, drive, perform
from millrace.runtime.threads import Threads
from millrace.runtime.ways import Way, call_soon, conduct

KILL_WAIT = 1.0  # seconds until a killed process must have been seen to end


class Slots:
    """All methods belong to the event loop, except where they say otherwise."""

    def __init__(self, size: int, threads: int, grace: float, name: str) -> None:
        self.size = size
        self.grace = grace
        self.running: dict[str, Run] = {}  # by lease id
        self.abandoned = 0
        self.zombies = 0  # abandoned, and still running somewhere
        self.ended: End = _nothing  # called at the end of each run, once
        self.when_empty: Callable[[], None] | None = None
        self.when_joined: Callable[[], None] | None = None  # called when a run has joined a batch
        self.threads = Threads(threads, name)
        self.ways: Mapping[str, Way] = {}  # by task: those that are not simply called
        self.gatherers: Mapping[str, Gatherer] = {}  # by task: those that take many jobs at once
        self.shared = 0  # runs that take no slot of their own, since they share that of their batch
        self._orphans: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def share(self, by: int) -> None:
        """A run has joined a batch (0 if it is the first) or left one: so many more share a slot."""
        self.shared += by
        if by >= 0 and self.when_joined is not None:
            self.when_joined()

    @property
    def free(self) -> int:
        return self.size - len(self.running) + self.shared

    def start(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        self.running[run.lease.id] = run
        if self.ways and (way := self.ways.get(run.task.name)) is not None:
            run.handle = loop.create_task(conduct(run, way, self._end_conducted))
        elif run.task.is_async:
            run.handle = loop.create_task(drive(run, self._end))
        else:
            self._start_in_thread(run, loop)
        if run.deadline < self._timer_at:
            self._arm(run.deadline, loop)

    def _start_in_thread(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        late = True

        def work() -> None:
            if late:
                call_soon(loop, self.begin, run)
            call_soon(loop, self._end, run, perform(run) if run.why is None else aborted(run, run.why))

        if self.threads.submit(work):
            late = False  # or not: it may have begun already, and then begins its clock again, a moment later
        else:
            run.deadline = run.extend_until = math.inf

    def begin(self, run: Run) -> None:
        """A handler that had to wait for a thread or a process starts now: that wait was not its fault."""
        if not run.ended and run.why is None:
            loop = asyncio.get_running_loop()
            run.begin(loop.time(), self.grace)
            if run.deadline < self._timer_at:
                self._arm(run.deadline, loop)

    # ── the end of a run ──────────────────────────────────────────────────────────────────────

    def _end(self, run: Run, outcome: Outcome | None) -> None:
        if not run.ended:
            self._leave(run, outcome)
        elif run.handle is None:
            self.thread_came_back()
        else:
            self.zombies -= 1

    def _end_conducted(self, run: Run, outcome: Outcome | None) -> None:
        if not run.ended:
            self._leave(run, outcome)
        elif run.inner is None:  # else the handler still runs, and tells when it comes back
            self.zombies -= 1

    def _leave(self, run: Run, outcome: Outcome | None) -> None:
        run.ended = True
        del self.running[run.lease.id]
        self.ended(run, outcome)
        if self.when_empty is not None and not self.running:
            self.when_empty()

    def abort(self, run: Run, why: Abort) -> None:
        """Tell a run to end; after the grace the worker goes on without it."""
        if run.ended or run.why is why or (run.why is not None and why is not Abort.LOST):
            return
        first = run.why is None
        run.why = why
        run.signal(why)
        if run.inner is not None:
            run.inner.stop(why)
        elif run.handle is not None:
            run.handle.cancel(why.value)
            run.handle.add_done_callback(lambda _: self._end_unbegun(run, why))
        if first:
            asyncio.get_running_loop().call_later(self.grace, self.abandon, run)

    def _end_unbegun(self, run: Run, why: Abort) -> None:
        """A task that is cancelled before its first step never enters its coroutine, which would have told."""
        if not run.ended:
            self._leave(run, aborted(run, why))

    def abort_all(self, why: Abort) -> None:
        for run in list(self.running.values()):
            self.abort(run, why)

    def abandon(self, run: Run) -> None:
        """Go on without a handler that ignores its abort; the fence keeps it from changing the job."""
        if run.ended or run.why is None:
            return
        if run.inner is not None and run.inner.abandon():
            asyncio.get_running_loop().call_later(KILL_WAIT, self._forsake, run)
        else:
            self._forsake(run)

    def _forsake(self, run: Run) -> None:
        if run.ended or run.why is None:
            return
        self.abandoned += 1
        self.zombies += 1
        if run.handle is None:
            self.threads.gave_up()
        else:
            run.handle.cancel(run.why.value)
            self.adopt(run.handle)
        self._leave(run, aborted(run, run.why))

    def abandon_all(self) -> None:
        for run in list(self.running.values()):
            self.abandon(run)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keep a task that was given up: a loop holds its tasks weakly."""
        self._orphans.add(task)
        task.add_done_callback(self._orphans.discard)

    def forsake_all(self) -> None:
        for run in list(self.running.values()):
            self._forsake(run)

    def thread_left(self) -> None:
        """Its run has ended without it."""
        self.zombies += 1

    def thread_came_back(self) -> None:
        self.zombies -= 1
        self.threads.gave_up(-1)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for orphan in self._orphans:
            _let_go(orphan)
        self.threads.close()

    # ── timeouts ──────────────────────────────────────────────────────────────────────────────

    def _arm(self, at: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if math.isinf(at) else loop.call_at(at, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        earliest = math.inf
        for run in list(self.running.values()):
            if run.why is not None:
                continue
            if run.deadline <= now:
                self.abort(run, Abort.TIMEOUT)
            elif run.deadline < earliest:
                earliest = run.deadline
        self._arm(earliest, loop)


def _let_go(task: asyncio.Task[Any]) -> None:
    """`asyncio.run` ends by waiting for every task of its loop; for one that ignores being cancelled, for ever."""
    forget = getattr(asyncio.tasks, "_unregister_task", None)
    if forget is not None:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        forget(task)


def _nothing(run: Run, outcome: Outcome | None) -> None:
    """Until somebody wants to know."""
