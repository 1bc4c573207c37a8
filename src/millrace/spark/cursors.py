"""Where a read of the feed begins: at the oldest event kept, at the newest, at a cursor, or at an instant."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from millrace.domain.errors import InvalidInput
from millrace.store.protocol import Store

EARLIEST = "earliest"
LATEST = "latest"
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?!\d).*")


async def starting_cursor(store: Store, given: str) -> str | None:
    """None stands for the oldest event that is kept."""
    if given == EARLIEST:
        return None
    if given == LATEST:
        return (await store.events("end", 1)).cursor
    if _DATE.fullmatch(given):
        return await store.cursor_before(_milliseconds(given))
    return given


def _milliseconds(written: str) -> int:
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        raise InvalidInput(
            f"startingCursor {written!r} is no instant; write it as 2026-11-15 or 2026-11-15T12:00:00Z"
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)
