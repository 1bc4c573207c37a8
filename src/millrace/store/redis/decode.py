"""Converts script replies to the types of the API.

Scripts exchange values as msgpack, but cannot handle its binary type. So a spec or a result is passed separately as
bytes, and an error is passed as JSON text. Scripts do not compose the payload of a hook job or the error of a failed
dependency. They store only the values in it. This module composes the text when the job is read, with the same
functions as the other stores.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from millrace.domain.event import Event, Kind
from millrace.domain.job import Attempt, Job, Spec, State
from millrace.domain.outcome import Failure
from millrace.domain.request import Enqueued, LaneStatus, QueueCounts, Receipt, WorkerInfo, WorkerRecord
from millrace.domain.rules.dead import DeadLetter
from millrace.domain.rules.step import dependency_failure
from millrace.store.redis.errors import refusal

Reply = Any


class JobFields(msgspec.Struct, array_like=True, gc=False):
    """The fields of a stored job that can change, in the order of scripts/lib/jobs.lua."""

    generation: int
    state: State
    enqueued_at: int
    available_at: int
    events: int
    open: bool
    attempt: int
    started_at: int | None
    worker: str | None
    lease_id: str | None
    lease_until: int | None
    finished_at: int | None
    result_until: int | None
    result: bool
    rare: dict[str, Any] | None  # those of RARE_FIELDS that differ from their defaults
    last_event: int


_ELSEWHERE = frozenset(
    {"result", "error", "attempts", "progress", "log", "lost_worker"}
)  # stored separately, or not stored

RARE_FIELDS: dict[str, Any] = {
    field.name: field.default
    for field in msgspec.structs.fields(Job)
    if not field.required and field.name not in JobFields.__struct_fields__ and field.name not in _ELSEWHERE
}
"""Fields of a job that most jobs never change, with their defaults. Lua gets the same table (scripts/__init__.py). A
new field of `Job` needs no edit here."""


class StoredEvent(msgspec.Struct, array_like=True, gc=False):
    """An event as it is stored, with its fields in the order of scripts/lib/events.lua."""

    job: str
    queue: str
    task: str
    generation: int
    n: int
    kind: Kind
    at: int
    state: str
    attempt: int
    failures: int
    previous: int
    worker: str | None
    lease: str | None
    duration: int | None
    delay: int | None
    reason: str | None
    error: str | None
    seq: int


class _StoredAttempt(msgspec.Struct, array_like=True, gc=False):
    attempt: int
    at: int
    error: str | None
    duration: int | None
    worker: str | None


class _Letter(msgspec.Struct, array_like=True):
    name: str
    task: str
    queue: str
    seq: int
    reason: str
    error: str | None
    attempts: int
    failures: int
    enqueued_at: int
    failed_at: int | None
    lane: int | None


class _Empty(msgspec.Struct, array_like=True):
    name: str
    task: str
    queue: str
    lane: int | None
    finished: int


_HEAD = b"\xdc\x00\x10"  # msgpack's header of an array of sixteen
_EVENT_HEAD = b"\xdc\x00\x12"  # msgpack's header of an array of eighteen
_NEWS_HEAD = struct.Struct(">IIIQ")
_LETTER, _EMPTY = 1, 2
_LENGTH = 8  # digits of the length before the values of a hook
_NUMBER = 9  # bytes of a number, of which the first is msgpack's type
_RECEIPTS = {"O": Receipt.OK, "L": Receipt.LOST, "C": Receipt.CANCELLING}

_decode_spec = msgspec.msgpack.Decoder(Spec).decode
_decode_facts = msgspec.msgpack.Decoder(JobFields).decode
_decode_event = msgspec.msgpack.Decoder(StoredEvent).decode
_decode_attempt = msgspec.msgpack.Decoder(_StoredAttempt).decode
_decode_letter = msgspec.msgpack.Decoder(_Letter).decode
_decode_empty = msgspec.msgpack.Decoder(_Empty).decode
_decode_worker = msgspec.msgpack.Decoder(WorkerInfo).decode
_decode_failure = msgspec.json.Decoder(Failure).decode
_encode_json = msgspec.json.Encoder().encode


# ── jobs ───────────────────────────────────────────────────────────────────────────────────────


def jobs_from(rows: Sequence[Reply]) -> Iterator[Job]:
    """Yield the jobs in a reply that scripts/lib/rows.lua has written: four values per job."""
    values = iter(rows)
    for seq, record, body, more in zip(values, values, values, values, strict=True):
        yield job_from(seq, record, body, more)


def job_from(seq: int, record: bytes, body: bytes, more: Reply, result: bytes | None = None) -> Job:
    """Return the job that has this record. `body` is its encoded spec.

    `more` contains the values that are stored outside the record (see scripts/lib/rows.lua). If there are none,
    `result` is the job's result.
    """
    variable = 2 + (record[0] << 8) + record[1]  # after the constant part and its length
    facts = _decode_facts(_HEAD + record[variable:])
    job = Job(
        spec_from(body),
        seq,
        facts.generation,
        facts.state,
        facts.enqueued_at,
        facts.available_at,
        None,
        facts.started_at,
        facts.finished_at,
        facts.attempt,
    )
    job.events, job.open = facts.events, facts.open
    job.worker, job.lease_id, job.lease_until = facts.worker, facts.lease_id, facts.lease_until
    job.result_until = facts.result_until
    if facts.rare is not None:
        for name in facts.rare.keys() & RARE_FIELDS.keys():
            value = facts.rare[name]
            setattr(job, name, tuple(value) if type(value) is list else value)
    if more:
        _put_more(job, more)
    elif facts.result:
        job.result = result
    return job


def id_in(news: bytes) -> str:
    """Return the job id in a notification of a job's end."""
    length, *_ = _NEWS_HEAD.unpack_from(news, 1)
    start = 1 + _NEWS_HEAD.size
    return news[start : start + length].decode()


