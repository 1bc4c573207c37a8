"""Events: one recorded transition of one job each; a job's history is the list of them.

An event is written in the same atomic step as the transition it tells of, on every store, so the
dashboard's timeline, the audit and the Spark pipeline can all trust the same thing. Extending a lease
is no event: it changes nothing that a reader of the history would miss.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

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
    """`n` counts 1, 2, 3 … within one generation of a job; `at` is the store's clock in milliseconds."""

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
