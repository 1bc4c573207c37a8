"""Two weeks of a made-up shop in which things change: in the second week, one task is slower, one has a new cause of
failure, one fails more often; and the last hours leave a backlog.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from millrace.domain.event import Event, Kind
from millrace.domain.outcome import Failure
from tests.spark.report.week import BEGIN, DAY, HOUR, a_week

SLOWER, BROKEN, RISING, WAITING = "send_newsletter", "make_thumbnail", "index_product", "send_receipt"
END = BEGIN + 14 * DAY - 8 * HOUR
CONFLICT = Failure("VersionConflict", "the document was changed meanwhile")
BURST, DONE, LATELY = 300, 180, 12 * HOUR  # jobs that arrive before the end, and those that are completed


def two_weeks(jobs: int) -> list[Event]:
    first = a_week(jobs // 2, seed=7)
    last = max(event.seq for event in first)
    second = [_later(event, last) for event in a_week(jobs // 2, seed=8)]
    changed = list(_changed(second))
    last = max(event.seq for event in changed)
    events = [event for event in (*_conflicts(first), *changed, *_burst(last + 1)) if event.at < END]
    return sorted(events, key=lambda event: event.at)


def _later(event: Event, last: int) -> Event:
    seq = event.seq + last
    lease = event.lease and f"{seq}-{event.attempt}"
    return msgspec.structs.replace(event, seq=seq, job=f"job-{seq:06d}", at=event.at + 7 * DAY, lease=lease)


def _conflicts(events: list[Event]) -> Iterator[Event]:
    """The first week, in which one task fails now and then."""
    for event in events:
        if event.kind is Kind.COMPLETED and event.attempt == 1 and event.task == RISING and event.seq % 20 == 0:
            yield _failed(event, CONFLICT)
        else:
            yield event


def _changed(events: list[Event]) -> Iterator[Event]:
    claimed = {(event.seq, event.attempt): event.at for event in events if event.kind is Kind.CLAIMED}
    for event in events:
        at_once = event.kind is Kind.COMPLETED and event.attempt == 1
        if at_once and event.task == SLOWER:
            begin = claimed[event.seq, event.attempt]
            length = 2 * (event.at - begin)
            yield msgspec.structs.replace(event, at=begin + length, duration=length)
        elif at_once and event.task == BROKEN and event.seq % 8 == 0:
            yield _failed(event, Failure("DecoderError", "not a JPEG file"))
        elif at_once and event.task == RISING and event.seq % 2 == 0:
            yield _failed(event, CONFLICT)
        else:
            yield event


def _failed(event: Event, error: Failure) -> Event:
    died: dict[str, Any] = {"kind": Kind.BURIED, "state": "dead", "failures": 1, "reason": "max_attempts_exceeded"}
    return msgspec.structs.replace(event, error=error, **died)


@dataclass(frozen=True)
class _Job:
    seq: int

    def event(self, n: int, kind: Kind, at: int, state: str, **more: Any) -> Event:
        told: dict[str, Any] = {
            "generation": 1,
            "n": n,
            "kind": kind,
            "at": at,
            "queue": "mail",
            "task": WAITING,
            "state": state,
        }
        return Event(f"job-{self.seq:06d}", self.seq, **{**told, **more})


def _burst(first: int) -> Iterator[Event]:
    """Jobs that arrive twelve hours before the end, and are completed one after the other."""
    for number in range(BURST):
        job, due = _Job(first + number), END - LATELY + number
        yield job.event(1, Kind.ENQUEUED, due, "waiting")
        if number < DONE:
            end = due + LATELY * (number + 1) // (DONE + 1)
            held: dict[str, Any] = {"attempt": 1, "worker": "worker-ams-1", "lease": f"{job.seq}-1"}
            yield job.event(2, Kind.CLAIMED, end - 2_000, "running", **held)
            yield job.event(3, Kind.COMPLETED, end, "completed", duration=1_990, **held)
