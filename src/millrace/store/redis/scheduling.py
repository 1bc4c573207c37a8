"""Reads and advances schedules.

Scripts compare only the revision of a schedule and its mark, the time up to which all ticks are done. The other fields
are stored as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.domain.schedule import Move, Moved, Schedule
from millrace.store.redis.decode import numbers_from
from millrace.store.redis.encode import BODIES, encode, packed_specs
from millrace.store.redis.errors import refusal
from millrace.store.redis.wire import RedisWire

_decode = msgspec.msgpack.Decoder(Schedule).decode


def schedule_from(kept: bytes) -> Schedule:
    (rev, mark), body = numbers_from(kept, 2)
    return msgspec.structs.replace(_decode(body), rev=rev, mark=mark)


async def advance(wire: RedisWire, moves: Sequence[Move]) -> list[Moved]:
    if not moves:
        return []
    bodies: list[bytes] = []
    items: list[list[Any]] = []
    for move in moves:
        wanted = move.schedule
        if wanted is None:
            items.append([move.name, move.seen, None, None, None])
            continue
        number = BODIES + len(bodies)
        bodies.append(encode(msgspec.structs.replace(wanted, name=move.name)))
        items.append([move.name, move.seen, wanted.mark, number, packed_specs(move.jobs, bodies)])
    return [_moved(answer) for answer in await wire.change("advance", [items], bodies)]


def _moved(answer: list[Any]) -> Moved:
    status, (rev, mark, body) = answer[0].decode(), answer[1]
    schedule = None if body is None else msgspec.structs.replace(_decode(body), rev=rev, mark=mark)
    return Moved(status, schedule, str(refusal(answer[2])) if status == "refused" else "")
