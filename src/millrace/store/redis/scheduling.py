"""Reads and advances schedules.

Scripts compare only the revision of a schedule and its mark, the time up to which all ticks are done. The other fields
are stored as bytes. The sorted set `ticks` has the names of the schedules with a `due_at`, by this time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.domain.schedule import DueSchedules, Move, Moved, Schedule
from millrace.store.redis.decode import numbers_from
from millrace.store.redis.encode import BODIES, encode, packed_specs
from millrace.store.redis.errors import refusal
from millrace.store.redis.wire import RedisWire

PAGE = 500  # records that one command reads
_decode = msgspec.msgpack.Decoder(Schedule).decode


async def schedules(wire: RedisWire, after: str, limit: int | None) -> list[Schedule]:
    names = sorted(name for name in await wire.command("HKEYS", f"{wire.prefix}schedule") if name.decode() > after)
    found: list[Schedule] = []
    for first in range(0, len(names) if limit is None else min(limit, len(names)), PAGE):
        page = names[first : first + PAGE if limit is None else min(first + PAGE, limit)]
        kept = await wire.command("HMGET", f"{wire.prefix}schedule", *page)
        found += [schedule_from(one) for one in kept if one is not None]
    return found


async def due_schedules(wire: RedisWire, names: Sequence[str], limit: int, skip: int) -> DueSchedules:
    now, named, due, next_at = await wire.ask("due_schedules", [list(names), limit, skip])
    known = [None if kept is None else schedule_from(kept) for kept in named]
    return DueSchedules(now, known, [schedule_from(kept) for kept in due], None if next_at is None else int(next_at))


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
            items.append([move.name, move.seen, None, None, None, None])
            continue
        number = BODIES + len(bodies)
        bodies.append(encode(msgspec.structs.replace(wanted, name=move.name)))
        items.append([move.name, move.seen, wanted.mark, wanted.due_at, number, packed_specs(move.jobs, bodies)])
    return [_moved(answer) for answer in await wire.change("advance", [items], bodies)]


def _moved(answer: list[Any]) -> Moved:
    status, (rev, mark, body) = answer[0].decode(), answer[1]
    schedule = None if body is None else msgspec.structs.replace(_decode(body), rev=rev, mark=mark)
    return Moved(status, schedule, str(refusal(answer[2])) if status == "refused" else "")
