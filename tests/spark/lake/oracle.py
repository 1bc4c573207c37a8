"""The same tables, computed the slow and obvious way: event by event, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.domain.event import Event, Kind

ENDS = (Kind.COMPLETED, Kind.RETRIED, Kind.SNOOZED, Kind.RELEASED, Kind.BURIED, Kind.CANCELLED)
WAITS = (Kind.ENQUEUED, Kind.RETRIED, Kind.SNOOZED, Kind.RELEASED, Kind.REPLAYED)


def attempts(events: Sequence[Event]) -> dict[tuple[int, int], dict[str, Any]]:
    due: dict[int, int] = {}
    running: dict[int, dict[str, Any]] = {}
    ended: dict[tuple[int, int], dict[str, Any]] = {}
    for event in events:
        run = running.get(event.seq)
        if event.kind is Kind.CLAIMED:
            running[event.seq] = {
                "job": event.job,
                "worker": event.worker,
                "lease": event.lease,
                "available_at": due[event.seq],
                "claimed_at": event.at,
                "wait_ms": max(0, event.at - due[event.seq]),
                "reclaims": 0,
            }
        elif event.kind is Kind.RECLAIMED and run is not None:
            run["reclaims"] += 1
        elif event.kind in ENDS and run is not None:
            del running[event.seq]
            error = None if event.error is None else event.error.type
            rest = {"ended_at": event.at, "run_ms": event.at - run["claimed_at"], "outcome": event.kind.value}
            ended[event.seq, event.attempt] = {**run, **rest, "duration_ms": event.duration, "error_type": error}
        if event.kind in WAITS:
            due[event.seq] = event.at + (event.delay or 0)
        elif event.kind is Kind.UNBLOCKED:
            due[event.seq] = max(due[event.seq], event.at)
    return ended


def jobs(events: Sequence[Event]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        job = found.setdefault(
            event.seq,
            {"first_claimed_at": None, "pruned_at": None, "finished_at": None, "archived": False, "reclaims": 0}
            | {"replays": 0, "retries": 0, "enqueued_at": event.at},
        )
        job |= {"job": event.job, "generation": event.generation, "queue": event.queue, "task": event.task}
        job |= {"state": event.state, "attempts": event.attempt, "failures": event.failures}
        job |= {"events": event.n, "last_n": event.n}
        if event.kind is Kind.CLAIMED and job["first_claimed_at"] is None:
            job["first_claimed_at"] = event.at
        if event.kind in (Kind.COMPLETED, Kind.BURIED, Kind.CANCELLED):
            job["finished_at"] = event.at
        if event.kind is Kind.REPLAYED:
            job |= {"finished_at": None, "archived": False, "replays": job["replays"] + 1}
        if event.kind in (Kind.ARCHIVED, Kind.UNARCHIVED):
            job["archived"] = event.kind is Kind.ARCHIVED
        if event.kind in (Kind.PRUNED, Kind.EVICTED):
            job["pruned_at"] = event.at
        job["reclaims"] += event.kind is Kind.RECLAIMED
        job["retries"] += event.kind is Kind.RETRIED
    return found
