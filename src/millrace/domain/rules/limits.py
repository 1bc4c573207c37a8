"""Limits on claims: token buckets, and the allowance, which is the number of jobs that a claim may take.

Pause, `max_running` and the token bucket are combined into the allowance before a claim reads any job. A token is
spent only for a job that is really claimed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from millrace.domain.job import is_expired
from millrace.domain.settings import Limits, QueueSettings

if TYPE_CHECKING:
    from millrace.domain.request import Claim
    from millrace.domain.tables import QueueRow, Range, Tables

UNLIMITED = 1 << 60


class Bucket(msgspec.Struct, gc=False):
    """The state of a token bucket: the number of tokens at instant `at` of the store's clock."""

    tokens: float
    at: int


def capacity(limits: Limits) -> int:
    return limits.burst if limits.burst is not None else max(1, math.ceil(limits.rate or 0))


def refill(bucket: Bucket | None, limits: Limits, now: int) -> Bucket:
    """Return the bucket with the tokens of the time until `now` added. Its date is `now`.

    If the clock was set back, the bucket is dated in the future (`is_ahead`) and no token is added. The caller must
    store such a bucket even if no token is spent: the old one would not be refilled until its date.
    """
    size = capacity(limits)
    if bucket is None:
        return Bucket(float(size), now)
    elapsed = max(0, now - bucket.at)
    return Bucket(min(float(size), bucket.tokens + elapsed * (limits.rate or 0.0) / 1000.0), now)


def is_ahead(bucket: Bucket | None, now: int) -> bool:
    """Return whether the bucket is dated in the future, because the clock was set back."""
    return bucket is not None and bucket.at > now


def allowance(limits: Limits, running: int, bucket: Bucket | None, now: int) -> int:
    """Return how many jobs these limits allow to be claimed now."""
    allowed = UNLIMITED
    if isinstance(limits, QueueSettings) and limits.paused:
        return 0
    if limits.max_running is not None:
        allowed = max(0, limits.max_running - running)
    if limits.rate is not None:
        allowed = min(allowed, math.floor(refill(bucket, limits, now).tokens + 1e-9))
    return allowed


def spend(bucket: Bucket | None, limits: Limits, taken: int, now: int) -> Bucket | None:
    """Return the bucket after `taken` jobs were claimed; None if the limits have no rate."""
    if limits.rate is None:
        return None
    filled = refill(bucket, limits, now)
    return Bucket(max(0.0, filled.tokens - taken), now)


def next_token(limits: Limits, bucket: Bucket | None, now: int) -> int:
    """Return the earliest instant, `now` or later, at which the bucket has at least one token."""
    if limits.rate is None:
        return now
    missing = 1.0 - refill(bucket, limits, now).tokens
    return now if missing <= 1e-9 else now + math.ceil(missing * 1000.0 / limits.rate)


class Room:
    """How many jobs one claim may take per queue and per task. Computed before the claim reads any job."""

    def __init__(self, tables: Tables, request: Claim, now: int) -> None:
        self._tables = tables
        self._now = now
        self._limit = request.limit
        self._queues: dict[str, int] = {}
        self._tasks: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        self._taken_tasks: dict[str, int] = {}
        self.ahead: set[str] = set()  # queues whose bucket is dated in the future, because the clock was set back

    def of_queue(self, row: QueueRow) -> int:
        room = allowance(row.settings, row.running, row.bucket, self._now)
        self._queues[row.name] = room
        if is_ahead(row.bucket, self._now):
            self.ahead.add(row.name)
        return room

    def take(self, source: Range, seq: int) -> bool:
        """Reserve room for job `seq`, which is in the range `source` of its (queue, task, priority).

        Return False if a limit is reached or the job has expired.
        """
        queue, task = source.queue, source.task
        if queue in self.ahead:
            self._taken.setdefault(queue, 0)
        if self._queues[queue] <= 0 or self._of_task(task) <= 0:
            return False
        job = self._tables.by_seq(seq)
        if job is None or is_expired(job, self._now):
            return False  # one claim buries a limited number of expired jobs; the next claim continues
        self._queues[queue] -= 1
        self._tasks[task] -= 1
        self._taken[queue] = self._taken.get(queue, 0) + 1
        self._taken_tasks[task] = self._taken_tasks.get(task, 0) + 1
        return True

    def spend(self) -> None:
        """Spend a token for each claimed job. A bucket that is dated in the future is set to the current time."""
        for name, taken in self._taken.items():
            row = self._tables.queue(name)
            row.bucket = spend(row.bucket, row.settings, taken, self._now)
            self._tables.put_queue(row)
        for name, taken in self._taken_tasks.items():
            task = self._tables.task(name)
            if task is not None:
                task.bucket = spend(task.bucket, task.limits, taken, self._now)
                self._tables.put_task(task)

    def _of_task(self, name: str) -> int:
        if name not in self._tasks:
            row = self._tables.task(name)
            self._tasks[name] = UNLIMITED if row is None else allowance(row.limits, row.running, row.bucket, self._now)
            if row is not None and is_ahead(row.bucket, self._now):
                self._taken_tasks.setdefault(name, 0)
        return self._tasks[name]
