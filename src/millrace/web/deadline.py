"""Time limits: a deadline for writes that wait for a lock, and a time budget for searches that read page after page.

SQLite has one writer at a time. Requests must not accumulate while another process holds the lock for a minute, so a
write that takes longer than ten seconds (more for many jobs) fails with a problem. The write may still take effect when
the lock is free; the text of the problem says this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from millrace.web.problem import Problem

T = TypeVar("T")
SECONDS = 10.0
EACH = 0.05  # more seconds per job: a bucket writes one object for each job
RETRY_AFTER = "5"


async def with_deadline(writing: Awaitable[T], jobs: int = 0) -> T:
    seconds = SECONDS + EACH * jobs
    bound = asyncio.timeout(seconds)
    try:
        async with bound:
            return await writing
    except TimeoutError:
        if not bound.expired():
            raise
        raise Problem(
            503,
            "busy",
            f"the store was busy for {seconds:g} seconds: another writer holds it. The change may still be done once "
            "it is free, so check before you repeat it; a job with an id of your own can be enqueued again safely.",
            headers={"retry-after": RETRY_AFTER},
        ) from None


class TimeBudget:
    """The time that a search may take. A search reads page after page, and each page is a round. The budget is used up
    if another round, as long as the longest one so far, would exceed it.
    """

    def __init__(self, seconds: float) -> None:
        self._last = time.monotonic()
        self._until = self._last + seconds
        self._longest = 0.0

    def is_over(self) -> bool:
        """Return whether the search should end. Call this after each round, so the first round always runs."""
        now = time.monotonic()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        return now + self._longest > self._until
