"""Changes the settings of queues, tasks and the store.

New settings are validated in Python. For a queue or a task, a script writes them only if the stored settings have not
changed since they were read; otherwise the change starts again. The store's only setting is written without this check.
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
from millrace.domain.settings import Limits, QueueSettings, StoreSettings, fair_period, updated
from millrace.store.redis.decode import accepted
from millrace.store.redis.encode import encode
from millrace.store.redis.wire import RedisWire

_NEVER = b"never"


async def queue(wire: RedisWire, name: str, changes: Mapping[str, Any]) -> QueueSettings:
    while True:
        kept = await wire.command("HGET", f"{wire.prefix}settings", name)
        old = QueueSettings() if kept is None else queue_settings(kept)
        new = updated(old, changes)
        if new == old:
            return new
        answer = accepted(await wire.change("control_queue", [name], [kept or b"", _packed_queue(new)]))
        if answer[0] == b"ok":
            return new


async def task(wire: RedisWire, name: str, changes: Mapping[str, Any]) -> Limits:
    while True:
        kept = await wire.command("HGET", f"{wire.prefix}limits", name)
        old = Limits() if kept is None else msgspec.convert(msgspec.msgpack.decode(kept), Limits)
        if not changes:
            return old
        new = updated(old, changes)
        answer = await wire.change("control_task", [name], [kept or b"", encode(_all_of(new))])
        if answer[0] == b"ok":
            return new


async def store(wire: RedisWire, changes: Mapping[str, Any]) -> StoreSettings:
    kept = await wire.command("HGET", f"{wire.prefix}store", "keep_events")
    old = StoreSettings()
    if kept is not None:
        old = StoreSettings(keep_events=None if kept == _NEVER else int(kept))
    new = updated(old, changes)
    if new != old:
        wanted = _NEVER if new.keep_events is None else new.keep_events
        await wire.command("HSET", f"{wire.prefix}store", "keep_events", wanted, durable=True)
    return new


def queue_settings(kept: bytes) -> QueueSettings:
    """Decode the stored settings of a queue. The derived values that `_packed_queue` added are dropped."""
    fields = msgspec.msgpack.decode(kept)
    own = {name: value for name, value in fields.items() if name in QueueSettings.__struct_fields__}
    return msgspec.convert(own, QueueSettings)


def _packed_queue(settings: QueueSettings) -> bytes:
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
    return encode({**_all_of(settings), **derived})


def _all_of(settings: Limits) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}