def job_in(news: bytes) -> Job:
    """Return the job in a notification of its end. scripts/fast_path/settle.lua writes these notifications."""
    of_id, of_record, of_spec, seq = _NEWS_HEAD.unpack_from(news, 1)
    record = 1 + _NEWS_HEAD.size + of_id
    spec = record + of_record
    result = spec + of_spec
    return job_from(seq, news[record:spec], news[spec:result], None, news[result:])


def _put_more(job: Job, more: Reply) -> None:
    job.result = more[0]
    if more[1] is not None:
        job.error = failure(more[1].decode())
    if more[2] is not None:
        job.attempts = tuple(map(_attempt_from, more[2]))
    job.progress, job.log = more[3], more[4]
    if len(more) > 5:
        job.lost_worker = more[5] == 1


def _attempt_from(packed: bytes) -> Attempt:
    kept = _decode_attempt(packed)
    return Attempt(kept.attempt, kept.at, failure(kept.error), kept.duration, kept.worker)


def spec_from(body: bytes) -> Spec:
    if body[0] == _LETTER:
        return _dead_letter(body)
    if body[0] == _EMPTY:
        facts = _decode_empty(body[1:-1])
        return _hook(facts, {"queue": facts.queue, "lane": facts.lane, "finished": facts.finished})
    return _decode_spec(body[:-1])


def _dead_letter(body: bytes) -> Spec:
    start = 1 + _LENGTH
    end = start + int(body[1:start])
    facts, spec = _decode_letter(body[start:end]), _decode_spec(body[end:-1])
    error = failure(facts.error)
    letter = DeadLetter(
        spec.id,
        facts.seq,
        spec.queue,
        spec.task,
        base64.b64encode(spec.payload).decode(),
        spec.serde,
        facts.reason,
        f"{error.type}: {error.message}" if error else "",
        facts.attempts,
        facts.failures,
        facts.enqueued_at,
        facts.failed_at or 0,
        facts.lane,
        spec.group,
    )
    return _hook(facts, {"letter": letter})


def _hook(facts: _Letter | _Empty, payload: dict[str, object]) -> Spec:
    return Spec(
        id=facts.name,
        task=facts.task,
        queue=facts.queue,
        payload=_encode_json(payload),
        token=facts.name,
        hook=True,
    )


# ── events and errors ──────────────────────────────────────────────────────────────────────────


def event_from(packed: bytes) -> Event:
    kept = _decode_event(_EVENT_HEAD + packed)
    return Event(
        kept.job,
        kept.seq,
        kept.generation,
        kept.n,
        kept.kind,
        kept.at,
        kept.queue,
        kept.task,
        kept.state,
        kept.attempt,
        kept.failures,
        kept.worker,
        kept.lease,
        kept.delay,
        kept.reason,
        failure(kept.error),
        kept.duration,
    )


def failure(text: str | None) -> Failure | None:
    if text is None:
        return None
    if text.startswith("\1"):
        state, _, parent = text[1:].partition(":")
        return dependency_failure(parent, State(state))
    return _decode_failure(text)


# ── other replies ──────────────────────────────────────────────────────────────────────────────


def receipts(letters: bytes) -> list[Receipt]:
    return [_RECEIPTS[letter] for letter in letters.decode()]


def accepted(reply: Reply) -> Reply:
    """Return the reply of a script. If the script has refused the call, raise the error instead."""
    if isinstance(reply, list) and reply and reply[0] == b"refused":
        raise refusal(reply[1])
    return reply


def numbers_from(kept: bytes, count: int) -> tuple[list[int], bytes]:
    """Read `count` numbers of nine bytes each. Return them and the remaining bytes."""
    starts = range(1, count * _NUMBER, _NUMBER)
    return [int.from_bytes(kept[start : start + 8]) for start in starts], kept[count * _NUMBER :]


def enqueued_from(answer: list[Any], spec: Spec) -> Enqueued:
    status, job_id, seq, generation, state, by, result, expired, body, lane, position, depth = answer
    return Enqueued(
        status.decode(),
        job_id.decode(),
        seq,
        generation,
        State(state.decode()),
        None if by is None else by.decode(),
        result,
        expired == 1,
        body is not None and spec_from(body).payload != spec.payload,
        lane,
        position,
        depth,
    )


def counts_from(row: list[Any], now: int) -> QueueCounts:
    (name, waiting, running, completed, dead, cancelled, blocked, scheduled, retrying, archived, *rest) = row
    oldest, paused, processed, died = rest
    return QueueCounts(
        name.decode(),
        waiting,
        running,
        completed,
        dead,
        cancelled,
        blocked,
        scheduled,
        retrying,
        waiting - blocked - scheduled - retrying,
        archived,
        None if oldest < 0 else max(0, now - oldest),
        paused == 1,
        processed,
        died,
    )


def lane_from(row: list[int]) -> LaneStatus:
    lane, waiting, running, holder, processed, died, paused = row
    return LaneStatus(lane, waiting, running, None if holder < 0 else holder, processed, died, paused == 1)


def worker_from(kept: bytes, now: int) -> WorkerRecord:
    (started_at, last_beat, ttl), info = numbers_from(kept, 3)
    return WorkerRecord(_decode_worker(info), started_at, last_beat, ttl, last_beat + ttl >= now)
