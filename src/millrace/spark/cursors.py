"""Where a read of the feed starts: at the oldest event, at the newest, at a cursor, or at an instant."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from millrace.domain.errors import InvalidInput
from millrace.store.protocol import Store

EARLIEST = "earliest"
LATEST = "latest"
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?!\d).*")


async def start_of(store: Store, value: str) -> str | int | None:
    """Return where a read starts, as `Store.event_spans` accepts it: a cursor, an instant in milliseconds, or None for
    the oldest event.
    """
    if value == EARLIEST:
        return None
    if value == LATEST:
        return (await store.events("end", 1)).cursor
    if _DATE.fullmatch(value):
        return _milliseconds(value)
    return value


def _milliseconds(written: str) -> int:
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        raise InvalidInput(
            f"startingCursor {written!r} is not an instant; write it as 2026-11-15 or 2026-11-15T12:00:00Z"
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)
