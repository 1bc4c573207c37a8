"""Events: each records one transition of one job. A job's history is the list of its events.

Every store writes an event in the same atomic step as its transition, so the dashboard's timeline, the
audit and the Spark pipeline all see the same facts. Extending a lease is not recorded.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from millrace.domain.instant import as_datetime
from millrace.domain.outcome import Failure


class Kind(StrEnum):
    ENQUEUED = "enqueued"
    UNBLOCKED = "unblocked"
    CLAIMED = "claimed"
    COMPLETED = "completed"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    RELEASED = "released"
    BURIED = "buried"
    CANCELLED = "cancelled"
    RECLAIMED = "reclaimed"
    REPLAYED = "replayed"
    ARCHIVED = "archived"
    UNARCHIVED = "unarchived"
    EVICTED = "evicted"
    PRUNED = "pruned"


class Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One transition. `n` numbers the events of one generation of a job from 1; `at` is the store's time in ms."""

    job: str
    seq: int
    generation: int
    n: int
    kind: Kind
    at: int
    queue: str
    task: str
    state: str  # the state after the transition
    attempt: int = 0
    failures: int = 0
    worker: str | None = None
    lease: str | None = None
    delay: int | None = None
    reason: str | None = None
    error: Failure | None = None
    duration: int | None = None

    @property
    def time(self) -> datetime:
        """The instant `at` as an aware datetime in UTC."""
        return as_datetime(self.at)
