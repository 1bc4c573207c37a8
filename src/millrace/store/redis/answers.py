"""What scripts answer, as the types of the API."""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.domain.job import Spec, State
from millrace.domain.request import Enqueued, LaneStatus, QueueCounts, WorkerInfo, WorkerRecord
from millrace.store.redis.record import spec_from

_decode_worker = msgspec.msgpack.Decoder(WorkerInfo).decode
_NUMBER = 9  # bytes, of which the first is msgpack's own


def numbers_from(kept: bytes, count: int) -> tuple[list[int], bytes]:
    """So many numbers of nine bytes each, and what follows them."""
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
