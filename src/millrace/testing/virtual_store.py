"""The memory store as a test sees it: its time stands still, and it answers without being awaited.

An assertion that has to be awaited passes when somebody forgets to. So what a test asks for is plain functions here,
beside the store protocol that the app and its workers use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from millrace.domain import operate
from millrace.domain.errors import CursorExpired, InvalidInput, JobNotFound
from millrace.domain.event import Event
from millrace.domain.job import Job
from millrace.domain.request import Claim, Query, QueueCounts
from millrace.store.memory import MemoryStore
from millrace.testing.clock import VirtualClock

PAGE = 1_000
MOST_RUNS_NOW = 5_000  # at one instant; unless many jobs wait, then …
RUNS_PER_JOB = 10  # … so many for each: a job that enqueues itself again is found soon, and a crowd gets through


class Endless(InvalidInput, AssertionError):
    """Jobs that go on for ever, so that a test would never end. As InvalidInput it also ends the worker."""


class VirtualStore(MemoryStore):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock, salt="test")
        self.clock = clock
        self.runs_left = math.inf  # what one call of the harness may claim
        self._runs, self._crowd = 0, 0  # at this instant: runs so far, and the most jobs that were waiting at a time
        self._told: str | None = None  # the cursor of what `news` has told

    async def claim(self, request: Claim) -> list[Job]:
        with self._lock:
            waiting = sum(self._tables.queue(name).waiting for name in self._tables.queues())
        self._crowd = max(self._crowd, waiting)
        if self.runs_left <= 0 or self._runs > max(MOST_RUNS_NOW, RUNS_PER_JOB * self._crowd):
            raise Endless("so many jobs have run that there seems to be no end to it: does a job enqueue itself again?")
        jobs = await super().claim(request)
        self.runs_left -= len(jobs)
        self._runs += len(jobs)
        return jobs

    def time_moved(self) -> None:
        """Another instant: what may run at one is counted anew."""
        self._runs, self._crowd = 0, 0

    def job(self, job_id: str) -> Job:
        """The record as it is now. Raises JobNotFound."""
        with self._lock:
            [found] = self._ledger.get([job_id], self._clock())
        if found is None:
            raise JobNotFound(job_id)
        return found

    def jobs(self) -> Iterator[Job]:
        """Every job that the store still has, in the order of their enqueues."""
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
        """What has happened since it was last asked; what retention has trimmed meanwhile is left out."""
        found: list[Event] = []
        while True:
            try:
                with self._lock:
                    page = operate.events(self._ledger, self._told, PAGE)
            except CursorExpired as gone:
                self._told = gone.oldest
                continue
            found += page.events
            self._told = page.cursor
            if len(page.events) < PAGE:
                return found

    def queue_names(self) -> set[str]:
        return {counts.queue for counts in self.counts()}

    def due(self, tasks: frozenset[str]) -> list[int]:
        """For each queue that has something to wait for: when a claim of these tasks may find it."""
        with self._lock:
            now = self._clock()
            names = list(self._tables.queues())
            found = [self._ledger.next_due([name], tasks, now) for name in names]
        return [at for at in found if at is not None]
