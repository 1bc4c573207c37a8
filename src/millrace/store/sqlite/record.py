"""A job as a row, and back. Columns are what an index or a query needs; the rest is one blob, NULL for plain jobs."""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.domain.job import Attempt, Job, Spec, State
from millrace.domain.outcome import Failure

STATES = (State.WAITING, State.RUNNING, State.COMPLETED, State.DEAD, State.CANCELLED)
NUMBER = {state: number for number, state in enumerate(STATES)}

IN_LINE, HOLDS, OUTSIDE = 1, 2, 3


class Extra(msgspec.Struct, omit_defaults=True, gc=False):
    """Facts that most jobs never have."""

    stalls: int = 0
    snoozes: int = 0
    releases: int = 0
    replays: int = 0
    auto_retries: int = 0
    cancel_requested: bool = False
    result_expired: bool = False
    error: Failure | None = None
    reason: str | None = None
    attempts: tuple[Attempt, ...] = ()
    progress: bytes | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode_extra = msgspec.msgpack.Decoder(Extra).decode
encode_spec = msgspec.msgpack.Encoder().encode
decode_spec = msgspec.msgpack.Decoder(Spec).decode


def extra_of(job: Job) -> bytes | None:
    if not (
        job.reason is not None
        or job.error is not None
        or job.attempts
        or job.progress is not None
        or job.cancel_requested
        or job.result_expired
        or job.stalls
        or job.snoozes
        or job.releases
        or job.replays
        or job.auto_retries
    ):
        return None
    return _encode(
        Extra(
            job.stalls,
            job.snoozes,
            job.releases,
            job.replays,
            job.auto_retries,
            job.cancel_requested,
            job.result_expired,
            job.error,
            job.reason,
            job.attempts,
            job.progress,
        )
    )


def place_of(job: Job, line: str | None) -> int | None:
    """Where a waiting member stands in its line."""
    if line is None or job.state is not State.WAITING or job.blocked:
        return None
    if job.in_line:
        return IN_LINE
    return HOLDS if job.holds else OUTSIDE


Settled = tuple[int, int, int, int | None, bool, int | None, bytes | None]


def settled_facts(job: Job) -> Settled:
    """What neither a claim nor a completion changes; while it is what the row says, a narrow update will do."""
    return (
        job.available_at,
        job.failures,
        job.blocked,
        job.expires_at,
        job.archived,
        job.next_retry_at,
        extra_of(job),
    )


def job_from_row(row: tuple[Any, ...]) -> Job:
    (
        seq,
        generation,
        state,
        enqueued_at,
        available_at,
        expires_at,
        started_at,
        finished_at,
        attempt,
        failures,
        blocked,
        events,
        line,
        is_open,
        place,
        worker,
        lease_id,
        lease_until,
        archived,
        next_retry_at,
        result_until,
        result,
        extra,
        _last_event,
        _reply,
        spec,
    ) = row
    job = Job(
        decode_spec(spec),
        seq,
        generation,
        STATES[state],
        enqueued_at,
        available_at,
        expires_at,
        started_at,
        finished_at,
        attempt,
        failures,
        0,
        0,
        0,
        0,
        0,
        events,
        blocked,
        None if line is None else _lane(line),
        is_open == 1,
        place == IN_LINE,
        place == HOLDS,
        worker,
        lease_id,
        lease_until,
        False,
        archived == 1,
        result,
        result_until,
        False,
        None,
        None,
        next_retry_at,
    )
    if extra is not None:
        _put_extra(job, _decode_extra(extra))
    return job


def job_from_ready_row(row: tuple[Any, ...]) -> Job:
    """An open job, from the columns that one can have."""
    (
        seq,
        generation,
        enqueued_at,
        available_at,
        expires_at,
        started_at,
        attempt,
        failures,
        events,
        line,
        place,
        extra,
        _last_event,
        _reply,
        spec,
    ) = row
    job = Job(
        decode_spec(spec),
        seq,
        generation,
        State.WAITING,
        enqueued_at,
        available_at,
        expires_at,
        started_at,
        None,
        attempt,
        failures,
    )
    job.events, job.open = events, True
    if line is not None:
        job.lane = _lane(line)
        job.in_line, job.holds = place == IN_LINE, place == HOLDS
    if extra is not None:
        _put_extra(job, _decode_extra(extra))
    return job


def _lane(line: str) -> int | None:
    return int(line[2:]) if line.startswith("l:") else None


def _put_extra(job: Job, extra: Extra) -> None:
    job.stalls, job.snoozes, job.releases = extra.stalls, extra.snoozes, extra.releases
    job.replays, job.auto_retries = extra.replays, extra.auto_retries
    job.cancel_requested, job.result_expired = extra.cancel_requested, extra.result_expired
    job.error, job.reason, job.attempts, job.progress = extra.error, extra.reason, extra.attempts, extra.progress
