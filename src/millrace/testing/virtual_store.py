"""A memory store for tests. Its clock does not move by itself, and tests can query it without await.

If a test forgets to await an assertion, the test passes. Therefore the query methods for tests are synchronous. The app
and its workers use the asynchronous store protocol.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from millrace.domain import feed
from millrace.domain.errors import CursorExpired, InvalidInput, JobNotFound
from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.domain.request import Claim, Query, QueueCounts
from millrace.domain.rules import operate
from millrace.store.memory import MemoryStore
from millrace.testing.clock import VirtualClock

PAGE = 1_000
MOST_RUNS_NOW = 5_000  # the most runs at one instant; with many waiting jobs …
RUNS_PER_JOB = 10  # … this many per job, so that endless loops are found soon and large backlogs still finish


class Endless(InvalidInput, AssertionError):
    """Raised when jobs seem to run without end. It is a subclass of InvalidInput, so that it also ends the worker."""


class VirtualStore(MemoryStore):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock, salt="test")
        self.clock = clock
        self.runs_left = math.inf  # runs that the current harness call may still claim
        self._runs, self._crowd = 0, 0  # at this instant: runs so far, and the highest number of waiting jobs
        self._cursor: str | None = None  # cursor after the events that `news` has returned

    async def claim(self, request: Claim) -> list[Job]:
        with self._lock:
            waiting = sum(self._tables.queue(name).waiting for name in self._tables.queues())
        self._crowd = max(self._crowd, waiting)
        if self.runs_left <= 0 or self._runs > max(MOST_RUNS_NOW, RUNS_PER_JOB * self._crowd):
            raise Endless("the jobs seem to run without an end: does a job enqueue itself again?")
        jobs = await super().claim(request)
        self.runs_left -= len(jobs)
        self._runs += len(jobs)
        return jobs

    def time_moved(self) -> None:
        """Reset the count of runs at the current instant. The harness calls this before it runs jobs."""
        self._runs, self._crowd = 0, 0

    def job(self, job_id: str) -> Job:
        """Return the current record of a job. Raises JobNotFound."""
        with self._lock:
            [found] = self._ledger.get([job_id], self._clock())
        if found is None:
            raise JobNotFound(job_id)
        return found

    def jobs(self) -> Iterator[Job]:
        """Yield all jobs in the store, including archived ones, in the order of enqueueing."""
        cursor: str | None = None
        while True:
            with self._lock:
                page = operate.find(self._ledger, Query(archived=None, limit=PAGE, cursor=cursor), self._clock())
            yield from page.jobs
            cursor = page.cursor
            if cursor is None:
                return

    def counts(self) -> list[QueueCounts]:
        with self._lock:
            return operate.counts(self._ledger, self._clock())

    def news(self) -> list[Event]:
        """Return the events since the last call. Events that retention has removed in the meantime are left out."""
        found: list[Event] = []
        while True:
            try:
                with self._lock:
                    page = feed.events(self._ledger.tables, self._cursor, PAGE)
            except CursorExpired as gone:
                self._cursor = gone.oldest
                continue
            found += page.events
            self._cursor = page.cursor
            if len(page.events) < PAGE:
                return found

    def queue_names(self) -> set[str]:
        return {counts.queue for counts in self.counts()}

    def next_schedule(self, after: int) -> int | None:
        """Return when the next stored schedule is due after an instant; None if there is none."""
        with self._lock:
            return self._tables.next_schedule(after)

    def due(self, tasks: frozenset[str]) -> list[int]:
        """Return, for each queue with jobs of these tasks, the time in milliseconds when a claim may next find a
        job.
        """
        with self._lock:
            now = self._clock()
            names = list(self._tables.queues())
            found = [self._ledger.next_due([name], tasks, now) for name in names]
        return [at for at in found if at is not None]
