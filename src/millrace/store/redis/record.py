"""Jobs and events as the scripts keep them, and back.

Scripts read and write msgpack, but know no binary: bytes (a spec, a result) travel beside it, and an error is JSON
text. What a script would have to put into words (the payload of a hook, a dependency's failure) it leaves as facts, and
whoever reads them spells them out here, with the same functions as every other store.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from millrace.domain.dead import DeadLetter
from millrace.domain.event import Event, Kind
from millrace.domain.job import Attempt, Job, Spec, State
from millrace.domain.outcome import Failure
from millrace.domain.step import dependency_failure

Reply = Any


class Rare(msgspec.Struct, gc=False):
    """Facts that a plain job never has."""

    failures: int = 0
    blocked: int = 0
    lane: int | None = None
    in_line: bool = False
    holds: bool = False
    expires_at: int | None = None
    cancel_requested: bool = False
    archived: bool = False
    result_expired: bool = False
    reason: str | None = None
    next_retry_at: int | None = None
    stalls: int = 0
    snoozes: int = 0
    releases: int = 0
    replays: int = 0
    auto_retries: int = 0


class Facts(msgspec.Struct, array_like=True, gc=False):
    """The changing part of a record, in the order of scripts/lib/jobs.lua."""

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
    rare: Rare | None
    last_event: int


class StoredEvent(msgspec.Struct, array_like=True, gc=False):
    """In the order of scripts/lib/events.lua."""

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


_HEAD = b"\xdc\x00\x10"  # of an array of sixteen
_EVENT_HEAD = b"\xdc\x00\x12"  # of an array of eighteen
_LETTER, _EMPTY = 1, 2
_LENGTH = 8  # digits before a letter's facts

_encode = msgspec.msgpack.Encoder().encode
_TAILS = [bytes([number]) for number in range(256)]
_decode_spec = msgspec.msgpack.Decoder(Spec).decode
_decode_facts = msgspec.msgpack.Decoder(Facts).decode
_decode_event = msgspec.msgpack.Decoder(StoredEvent).decode
_decode_attempt = msgspec.msgpack.Decoder(_StoredAttempt).decode
_decode_letter = msgspec.msgpack.Decoder(_Letter).decode
_decode_empty = msgspec.msgpack.Decoder(_Empty).decode
_decode_failure = msgspec.json.Decoder(Failure).decode
_encode_json = msgspec.json.Encoder().encode


def error_text(error: Failure | None) -> str | None:
    return None if error is None else _encode_json(error).decode()


def failure(text: str | None) -> Failure | None:
    if text is None:
        return None
    if text.startswith("\1"):
        state, _, parent = text[1:].partition(":")
        return dependency_failure(parent, State(state))
    return _decode_failure(text)


def spec_bodies(specs: Sequence[Spec]) -> list[bytes]:
    """Specs as bytes. Each ends with a byte that differs from its neighbours': Lua tells long texts apart by few of
    their bytes, always by the last one, and specs that are alike would all look the same to it."""
    return [_encode(spec) + _TAILS[number & 255] for number, spec in enumerate(specs)]


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


def jobs_from(rows: Sequence[Reply]) -> Iterator[Job]:
    """Rows of scripts/lib/rows.lua: four values to a job."""
    values = iter(rows)
    for seq, record, body, more in zip(values, values, values, values, strict=True):
        yield job_from(seq, record, body, more)


def job_from(seq: int, record: bytes, body: bytes, more: Reply) -> Job:
    facts = _decode_facts(_facts_of(record))
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
        _put_rare(job, facts.rare)
    if more:
        _put_more(job, more)
    return job


_NEWS_HEAD = struct.Struct(">IIIQ")


def id_in(news: bytes) -> str:
    """Of the news of a job's end: whose it was."""
    length, *_ = _NEWS_HEAD.unpack_from(news, 1)
    start = 1 + _NEWS_HEAD.size
    return news[start : start + length].decode()


def job_in(news: bytes) -> Job:
    """The job as it ended, in the order of scripts/plain/settle.lua."""
    of_id, of_record, of_spec, seq = _NEWS_HEAD.unpack_from(news, 1)
    record = 1 + _NEWS_HEAD.size + of_id
    spec = record + of_record
    result = spec + of_spec
    job = job_from(seq, news[record:spec], news[spec:result], None)
    if _decode_facts(_facts_of(news[record:spec])).result:
        job.result = news[result:]
    return job


def _facts_of(record: bytes) -> bytes:
    return _HEAD + record[2 + (record[0] << 8) + record[1] :]


def _put_rare(job: Job, rare: Rare) -> None:
    for name in Rare.__struct_fields__:
        setattr(job, name, getattr(rare, name))


def _put_more(job: Job, more: Reply) -> None:
    job.result = more[0]
    if more[1] is not None:
        job.error = failure(more[1].decode())
    if more[2] is not None:
        job.attempts = tuple(map(_attempt_from, more[2]))
    job.progress = more[3]
    if len(more) > 4:
        job.lost_worker = more[4] == 1


def _attempt_from(packed: bytes) -> Attempt:
    kept = _decode_attempt(packed)
    return Attempt(kept.attempt, kept.at, failure(kept.error), kept.duration, kept.worker)


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
