"""Conversion of a job to a row and back, for both SQL stores.

A field of a job has a column if an index, a query or nearly every job needs it. All other fields are packed into the
column `extra`, which is NULL while all of them have their defaults. A new field of `Job` is packed without any change
here; to give it a column instead, name it in `COLUMNS` and add it to `job_from_row` and to the statements.

`open_job_from_row` and `claimed_job_from_row` read fewer columns than `job_from_row`, because a claim reads many rows.
A job is open if it can be claimed as soon as it is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from millrace.domain.event import Kind
from millrace.domain.job import Job, Spec, State

STATES = (State.WAITING, State.RUNNING, State.COMPLETED, State.DEAD, State.CANCELLED)
NUMBER = {state: number for number, state in enumerate(STATES)}
KINDS = tuple(Kind)
KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS)}

IN_LINE, HOLDS, OUTSIDE = 1, 2, 3

# The columns that a statement selects to read records, in this order. `newest` is the cursor of the job's newest event,
# `reply` the address of the process that waits for its end. A store with a separate lease table adds those of LEASE.
COLUMNS = (
    "seq",
    "generation",
    "state",
    "enqueued_at",
    "available_at",
    "expires_at",
    "started_at",
    "finished_at",
    "attempt",
    "failures",
    "blocked",
    "events",
    "line",
    "open",
    "place",
    "worker",
    "lease_id",
    "lease_until",
    "archived",
    "next_retry_at",
    "result_until",
    "result",
    "extra",
    "newest",
    "reply",
    "spec",
)
LEASE = ("cancelling", "progress")
# The columns of the two shorter records: of a job in the index of open jobs, and of one claimed on the fast path.
OPEN_COLUMNS = (
    "seq",
    "generation",
    "enqueued_at",
    "available_at",
    "expires_at",
    "started_at",
    "attempt",
    "failures",
    "events",
    "line",
    "place",
    "extra",
    "newest",
    "reply",
    "spec",
)
CLAIMED_COLUMNS = (
    "seq",
    "generation",
    "enqueued_at",
    "available_at",
    "expires_at",
    "attempt",
    "failures",
    "events",
    "lease_id",
    "lease_until",
    "started_at",
    "extra",
    "spec",
)
LINE, PLACE, EVENTS, EXTRA, NEWEST, REPLY, SPEC = (
    COLUMNS.index(name) for name in ("line", "place", "events", "extra", "newest", "reply", "spec")
)
COMBO = len(COLUMNS) + len(LEASE)

# `lane` is part of the line's name, `in_line` and `holds` are stored as the place; `lost_worker` is never stored.
_DERIVED = {"lane", "in_line", "holds", "lost_worker"}
_PACKED = [field for field in msgspec.structs.fields(Job) if field.name not in {*COLUMNS, *_DERIVED}]
PACKED = tuple(field.name for field in _PACKED)
_Packed = msgspec.defstruct(
    "_Packed", [(field.name, field.type, field.default) for field in _PACKED], omit_defaults=True, gc=False
)
_NOTHING = tuple(field.default for field in _PACKED)
_packed_facts = attrgetter(*PACKED)
_OF_LEASE = PACKED.index("cancel_requested"), PACKED.index("progress")

_encode = msgspec.msgpack.Encoder().encode
_decode_packed = msgspec.msgpack.Decoder(_Packed).decode
encode_spec = msgspec.msgpack.Encoder().encode
decode_spec = msgspec.msgpack.Decoder(Spec).decode


def texts(items: Iterable[str]) -> list[str]:
    """Return the items that a database can store as text. The others are left out: no job can have such an id."""
    return [item for item in items if (item.isascii() and "\0" not in item) or _is_text(item)]


def _is_text(item: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" or character == "\0" for character in item)


def pack(job: Job) -> bytes | None:
    """Return the value of the column `extra`; None if all packed fields have their defaults."""
    facts = _packed_facts(job)
    return None if facts == _NOTHING else _encode(_Packed(*facts))


NEEDED = _encode(_Packed(has_dependents=True))  # the packed fields of a completed job whose result its children need


def pack_beside_lease(job: Job) -> bytes | None:
    """Like `pack`, for a store with a separate row for each lease.

    The cancel request, and the progress of a running job, are left out because the lease's row has them.
    """
    facts = list(_packed_facts(job))
    cancel, progress = _OF_LEASE
    facts[cancel] = False
    if job.state is State.RUNNING:
        facts[progress] = None
    return None if tuple(facts) == _NOTHING else _encode(_Packed(*facts))


def unpack_into(job: Job, extra: bytes) -> None:
    packed = _decode_packed(extra)
    for name in PACKED:
        setattr(job, name, getattr(packed, name))


def place_of(job: Job, line: str | None) -> int | None:
    """Return how a waiting job relates to its line: `IN_LINE`, `HOLDS` (it holds the line) or `OUTSIDE` (not in it
    yet).

    Returns None if the job has no line, is blocked or is not waiting.
    """
    if line is None or job.state is not State.WAITING or job.blocked:
        return None
    if job.in_line:
        return IN_LINE
    return HOLDS if job.holds else OUTSIDE


def lane_of(line: str) -> int | None:
    return int(line[2:]) if line.startswith("l:") else None


def job_from_row(row: Sequence[Any]) -> Job:
    """Return the job of a row with the columns COLUMNS, with or without those of LEASE; further ones are ignored."""
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
        *lease,
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
        None if line is None else lane_of(line),
        bool(is_open),
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
        unpack_into(job, extra)
    if lease:
        job.cancel_requested = lease[0]
        if lease_id is not None:
            job.progress = lease[1]
    return job


def open_job_from_row(row: Sequence[Any]) -> Job:
    """Return the open job of a row with OPEN_COLUMNS, which are all that a waiting job uses. Faster than
    `job_from_row`.
    """
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
        _newest,
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
        job.lane = lane_of(line)
        job.in_line, job.holds = place == IN_LINE, place == HOLDS
    if extra is not None:
        unpack_into(job, extra)
    return job


def claimed_job_from_row(row: Sequence[Any], worker: str) -> Job:
    """Return the job that `worker` has just claimed, from a row with CLAIMED_COLUMNS.

    Fields without a column, and not packed in `extra`, have their defaults.
    """
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
        lease_until,
        started_at,
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
        started_at,
        None,
        attempt,
        failures,
    )
    job.events, job.worker, job.lease_id, job.lease_until = events, worker, lease_id, lease_until
    if extra is not None:
        unpack_into(job, extra)
        job.progress = None
    return job
