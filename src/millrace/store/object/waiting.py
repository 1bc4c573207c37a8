"""Waiting: for jobs to claim, for a cancellation, and for the end of a job.

A change in this process wakes waiters at once. A change by another process is signalled in a directory, but not in a
bucket, where the caller has to poll.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from millrace.domain.tables import CANCELS, Place
from millrace.store.object.blobs import Blobs
from millrace.store.object.claims.claiming import Claimer
from millrace.store.waiters import Sleeper, Sleepers, Waiter, Waiters

CANCELLED = "cancels/"  # a prefix without objects, used only to signal
NEW_JOBS, LIMITS = "ready/", "control/"  # prefixes that change when jobs arrive, and when a limit has room
FIRST_POLL, SLOWEST_POLL = 0.05, 1.0  # seconds between two reads of a job


class Waiting:
    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._sleepers = Sleepers()
        self._watchers = Waiters()

    def announce(self, opened: Counter[Place], ended: list[str]) -> None:
        """Wake the waiters in this process: idle workers for jobs that can be claimed now, and callers that wait for
        jobs that have ended.

        `opened` counts the claimable jobs by place, and `ended` lists the ids of the ended jobs.
        """
        if opened:
            self._sleepers.wake(opened)
            if any(queue == CANCELS for queue, _ in opened):
                self._blobs.signal(CANCELLED)
        if ended:
            self._watchers.wake(ended)

    def wake_all(self) -> None:
        self._sleepers.wake_all()

    async def wait(self, claimer: Claimer, queues: Sequence[str], tasks: frozenset[str] | None, timeout: float) -> None:
        """Wait until a claim may find a job of these tasks in these queues, at most `timeout` seconds."""
        sleeper = self._sleepers.register(queues, tasks)
        marks = {prefix: self._blobs.mark(prefix) for prefix in (NEW_JOBS, LIMITS)}
        try:
            due, held_by = await claimer.outlook(queues, tasks)
            self._sleepers.looked(sleeper, held_by)
            if not held_by:
                del marks[LIMITS]
            timeout = timeout if due is None else min(timeout, due)
            if timeout > 0:
                await self._sleep(sleeper, marks, timeout)
        except asyncio.CancelledError:
            self._sleepers.pass_on(sleeper)
            raise
        finally:
            self._sleepers.forget(sleeper)

    async def wait_for_cancel(self, worker: str, timeout: float) -> bool:
        """Return True when a job of this worker may have been cancelled, or False after `timeout` seconds.

        A cancellation is signalled to all processes in a directory, but only within one process with a bucket. With a
        bucket, workers in other processes learn of it from their next heartbeat.
        """
        sleeper = self._sleepers.register((CANCELS,), frozenset({worker}))
        self._sleepers.looked(sleeper, frozenset())
        mark = self._blobs.mark(CANCELLED)
        try:
            await self._sleep(sleeper, {CANCELLED: mark}, timeout)
            return sleeper.woken or self._blobs.mark(CANCELLED) != mark
        finally:
            self._sleepers.forget(sleeper)

    async def _sleep(self, sleeper: Sleeper, marks: Mapping[str, int], timeout: float) -> None:
        """Sleep until this process wakes the sleeper, the driver signals a change, or the timeout is over."""
        hints = [self._blobs.wait_for_change(prefix, timeout, mark) for prefix, mark in marks.items()]
        tasks = [asyncio.ensure_future(hint) for hint in (sleeper.sleep(timeout), *hints)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def watch(self, job_id: str) -> PollingWatch:
        return PollingWatch(self._watchers, job_id)


class PollingWatch:
    """A watch on one job. It is woken if the job ends in this process.

    The job may also end in another process. So `wait` returns at growing intervals, and the caller polls.
    """

    def __init__(self, watchers: Waiters, job_id: str) -> None:
        self._watchers = watchers
        self._job_id = job_id
        self._waiter: Waiter = watchers.register([job_id])
        self._next = FIRST_POLL

    async def wait(self, timeout: float) -> None:
        await self._waiter.sleep(min(timeout, self._next))
        self._next = min(SLOWEST_POLL, self._next * 1.5)
        if self._waiter.woken:
            self._waiter = self._watchers.register([self._job_id])

    def close(self) -> None:
        self._watchers.forget(self._waiter)
