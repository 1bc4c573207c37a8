"""What a job was after each of its events, and what changed between two of them.

An event holds only what its transition brought, so the facts are carried from one to the next, by the same rules as
domain/transition.py. What no event tells (payload, progress, result) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from millrace.domain.event import Event, Kind
from millrace.domain.job import State
from millrace.domain.outcome import Failure
from millrace.runtime.shape import Plain, failure_plain, when

INSTANTS = ("due_at", "started_at", "finished_at")
ENDS = (Kind.COMPLETED, Kind.BURIED, Kind.CANCELLED)
BACK = (Kind.RETRIED, Kind.SNOOZED, Kind.RELEASED, Kind.REPLAYED)


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


def facts_after(events: Sequence[Event]) -> list[Facts]:
    """The facts after each event, in their order."""
    known: list[Facts] = []
    for event in events:
        known.append(_next(known[-1] if known else None, event))
    return known


def changes(before: Facts | None, after: Facts) -> list[Changed]:
    """What differs, in the order of the fields. Before the first event there was nothing."""
    names = [field.name for field in fields(Facts)]
    pairs = [(name, None if before is None else getattr(before, name), getattr(after, name)) for name in names]
    if before is None:  # a new job: what it is, without what it has not got yet
        return [Changed(*pair) for pair in pairs if pair[2] not in (None, 0) and pair[0] != "kept"]
    return [Changed(*pair) for pair in pairs if pair[1] != pair[2]]


def changed_plain(changed: Changed) -> Plain:
    return {
        "fact": changed.fact,
        "before": _plain(changed.fact, changed.before),
        "after": _plain(changed.fact, changed.after),
    }


def _plain(fact: str, value: Any) -> Any:
    if fact in INSTANTS:
        return when(value)
    return failure_plain(value) if isinstance(value, Failure) else value


def _next(before: Facts | None, event: Event) -> Facts:
    if before is None or event.kind is Kind.ENQUEUED or before.generation != event.generation:
        before = Facts(event.generation, event.queue, event.task, event.state, due_at=event.at)
    running = event.state == State.RUNNING
    now = replace(
        before,
        state=str(event.state),
        attempt=event.attempt,
        failures=event.failures,
        worker=event.worker if running else None,
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
