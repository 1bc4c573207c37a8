"""Changes the settings of queues, tasks and the store.

New settings are validated in Python. A script writes them only if the stored settings have not changed since they were
read; otherwise the change starts again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millrace.domain.rules.fast_path import (
    accepts_all,
    claims_by_order,
    claims_by_order_and_count,
    ends_alone,
    ends_alone_or_makes_room,
)
from millrace.domain.settings import Closing, Limits, QueueSettings, StoreSettings, fair_period, updated
from millrace.store.redis.decode import accepted
from millrace.store.redis.encode import encode
from millrace.store.redis.wire import RedisWire

_NEVER = "never"
_closed = msgspec.msgpack.Decoder(Closing).decode


async def queue(wire: RedisWire, name: str, changes: Mapping[str, Any]) -> QueueSettings:
    while True:
        kept = await wire.command("HGET", f"{wire.prefix}settings", name)
        old = QueueSettings() if kept is None else queue_settings(kept)
        new = updated(old, changes)
        if new == old:
            return new
        answer = accepted(await wire.change("control_queue", [name], [kept or b"", packed_queue(new)]))
        if answer[0] == b"ok":
            return new


async def task(wire: RedisWire, name: str, changes: Mapping[str, Any]) -> Limits:
    while True:
        kept = await wire.command("HGET", f"{wire.prefix}limits", name)
        old = Limits() if kept is None else msgspec.convert(msgspec.msgpack.decode(kept), Limits)
        if not changes:
            return old
        new = updated(old, changes)
        answer = await wire.change("control_task", [name], [kept or b"", encode(all_of(new))])
        if answer[0] == b"ok":
            return new


async def store(wire: RedisWire, changes: Mapping[str, Any]) -> StoreSettings:
    while True:
        kept, why = await wire.command("HMGET", f"{wire.prefix}store", "keep_events", "closed")
        old = StoreSettings(closed=None if why is None else _closed(why))
        if kept is not None:
            old = msgspec.structs.replace(old, keep_events=None if kept == _NEVER.encode() else int(kept))
        new = updated(old, changes)
        if new == old:
            return new
        bodies = [*closing_bodies(new.closed), kept or b"", why or b""]
        if await wire.ask("control_store", [stored_keep_events(new)], bodies, durable=True):
            return new


def stored_keep_events(settings: StoreSettings) -> int | str:
    return _NEVER if settings.keep_events is None else settings.keep_events


def closing_bodies(closed: Closing | None) -> list[bytes]:
    """Return what scripts store of a closed store: why it is closed, and what they answer if it refuses changes."""
    if closed is None:
        return [b"", b""]
    return [encode(closed), f"{closed.stage} {closed.peer}".encode() if closed.refuses else b""]


def queue_settings(kept: bytes) -> QueueSettings:
    """Decode the stored settings of a queue. The derived values that `packed_queue` added are dropped."""
    fields = msgspec.msgpack.decode(kept)
    own = {name: value for name, value in fields.items() if name in QueueSettings.__struct_fields__}
    return msgspec.convert(own, QueueSettings)


def packed_queue(settings: QueueSettings) -> bytes:
    """Encode the settings of a queue for scripts.

    All fields are included, because scripts apply no defaults to stored settings. Values that scripts would have to
    derive are added: the period of the fair share, and whether enqueues, claims and settles may use the fast path. In a
    queue without stored settings, all three may use it. `limited_` is for scripts that heed `max_running` on the fast
    path; those of earlier versions do not.
    """
    derived = {
        "fair_period": fair_period(settings),
        "fast_enqueue": accepts_all(settings),
        "fast_claim": claims_by_order(settings),
        "limited_claim": claims_by_order_and_count(settings),
        "fast_settle": ends_alone(settings),
        "limited_settle": ends_alone_or_makes_room(settings),
    }
    return encode({**all_of(settings), **derived})


def all_of(settings: Limits) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}
