"""Slots: the places in which jobs run, their timeouts, and what is done about handlers that do not end.

Timeouts share one timer for all slots, set to the earliest deadline seen; when it fires it looks at every run.
A job that ends in time costs nothing then, and the look happens about once per timeout, not once per job.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from millrace.domain.outcome import Outcome
from millrace.runtime.hold import Abort
from millrace.runtime.run import End, Run, aborted, drive, perform
from millrace.runtime.threads import Threads


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
        self._threads = Threads(threads, name)
        self._orphans: set[asyncio.Task[None]] = set()  # a loop holds its tasks weakly
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def start(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        self.running[run.lease.id] = run
        if run.task.is_async:
            run.handle = loop.create_task(drive(run, self._end))
        else:
            self._start_in_thread(run, loop)
        if run.deadline < self._timer_at:
            self._arm(run.deadline, loop)

    def _start_in_thread(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        late = True

        def work() -> None:
            if late:
                _call(loop, self._begin, run, loop)
            _call(loop, self._end, run, perform(run) if run.why is None else aborted(run, run.why))

        if self._threads.submit(work):
            late = False  # or not: it may have begun already, and then begins its clock again, a moment later
        else:
            run.deadline = run.extend_until = math.inf

    def _begin(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        """A handler that had to wait for a thread starts now: that wait was not its fault."""
        if not run.ended and run.why is None:
            run.begin(loop.time(), self.grace)
            if run.deadline < self._timer_at:
                self._arm(run.deadline, loop)

    # ── the end of a run ──────────────────────────────────────────────────────────────────────

    def _end(self, run: Run, outcome: Outcome | None) -> None:
        if run.ended:
            self._came_back(run)
            return
        self._leave(run, outcome)

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
        if run.handle is not None:
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
        self.abandoned += 1
        self.zombies += 1
        if run.handle is None:
            self._threads.gave_up()
        else:
            run.handle.cancel(run.why.value)
            self._orphans.add(run.handle)
            run.handle.add_done_callback(self._orphans.discard)
        self._leave(run, aborted(run, run.why))

    def abandon_all(self) -> None:
        for run in list(self.running.values()):
            self.abandon(run)

    def _came_back(self, run: Run) -> None:
        self.zombies -= 1
        if run.handle is None:
            self._threads.gave_up(-1)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._threads.close()

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


def _nothing(run: Run, outcome: Outcome | None) -> None:
    """Until somebody wants to know."""


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:  # the loop is closed: nobody waits for this run any more
        return
