"""Settings: what may be set is decided in Python, and written if nobody else has set something meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millrace.domain.settings import Limits, QueueSettings, StoreSettings, fair_period, updated
from millrace.store.redis.question import encode
from millrace.store.redis.refusal import refusal
from millrace.store.redis.wire import Wire

_NEVER = b"never"


async def queue(wire: Wire, name: str, changes: Mapping[str, Any]) -> QueueSettings:
    while True:
        kept = await wire.command("HGET", f"{wire.prefix}settings", name)
        old = QueueSettings() if kept is None else queue_settings(kept)
        new = updated(old, changes)
        if new == old:
            return new
        answer = await wire.change("control_queue", [name], [kept or b"", _packed_queue(new)])
        if answer[0] == b"refused":
            raise refusal(answer[1])
        if answer[0] == b"ok":
            return new


async def task(wire: Wire, name: str, changes: Mapping[str, Any]) -> Limits:
    while True:
        kept = await wire.command("HGET", f"{wire.prefix}limits", name)
        old = Limits() if kept is None else msgspec.convert(msgspec.msgpack.decode(kept), Limits)
        if not changes:
            return old
        new = updated(old, changes)
        answer = await wire.change("control_task", [name], [kept or b"", encode(_all_of(new))])
        if answer[0] == b"ok":
            return new


async def store(wire: Wire, changes: Mapping[str, Any]) -> StoreSettings:
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
    fields = msgspec.msgpack.decode(kept)
    del fields["fair_period"]
    return msgspec.convert(fields, QueueSettings)


def _packed_queue(settings: QueueSettings) -> bytes:
    """Every setting, said or not: a script knows no defaults but those of a queue that was never set."""
    return encode({**_all_of(settings), "fair_period": fair_period(settings)})


def _all_of(settings: Limits) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}
