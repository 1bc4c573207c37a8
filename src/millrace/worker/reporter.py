"""What a worker reports about its jobs: counters, log lines, and events for listeners in this process.

A job is counted when the store has answered its settle, not when its handler returned, because the store may refuse
the settle.

Log lines are written to the logger `millrace.jobs`, with the job's id, task, queue and attempt in the record. The level
is WARNING for a failure that is retried and for a lost lease, ERROR for a dead job, and DEBUG for everything else. The
handler's exception is in `exc_info`. If its text contains a secret, the redacted text is logged instead.
docs/logging.md lists all records.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.app.format import span
from millrace.app.host import EventBus
from millrace.app.payloads.serde import Serdes
from millrace.app.telemetry.redaction import Redaction, failure_without, secrets_of
from millrace.domain.change import Verb
from millrace.domain.job import Job
from millrace.domain.outcome import Failure
from millrace.domain.request import Receipt

if TYPE_CHECKING:
    from millrace.worker.settler import Settlement

log = logging.getLogger("millrace.worker")
job_log = logging.getLogger("millrace.jobs")


@dataclass(slots=True)
class Stats:
    """Counters of a worker. `retried` and `buried` count failed runs; `lost` counts runs that lost their lease."""

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
    zombies: int = 0  # abandoned handlers that still run
    children: int = 0  # processes for handlers

    @property
    def failed(self) -> int:
        return self.retried + self.buried


_COUNTERS = {
    Verb.COMPLETE: "completed",
    Verb.RETRY: "retried",
    Verb.SNOOZE: "snoozed",
    Verb.RELEASE: "released",
    Verb.BURY: "buried",
    Verb.CANCEL: "cancelled",
}
_EVENTS = {**_COUNTERS, Verb.BURY: "failed"}
_LEVELS = {"failed": logging.ERROR, "retried": logging.WARNING}


class Reporter:
    def __init__(self, worker: str, bus: EventBus, redaction: Redaction, serdes: Serdes) -> None:
        self.stats = Stats()
        self._worker = worker
        self._bus = bus
        self._redaction = redaction
        self._serdes = serdes

    def worker_event(self, kind: str) -> None:
        self._bus.emit(kind, worker=self._worker)

    def error(self, error: Exception) -> None:
        """Count and log the error of a call to the store, and emit an event. The caller repeats the call."""
        self.stats.errors += 1
        text = "a call to the store failed and will be repeated: %s: %s"
        log.warning(text, type(error).__name__, error, extra={"worker": self._worker})
        self._bus.emit("error", error=error, worker=self._worker)

    def claimed(self, jobs: Sequence[Job]) -> None:
        self.stats.claims += 1
        self.stats.claimed += len(jobs)
        if self._bus.wants("claimed"):
            for job in jobs:
                self._bus.emit("claimed", job=job, worker=self._worker)
        if jobs and job_log.isEnabledFor(logging.DEBUG):
            for job in jobs:
                job_log.debug("%s %s claimed", job.task, job.id, extra=self._fields(job))

    def reaped(self, job: Job) -> None:
        self.stats.reaped += 1
        self._bus.emit("stalled", job=job, worker=self._worker)

    def lost(self, job: Job) -> None:
        """Count and log a run that lost its lease, and emit an event. The outcome of the run is not written."""
        self.stats.lost += 1
        text = "the lease on job %s was taken over; this run of it (attempt %d) is void"
        job_log.warning(text, job.id, job.attempt, extra=self._fields(job))
        self._bus.emit("lost", job=job, worker=self._worker)

    def settled(self, batch: Sequence[Settlement], receipts: Sequence[Receipt]) -> None:
        counts: dict[Verb, int] = {}
        wanted: dict[str, bool] = {}  # by kind of event: is it emitted or logged?
        ended: list[tuple[str, Settlement]] = []
        for item, receipt in zip(batch, receipts, strict=True):
            verb = item.change.verb
            if receipt is Receipt.LOST:
                if not item.held.completing:
                    self.lost(item.held.job)
                    continue
                verb = Verb.COMPLETE  # by the handler's own transaction, which has committed
            elif receipt is Receipt.CANCELLING:
                verb = Verb.CANCEL
            counts[verb] = counts.get(verb, 0) + 1
            kind = _EVENTS[verb]
            if wanted.get(kind) is None:
                wanted[kind] = self._bus.wants(kind) or job_log.isEnabledFor(_LEVELS.get(kind, logging.DEBUG))
            if wanted[kind]:
                ended.append((kind, item))
        for verb, count in counts.items():
            setattr(self.stats, _COUNTERS[verb], getattr(self.stats, _COUNTERS[verb]) + count)
        for kind, item in ended:
            if self._bus.wants(kind):
                self._emit(kind, item)
            if job_log.isEnabledFor(_LEVELS.get(kind, logging.DEBUG)):
                self._log(kind, item)

    def _emit(self, kind: str, item: Settlement) -> None:
        change = item.change
        self._bus.emit(
            kind,
            job=item.held.job,
            worker=self._worker,
            result=item.held.value,
            error=change.error,
            reason=change.reason,
            delay=change.delay,
            duration=change.duration,
        )

    # ── log lines ─────────────────────────────────────────────────────────────────────────────

    def _log(self, kind: str, item: Settlement) -> None:
        job, change = item.held.job, item.change
        took = "" if change.duration is None else f" after {span(change.duration)}"
        error = item.held.take_error()
        if kind not in _LEVELS:
            job_log.debug("%s %s %s%s", job.task, job.id, kind, took, extra=self._fields(job))
            return
        failure = change.error or Failure("Unknown", "no error is known")
        shown = self._redacted(job, failure)
        message = f"{shown.type}: {shown.message}"
        if kind == "failed":
            text, values = "%s %s is dead (%s)%s: %s", (change.reason, took, message)
        else:
            text, values = "%s %s failed%s, again in %s: %s", (took, span(change.delay or 0), message)
        exc_info = None
        if error is not None and shown == failure:
            exc_info = (type(error), error, error.__traceback__)
        fields = {**self._fields(job), "reason": change.reason, "failures": job.failures + 1}
        self._write(_LEVELS[kind], text, (job.task, job.id, *values), exc_info, shown.traceback, fields)

    def _write(
        self, level: int, text: str, args: tuple[Any, ...], exc_info: Any, trace: str, fields: dict[str, Any]
    ) -> None:
        """Write a log record with `trace` as its `exc_text`, the traceback that formatters show."""
        record = job_log.makeRecord(job_log.name, level, __file__, 0, text, args, exc_info, "ended", fields)
        if trace:
            record.exc_text = trace.rstrip()
        job_log.handle(record)

    def _fields(self, job: Job) -> dict[str, Any]:
        return {
            "job": job.id,
            "task": job.task,
            "queue": job.queue,
            "attempt": job.attempt,
            "worker": self._worker,
        }

    def _redacted(self, job: Job, failure: Failure) -> Failure:
        try:
            return failure_without(failure, secrets_of(job, self._redaction, self._serdes)) or failure
        except Exception:  # a log line must not end a worker; what to hide cannot be found out
            return Failure(failure.type, "its text is not shown: the payload could not be read for redaction")
