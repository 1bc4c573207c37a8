"""Waiting for the end of a job: there is nobody who would call, so it is looked at, ever more seldom."""

from __future__ import annotations

from millrace.store.waiters import Waiter, Waiters

FIRST_LOOK = 0.05  # seconds
LAST_LOOK = 1.0


class PollingWatch:
    """Woken by an end in this process; for ends elsewhere it is time to look, ever more seldom."""

    def __init__(self, watchers: Waiters, job_id: str) -> None:
        self._watchers = watchers
        self._job_id = job_id
        self._waiter: Waiter = watchers.register([job_id])
        self._next = FIRST_LOOK

    async def wait(self, timeout: float) -> None:
        await self._waiter.sleep(min(timeout, self._next))
        self._next = min(LAST_LOOK, self._next * 1.5)
        if self._waiter.woken:
            self._waiter = self._watchers.register([self._job_id])

    def close(self) -> None:
        self._watchers.forget(self._waiter)
