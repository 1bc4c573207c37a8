"""A job as a row, and back. Columns are what an index or a query needs; the rest is one value, NULL for plain jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.domain.event import Kind
from millrace.domain.job import Attempt, Job, Spec, State
from millrace.domain.outcome import Failure

STATES = (State.WAITING, State.RUNNING, State.COMPLETED, State.DEAD, State.CANCELLED)
NUMBER = {state: number for number, state in enumerate(STATES)}
KINDS = tuple(Kind)
KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS)}

IN_LINE, HOLDS, OUTSIDE = 1, 2, 3


class Extra(msgspec.Struct, omit_defaults=True, gc=False):
    """Facts that most jobs never have."""

    stalls: int = 0
    snoozes: int = 0
    releases: int = 0
    replays: int = 0
    auto_retries: int = 0
    result_expired: bool = False
    error: Failure | None = None
    reason: str | None = None
    attempts: tuple[Attempt, ...] = ()
    progress: bytes | None = None  # of a run that is over; while it runs, the lease has it


_encode = msgspec.msgpack.Encoder().encode
_decode_extra = msgspec.msgpack.Decoder(Extra).decode
encode_spec = msgspec.msgpack.Encoder().encode
decode_spec = msgspec.msgpack.Decoder(Spec).decode


def extra_of(job: Job) -> bytes | None:
    extra = Extra(
        job.stalls,
        job.snoozes,
        job.releases,
        job.replays,
        job.auto_retries,
        job.result_expired,
        job.error,
        job.reason,
        job.attempts,
        None if job.state is State.RUNNING else job.progress,
    )
    return None if extra == _NONE else _encode(extra)


_NONE = Extra()


def place_of(job: Job, line: str | None) -> int | None:
    """Where a waiting member stands in its line."""
    if line is None or job.state is not State.WAITING or job.blocked:
        return None
    if job.in_line:
        return IN_LINE
    return HOLDS if job.holds else OUTSIDE


def is_plain(spec: Spec, line: str | None) -> bool:
    """Nothing follows from its end but the end itself."""
    return line is None and spec.key is None and not spec.hook and spec.keep_result != 0


def job_from_row(row: Sequence[Any]) -> Job:
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
        _newest,
        _reply,
        spec,
        cancelling,
        progress,
        _combo,
        _id,
    ) = row
    job = Job(
        decode_spec(spec),
        seq,
        generation,
        State.RUNNING if lease_id is not None else STATES[state],
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
        is_open,
        place == IN_LINE,
        place == HOLDS,
        worker,
        lease_id,
        lease_until,
        cancelling,
        archived,
        result,
        result_until,
        False,
        None,
        None,
        next_retry_at,
    )
    if extra is not None:
        put_extra(job, extra)
    if lease_id is not None:
        job.progress = progress
    return job


def claimed_job(row: Sequence[Any], worker: str) -> Job:
    """A job that a plain claim took, from the columns that one can have."""
    (
        seq,
        generation,
        enqueued_at,
        available_at,
        expires_at,
        attempt,
        failures,
        events,
        lease_id,
        until,
        now,
        extra,
        spec,
    ) = row
    job = Job(
        decode_spec(spec),
        seq,
        generation,
        State.RUNNING,
        enqueued_at,
        available_at,
        expires_at,
        now,
        None,
        attempt,
        failures,
    )
    job.events, job.worker, job.lease_id, job.lease_until = events, worker, lease_id, until
    if extra is not None:
        put_extra(job, extra)
        job.progress = None
    return job


def _lane(line: str) -> int | None:
    return int(line[2:]) if line.startswith("l:") else None


def put_extra(job: Job, blob: bytes) -> None:
    extra = _decode_extra(blob)
    job.stalls, job.snoozes, job.releases = extra.stalls, extra.snoozes, extra.releases
    job.replays, job.auto_retries, job.result_expired = extra.replays, extra.auto_retries, extra.result_expired
    job.error, job.reason, job.attempts = extra.error, extra.reason, extra.attempts
    job.progress = extra.progress
