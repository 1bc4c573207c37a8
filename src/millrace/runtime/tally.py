"""What a worker has done, by its own count, and told to whoever listens in this process.

Counted when the store has answered, not when a handler returned: a settle that came too late did not happen.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.domain.change import Verb
from millrace.domain.job import Job
from millrace.domain.request import Receipt
from millrace.runtime.host import Bus
from millrace.runtime.run import Run
from millrace.runtime.settler import Settlement

log = logging.getLogger("millrace.worker")


@dataclass(slots=True)
class Stats:
    """`retried` and `buried` are failed runs; `lost` are leases that somebody else has by now."""

    claims: int = 0
    claimed: int = 0
    completed: int = 0
    retried: int = 0
    buried: int = 0
    snoozed: int = 0
    released: int = 0
    cancelled: int = 0
    lost: int = 0
    reaped: int = 0
    errors: int = 0
    running: int = 0
    unsettled: int = 0
    abandoned: int = 0
    zombies: int = 0  # abandoned handlers that still run somewhere
    children: int = 0  # processes for handlers

    @property
    def failed(self) -> int:
        return self.retried + self.buried


_COUNTED = {
    Verb.COMPLETE: "completed",
    Verb.RETRY: "retried",
    Verb.SNOOZE: "snoozed",
    Verb.RELEASE: "released",
    Verb.BURY: "buried",
    Verb.CANCEL: "cancelled",
}
_TOLD = {**_COUNTED, Verb.BURY: "failed"}


class Tally:
    def __init__(self, worker: str, bus: Bus) -> None:
        self.stats = Stats()
        self._worker = worker
        self._bus = bus

    def claimed(self, jobs: Sequence[Job]) -> None:
        self.stats.claims += 1
        self.stats.claimed += len(jobs)
        if self._bus.wants("claimed"):
            for job in jobs:
                self._bus.emit("claimed", job=job, worker=self._worker)

    def settled(self, batch: Sequence[Settlement], receipts: Sequence[Receipt]) -> None:
        for item, receipt in zip(batch, receipts, strict=True):
            verb = item.change.verb
            if receipt is Receipt.LOST and not item.hold.completing:
                self.lost(item.job)
                continue
            if receipt is Receipt.LOST:
                verb = Verb.COMPLETE  # by its handler's own transaction, which has committed
            if receipt is Receipt.CANCELLING:
                verb = Verb.CANCEL
            name = _COUNTED[verb]
            setattr(self.stats, name, getattr(self.stats, name) + 1)
            if self._bus.wants(_TOLD[verb]):
                self._tell(_TOLD[verb], item)

    def _tell(self, kind: str, item: Settlement) -> None:
        change = item.change
        self._bus.emit(
            kind,
            job=item.job,
            worker=self._worker,
            result=item.hold.value if isinstance(item.hold, Run) else None,
            error=change.error,
            reason=change.reason,
            delay=change.delay,
            duration=change.duration,
        )

    def lost(self, job: Job) -> None:
        """What this worker's run of the job did, no longer counts."""
        self.stats.lost += 1
        log.warning("the lease on job %s was taken over; this run of it (attempt %d) is void", job.id, job.attempt)
        self._bus.emit("lost", job=job, worker=self._worker)

    def reaped(self, job: Job) -> None:
        self.stats.reaped += 1
        self._bus.emit("stalled", job=job, worker=self._worker)

    def error(self, error: Exception) -> None:
        """The store failed a call; whoever made it asks again."""
        self.stats.errors += 1
        log.warning("a call to the store failed and will be repeated: %s: %s", type(error).__name__, error)
        self._bus.emit("error", error=error, worker=self._worker)

    def tell(self, kind: str) -> None:
        self._bus.emit(kind, worker=self._worker)
