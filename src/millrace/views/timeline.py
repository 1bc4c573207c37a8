"""Events as JSON, the fields of a job after each event, and the changes between two events.

An event has only the values of its own transition. The other fields are carried over from the event before, by the
rules of `domain/rules/transition.py`. Fields that no event has (payload, progress, result) are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from millrace.app.format import instant
from millrace.domain.event import Event, Kind
from millrace.domain.job import State
from millrace.domain.outcome import Failure
from millrace.views.job_view import Digits, ErrorView, Instant, Seconds, error_view, seconds, when

INSTANTS = ("due_at", "started_at", "finished_at")
ENDS = (Kind.COMPLETED, Kind.BURIED, Kind.CANCELLED)
BACK = (Kind.RETRIED, Kind.SNOOZED, Kind.RELEASED, Kind.REPLAYED)


class EventView(msgspec.Struct):
    """One event of a job."""

    job: str
    seq: Digits
    generation: int
    n: int
    kind: Kind
    at: Instant
    queue: str
    task: str
    state: str
    attempt: int
    failures: int
    worker: str | None
    lease: str | None
    delay: Seconds | None
    duration: Seconds | None
    reason: str | None
    error: ErrorView | None


class ChangeView(msgspec.Struct):
    fact: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Facts:
    generation: int
    queue: str
    task: str
    state: str
    attempt: int = 0
    failures: int = 0
    worker: str | None = None
    lease: str | None = None
    due_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    reason: str | None = None
    error: Failure | None = None
    archived: bool = False
    kept: bool = True


@dataclass(frozen=True)
class Changed:
    fact: str
    before: Any
    after: Any


def event_view(event: Event) -> EventView:
    return EventView(
        job=event.job,
        seq=str(event.seq),
        generation=event.generation,
        n=event.n,
        kind=event.kind,
        at=instant(event.at),
        queue=event.queue,
        task=event.task,
        state=event.state,
        attempt=event.attempt,
        failures=event.failures,
        worker=event.worker,
        lease=event.lease,
        delay=seconds(event.delay),
        duration=seconds(event.duration),
        reason=event.reason,
        error=error_view(event.error),
    )


def facts_after(events: Sequence[Event]) -> list[Facts]:
    """Return the fields of the job after each event, in the order of the events."""
    known: list[Facts] = []
    for event in events:
        known.append(_next(known[-1] if known else None, event))
    return known


def changes(before: Facts | None, after: Facts) -> list[Changed]:
    """Return the fields that differ between `before` and `after`, in the order of `Facts`.

    If `before` is None, return the fields of `after` that are set.
    """
    names = [field.name for field in fields(Facts)]
    pairs = [(name, None if before is None else getattr(before, name), getattr(after, name)) for name in names]
    if before is None:  # a new job: only the fields that are set
        return [Changed(*pair) for pair in pairs if pair[2] not in (None, 0) and pair[0] != "kept"]
    return [Changed(*pair) for pair in pairs if pair[1] != pair[2]]


def change_view(changed: Changed) -> ChangeView:
    return ChangeView(changed.fact, _shown(changed.fact, changed.before), _shown(changed.fact, changed.after))


def _shown(fact: str, value: Any) -> Any:
    if fact in INSTANTS:
        return when(value)
    return error_view(value) if isinstance(value, Failure) else value


def _worker(event: Event) -> str | None:
    """Return the worker of the job after this event.

    A reclaim does not change the worker of the job. In its event, `worker` is the reaper, and `reason` is the worker
    that lost the lease.
    """
    return event.reason if event.kind is Kind.RECLAIMED else event.worker


def _next(before: Facts | None, event: Event) -> Facts:
    if before is None or event.kind is Kind.ENQUEUED or before.generation != event.generation:
        before = Facts(event.generation, event.queue, event.task, event.state, due_at=event.at)
    running = event.state == State.RUNNING
    now = replace(
        before,
        state=str(event.state),
        attempt=event.attempt,
        failures=event.failures,
        worker=_worker(event) if running else None,
        lease=event.lease if running else None,
        due_at=event.at + (event.delay or 0) if event.kind in (Kind.ENQUEUED, *BACK) else before.due_at,
    )
    if event.kind is Kind.CLAIMED:
        return replace(now, started_at=event.at)
    if event.kind in ENDS:
        now = replace(now, finished_at=event.at, reason=event.reason)
    if event.kind is Kind.RETRIED or event.kind is Kind.BURIED:
        return replace(now, error=event.error)
    if event.kind is Kind.COMPLETED:
        return replace(now, error=None)
    if event.kind is Kind.REPLAYED:
        return replace(now, finished_at=None, reason=None, error=None, archived=False)
    if event.kind in (Kind.ARCHIVED, Kind.UNARCHIVED):
        return replace(now, archived=event.kind is Kind.ARCHIVED)
    return replace(now, kept=event.kind not in (Kind.PRUNED, Kind.EVICTED))
